"""Fit a kernel family to measured times: few physical parameters by robust log error, then a small residual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.calibration.network import fit_network
from replay.calibration.smooth import fit_smooth
from replay.seeds import stream
from replay.specs.calibration import ErrorFigures, Residual
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import KernelFamily, ParameterDefinition, Shapes
from replay.tiling.residual import residual_factor
from replay.tiling.terms import Array

FIT_ROWS = 1500
"""Rows the parameters are fitted on, drawn evenly over the logarithm of the time; more changes them little."""
MOST_BUMP_FEATURES = 12
"""Features beyond which the residual is a network: on the 25 of dense multiplies bumps err half a point more, at three times the size."""
FEW_FEATURES = 4
MOST_BUMP_ROWS = 1000
"""Rows over more than FEW_FEATURES beyond which a network is fitted beside the bumps."""
BUMPS_GAIN_RATIO = 0.27
"""Share by which the cross-validated error of bumps must be below the network's: their lengths are chosen on the same folds, which
flatters them. On public attention timings, with less of a lead they err more on groups that no fit has seen."""
SOFT_L1_SCALE = 0.1
"""Log error beyond which an error counts linearly: a tenth is twice the repeat noise of the same kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted family: parameters, residual, and the error on groups left out."""

    parameters: dict[str, float]
    residual: Residual | None
    physics_error: ErrorFigures
    """Without the residual."""
    error: ErrorFigures


def fit_family(
    family: KernelFamily,
    shapes: Shapes,
    seconds: Array,
    groups: npt.NDArray[np.int64],
    fitted: npt.NDArray[np.bool_],
    device: HardwareSpec,
    *,
    seed: int,
) -> Fit:
    """Return the fit of `family` to measured `seconds` [rows] of `shapes` (columns of [rows]).

    `groups` [rows] numbers the shape groups (folds of the residual's cross-validation keep them whole); `fitted` [rows] says
    which rows may be seen. Errors are over the others, or over the fitted ones where there are no others.
    """
    chosen = sample_rows(seconds, np.flatnonzero(fitted), FIT_ROWS, seed)
    parameters = fit_parameters(family, take(shapes, chosen), seconds[chosen], device)
    physical = predict(family, shapes, device, parameters, None)
    logs = np.log(seconds / physical)
    residual = fit_residual(family, family.features(shapes)[fitted], logs[fitted], groups[fitted], seed=seed)
    held = ~fitted if (~fitted).any() else fitted
    corrected = predict(family, shapes, device, parameters, residual)
    n_fitted = int(fitted.sum())
    return Fit(
        parameters=parameters,
        residual=residual,
        physics_error=error_figures(physical[held], seconds[held], n_fitted),
        error=error_figures(corrected[held], seconds[held], n_fitted),
    )


def predict(family: KernelFamily, shapes: Shapes, device: HardwareSpec, parameters: dict[str, float], residual: Residual | None) -> Array:
    """Return predicted times [rows]: physics times residual, never below the physical bound."""
    physical = family.seconds(shapes, device, parameters)
    factor = residual_factor(residual, family.features(shapes)) if residual is not None else 1.0
    return np.asarray(np.maximum(physical * factor, family.bound_s(shapes, device)))


def fit_parameters(
    family: KernelFamily, shapes: Shapes, seconds: Array, device: HardwareSpec, *, kept: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the parameters that minimise the soft-L1 log error, then polished on the mean absolute log error.

    Those in `kept` stay at the values there.
    """
    from scipy.optimize import least_squares

    fixed = dict(kept or {})
    definitions = tuple(d for d in family.parameters if d.name not in fixed)
    lower, upper = (np.array([_encode(d, getattr(d, side)) for d in definitions]) for side in ("lower", "upper"))
    start = np.clip([_encode(d, d.start) for d in definitions], lower + 1e-9, upper - 1e-9)

    def errors(encoded: Array) -> Array:
        found = family.seconds(shapes, device, {**fixed, **_decode(definitions, encoded)})
        return np.asarray(np.log(found / seconds))

    point = start
    for scale in (SOFT_L1_SCALE, SOFT_L1_SCALE / 5):
        done = least_squares(errors, point, bounds=(lower, upper), loss="soft_l1", f_scale=scale, diff_step=1e-3, max_nfev=60)
        point = np.clip(done.x, lower + 1e-9, upper - 1e-9)
    return {**fixed, **_decode(definitions, point)}


def fit_residual(family: KernelFamily, features: Array, logs: Array, groups: npt.NDArray[np.int64], *, seed: int) -> Residual | None:
    """Return the residual of log errors `logs` [rows] over `features` [rows, features], or None where it helps no unseen group.

    Bumps (`replay.calibration.smooth`) for few rows or features, a network (`replay.calibration.network`) for many features, the better
    of them for many rows of some; either is held back by cross-validation over whole groups, by mean absolute error.
    """
    names = family.residual_features
    if len(names) > MOST_BUMP_FEATURES:
        network = fit_network(names, features, logs, groups, seed=seed)
        return None if network is None else network.residual
    bumps, network = fit_smooth(names, features, logs, groups, seed=seed), None
    if len(names) > FEW_FEATURES and len(logs) > MOST_BUMP_ROWS:
        network = fit_network(names, features, logs, groups, seed=seed)
    if network is not None and (bumps is None or bumps.error > (1.0 - BUMPS_GAIN_RATIO) * network.error):
        return network.residual
    return None if bumps is None else bumps.residual


def error_figures(predicted: Array, measured: Array, n_fitted: int) -> ErrorFigures:
    """Return relative errors of predictions [rows] against measurements [rows]."""
    ratio = np.abs(predicted / measured - 1.0)
    return ErrorFigures(
        n_fitted=n_fitted,
        n=len(measured),
        mean_ratio=float(ratio.mean()),
        median_ratio=float(np.median(ratio)),
        p90_ratio=float(np.quantile(ratio, 0.9)),
        bias_ratio=float(np.exp(np.log(predicted / measured).mean()) - 1.0),
    )


def take(shapes: Shapes, rows: npt.NDArray[np.int64]) -> Shapes:
    """Return some rows of each column."""
    return {name: column[rows] for name, column in shapes.items()}


def sample_rows(seconds: Array, candidates: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return up to `count` of the candidate rows, evenly over deciles of the time."""
    if len(candidates) <= count:
        return candidates
    order = candidates[np.argsort(seconds[candidates], kind="stable")]
    draw = stream(seed, "calibration/sample")
    parts = [draw.choice(part, min(len(part), count // 10), replace=False) for part in np.array_split(order, 10)]
    return np.sort(np.concatenate(parts))


def _encode(definition: ParameterDefinition, value: float) -> float:
    return float(np.log(value)) if definition.logarithmic else value


def _decode(definitions: tuple[ParameterDefinition, ...], encoded: Array) -> dict[str, float]:
    return {d.name: float(np.exp(value)) if d.logarithmic else float(value) for d, value in zip(definitions, encoded, strict=True)}
