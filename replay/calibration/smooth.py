"""Fit the smooth residual of a calibration: Gaussian bumps with one length per feature, on centres that explain the most.

How far a correction reaches differs by feature (it may turn within one octave of the context and not at all over the batch), so
each feature has its own length, found by coordinate descent on the error of whole shape groups left out. Centres are then
taken greedily from well-spread candidates, each the one that explains most of what is left (orthogonal matching pursuit), and
weighted by a ridge fit of the mean absolute error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.calibration.split import FOLDS, cross_validation_folds
from replay.seeds import stream
from replay.specs.calibration import Residual, ResidualSpec
from replay.tiling.residual import basis
from replay.tiling.terms import Array

MAXIMUM_CENTRES = 120
MAXIMUM_NUMBERS = 650
"""Coordinates and weights of all centres: 72 centres over the 8 features of attention, where 120 err 0.1 points less."""
TRIAL_CENTRES = 160
"""Centres of a trial while lengths are looked for: spread evenly, as a greedy choice would be too slow and see the left-out rows."""
CANDIDATE_CENTRES = 600
TRIAL_ROWS = 2500
LENGTHS = (0.5, 0.8, 1.3, 2.0)
"""Trial lengths of all features at once, in standard deviations of each."""
LENGTH_STEPS = (0.5, 0.7, 1.4, 2.0, 4.0)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
PASSES = 2
NOISE_LOG_ERROR = 0.005
"""A mean log error below this is noise: physics alone is right."""
SMALL_LOG_ERROR = 0.02
"""Log errors below this count alike: they are within the repeat noise of measured kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fitted residual and how well such ones do."""

    residual: Residual
    error: float
    """Mean absolute log error on shape groups that were left out in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    error: float
    lengths: Array
    ridge: float


def fit_smooth(names: tuple[str, ...], features: Array, logs: Array, groups: npt.NDArray[np.int64], *, seed: int) -> Candidate | None:
    """Return the residual of log errors `logs` [rows] over `features` [rows, features], or None where it helps no unseen group.

    `groups` [rows] numbers the shape groups: folds keep them whole.
    """
    folds = cross_validation_folds(groups, seed)
    if len(np.unique(folds)) < FOLDS:
        return None
    if float(np.abs(logs).mean()) < NOISE_LOG_ERROR:
        return None  # nothing is left that is not noise
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    points = (features - mean) / spread
    rows = _trial_rows(len(points), seed)
    trial = _search(points[rows], logs[rows], folds[rows], seed)
    if trial.error >= float(np.abs(logs[rows] - np.median(logs[rows])).mean()):
        return None
    scaled = points / trial.lengths
    centres = np.round(_explaining(scaled, logs, seed), 1)
    if len(centres) == 0:
        return None
    weights = _solve(basis(scaled, centres, 1.0), logs, trial.ridge)
    residual = ResidualSpec(
        features=names,
        mean=tuple(np.round(mean, 6).tolist()),
        scale=tuple(np.round(spread * trial.lengths, 6).tolist()),
        length=1.0,
        centres=tuple(tuple(row) for row in centres.tolist()),
        weights=tuple(np.round(weights, 4).tolist()),
    )
    return Candidate(residual=residual, error=trial.error)


def _trial_rows(rows: int, seed: int) -> npt.NDArray[np.int64]:
    if rows <= TRIAL_ROWS:
        return np.arange(rows)
    return np.sort(stream(seed, "calibration/trial").choice(rows, TRIAL_ROWS, replace=False))


def _search(points: Array, logs: Array, folds: npt.NDArray[np.int64], seed: int) -> _Trial:
    """Return the best lengths and ridge: first one length for all, then feature by feature."""

    def tried(lengths: Array, ridges: tuple[float, ...]) -> _Trial:
        scaled = points / lengths
        bumps = basis(scaled, _spread(scaled, TRIAL_CENTRES, seed), 1.0)
        found = [_Trial(error=_cross_validated(bumps, logs, folds, ridge), lengths=lengths, ridge=ridge) for ridge in ridges]
        return min(found, key=lambda trial: trial.error)

    ones = np.ones(points.shape[1])
    best = min((tried(ones * length, RIDGES) for length in LENGTHS), key=lambda trial: trial.error)
    varying = np.flatnonzero(points.std(axis=0) > 0)
    for _ in range(PASSES):
        before = best.error
        for feature in varying:
            steps = (np.where(np.arange(len(ones)) == feature, best.lengths * step, best.lengths) for step in LENGTH_STEPS)
            best = min((best, *(tried(lengths, (best.ridge,)) for lengths in steps)), key=lambda trial: trial.error)
        best = min(best, tried(best.lengths, RIDGES), key=lambda trial: trial.error)
        if best.error > 0.99 * before:
            break
    return best


def _spread(points: Array, count: int, seed: int) -> Array:
    """Return up to `count` of the points, far from each other: farthest-point traversal of a sample."""
    pool = points[stream(seed, "calibration/centres").choice(len(points), min(len(points), 4000), replace=False)]
    chosen = [int(np.argmin((pool**2).sum(axis=1)))]
    distance = ((pool - pool[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(pool)) and distance.max() > 1e-6:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((pool - pool[chosen[-1]]) ** 2).sum(axis=1))
    return np.asarray(pool[chosen])


def _explaining(points: Array, logs: Array, seed: int) -> Array:
    """Return some of well-spread candidates, each the one that explains most of what the ones before leave.

    At most MAXIMUM_CENTRES, and MAXIMUM_NUMBERS in all.
    """
    candidates = _spread(points, CANDIDATE_CENTRES, seed)
    bumps = basis(points, candidates, 1.0)
    whole = (bumps**2).sum(axis=0)
    rest, left, chosen = logs.copy(), whole.copy(), list[int]()
    most = min(MAXIMUM_CENTRES, MAXIMUM_NUMBERS // (points.shape[1] + 1), len(candidates))
    while len(chosen) < most:
        # Only what is new in a candidate counts: its part along the chosen ones has been taken out of its column.
        gain = np.where(left > 1e-3 * whole, (bumps.T @ rest) ** 2 / (left + RIDGES[0]), 0.0)
        best = int(np.argmax(gain))
        if gain[best] <= 1e-9:
            break
        chosen.append(best)
        direction = bumps[:, best] / np.sqrt(left[best])
        rest = rest - direction * (direction @ rest)
        bumps -= np.outer(direction, direction @ bumps)
        left = (bumps**2).sum(axis=0)
        left[chosen] = 0.0
    return np.asarray(candidates[chosen])


def _cross_validated(bumps: Array, logs: Array, folds: npt.NDArray[np.int64], ridge: float) -> float:
    errors = [
        np.abs(logs[folds == fold] - bumps[folds == fold] @ _solve(bumps[folds != fold], logs[folds != fold], ridge))
        for fold in range(FOLDS)
    ]
    return float(np.concatenate(errors).mean())


def _solve(bumps: Array, logs: Array, ridge: float) -> Array:
    """Return ridge weights, reweighted towards the mean absolute error (three rounds)."""
    weight: Array = np.ones(len(logs))
    solution = np.zeros(bumps.shape[1])
    for _ in range(3):
        weighted = bumps * weight[:, None]
        solution = np.linalg.solve(weighted.T @ bumps + ridge * np.eye(bumps.shape[1]), weighted.T @ logs)
        weight = 1.0 / np.maximum(np.abs(logs - bumps @ solution), SMALL_LOG_ERROR)
        weight = weight / weight.mean()
    return solution
