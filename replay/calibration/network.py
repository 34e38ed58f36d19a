"""Fit the network residual of a calibration: two small hidden layers over standardised features.

For families of many features or rows, such as dense multiplies and attention, whose errors turn at many thresholds where a library
changes its kernel: bumps need a centre in every feature there and thin out. Trained on the mean absolute error with L-BFGS and the
exact gradient, in single precision (four times as fast, and no less right). Cross-validation over whole shape groups holds back a
network that helps none.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from replay.calibration.smooth import NOISE_LOG_ERROR, SMALL_LOG_ERROR, Candidate
from replay.calibration.split import FOLDS, cross_validation_folds
from replay.seeds import stream
from replay.specs.calibration import NetworkLayer, NetworkResidualSpec
from replay.tiling.residual import activations
from replay.tiling.terms import Array

HIDDEN = (20, 20)
"""961 weights over 25 features. On public GEMM timings 24 or 28 a layer are within 0.1 points of error, one layer is half a point worse."""
HIDDEN_OF_FEW = (10, 10)
"""211 weights over the 8 features of attention. On public attention timings 12 or 20 a layer are within 0.4 points of error, up or down."""
FEW_FEATURES = 12
STEPS = 1000
"""Training steps; on public GEMM timings twice as many change the error on groups left out by less than 0.2 points, up or down."""
RIDGES = (1.0, 30.0)
"""Trial weights of the squared parameters, as if that many rows pulled each of them to 0; cross-validation takes the better one.

On public GEMM timings 0.3 and 3 err as 1, and 30 half a point more, but a point less where only forty shape groups are fitted.
"""
LEAST_GAIN_RATIO = 0.01
"""Share of the error on groups left out that a network must take away; less is luck of the folds."""
MEMORY = 20
"""Steps that L-BFGS remembers."""
DIGITS = 3

Layers = list[tuple[Array, Array]]


def fit_network(names: tuple[str, ...], features: Array, logs: Array, groups: npt.NDArray[np.int64], *, seed: int) -> Candidate | None:
    """Return the residual of log errors `logs` [rows] over `features` [rows, features], or None where it helps no unseen group.

    `groups` [rows] numbers the shape groups: folds keep them whole.
    """
    folds = cross_validation_folds(groups, seed)
    if len(np.unique(folds)) < FOLDS or float(np.abs(logs).mean()) < NOISE_LOG_ERROR:
        return None
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    points = (features - mean) / spread
    # On fewer rows all networks err more, and stiff ones are favoured.
    errors = {ridge: _cross_validated(points, logs, folds, ridge, seed) for ridge in RIDGES}
    ridge = min(RIDGES, key=errors.__getitem__)
    if errors[ridge] > (1.0 - LEAST_GAIN_RATIO) * float(np.abs(logs - np.median(logs)).mean()):
        return None
    layers = _trained(points, logs, ridge, seed)
    residual = NetworkResidualSpec(
        features=names,
        mean=_rounded(mean),
        scale=_rounded(spread),
        lower=_rounded(points.min(axis=0)),
        upper=_rounded(points.max(axis=0)),
        layers=tuple(NetworkLayer(weights=tuple(map(_rounded, weights)), biases=_rounded(biases)) for weights, biases in layers),
    )
    return Candidate(residual=residual, error=errors[ridge])


def _cross_validated(points: Array, logs: Array, folds: npt.NDArray[np.int64], ridge: float, seed: int) -> float:
    """Return the mean absolute error on groups left out."""
    errors = np.zeros(len(logs))
    for fold in range(FOLDS):
        left = folds == fold
        layers = _trained(points[~left], logs[~left], ridge, seed)
        errors[left] = np.abs(logs[left] - activations(points[left], layers)[-1][:, 0])
    return float(errors.mean())


def _trained(points: Array, logs: Array, ridge: float, seed: int) -> Layers:
    """Return the network after `STEPS` of training."""
    from scipy.optimize import minimize

    sizes = (points.shape[1], *(HIDDEN if points.shape[1] > FEW_FEATURES else HIDDEN_OF_FEW), 1)
    draw = stream(seed, "calibration/network")
    # The last layer starts near 0: the physics is the first guess.
    start = [(draw.normal(0.0, (0.1 if b == 1 else 1.0) / np.sqrt(a), (a, b)), np.zeros(b)) for a, b in pairwise(sizes)]
    arguments = (sizes, points.astype(np.float32), logs.astype(np.float32), ridge)
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "maxcor": MEMORY}
    return _layers(minimize(objective, _flat(start), args=arguments, jac=True, method="L-BFGS-B", options=options).x, sizes)


def objective(vector: Array, sizes: tuple[int, ...], points: Array, logs: Array, ridge: float) -> tuple[float, Array]:
    """Return (loss, its gradient [weights]): the mean absolute error, rounded off below `SMALL_LOG_ERROR`, and the ridge.

    Computed in the precision of `points`.
    """
    layers = _layers(vector.astype(points.dtype), sizes)
    outputs = activations(points, layers)
    misses = outputs[-1][:, 0] - logs
    rounded = np.sqrt(misses * misses + SMALL_LOG_ERROR * SMALL_LOG_ERROR)
    loss = float(rounded.mean() + ridge * (vector @ vector) / (2.0 * len(logs)))
    slope = (misses / rounded / len(logs))[:, None]
    slopes: Layers = []
    for index in range(len(layers) - 1, -1, -1):
        slopes.append((outputs[index].T @ slope, slope.sum(axis=0)))
        slope = (slope @ layers[index][0].T) * (1.0 - outputs[index] ** 2)
    return loss, _flat(slopes[::-1]) + ridge * vector / len(logs)


def _flat(layers: Layers) -> Array:
    return np.concatenate([part.ravel() for layer in layers for part in layer])


def _layers(vector: Array, sizes: tuple[int, ...]) -> Layers:
    found, start = list[tuple[Array, Array]](), 0
    for inputs, outputs in pairwise(sizes):
        middle = start + inputs * outputs
        found.append((vector[start:middle].reshape(inputs, outputs), vector[middle : middle + outputs]))
        start = middle + outputs
    return found


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
