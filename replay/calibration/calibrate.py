"""calibrate(sets) -> calibration documents, one per accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from replay.calibration.fit import fit_family
from replay.calibration.measured import MeasuredSet, joined
from replay.calibration.pairs import with_pairs
from replay.calibration.split import RULE, fitted_mask
from replay.catalog.hardware import read_hardware
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration


def calibrate(sets: Sequence[MeasuredSet], *, seed: int, jobs: int, progress: Callable[[str], None]) -> tuple[CalibrationDocument, ...]:
    """Return a document for each accelerator among the sets, families in the order of the sets; like sets are fitted as one."""
    sets = joined(sets)
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        fitted = []
        for measured, entry in zip(sets, pool.map(partial(calibrate_set, seed=seed), sets), strict=True):
            progress(
                f"{measured.hardware} {entry.family} {entry.stack} {entry.variant}: {entry.error.mean_ratio:.1%} on {entry.error.n} rows"
            )
            fitted.append((measured, entry))
    by_device: dict[str, list[FamilyCalibration]] = {}
    for (measured, _), entry in zip(fitted, with_pairs(fitted), strict=True):
        by_device.setdefault(measured.hardware, []).append(entry)
    return tuple(CalibrationDocument(hardware=device, families=tuple(own), split=RULE) for device, own in by_device.items())


def calibrate_set(measured: MeasuredSet, *, seed: int) -> FamilyCalibration:
    """Return the calibration of one set."""
    keys = np.stack([np.asarray(column, dtype=np.int64) for column in measured.group_key], axis=1)
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    fit = fit_family(
        measured.family,
        measured.shapes,
        measured.seconds,
        groups.reshape(-1),
        fitted_mask(measured.group_key),
        read_hardware(measured.hardware),
        seed=seed,
    )
    parameters = {name: float(f"{value:.6g}") for name, value in fit.parameters.items()}
    return FamilyCalibration(
        family=measured.family.name,
        stack=measured.stack,
        variant=measured.variant,
        parameters=parameters,
        residual=fit.residual,
        error=_rounded(fit.error),
    )


def _rounded(error: ErrorFigures) -> ErrorFigures:
    ratios = {name: round(value, 4) for name, value in asdict(error).items() if name.endswith("_ratio")}
    return replace(error, **ratios)
