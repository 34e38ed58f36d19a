"""How well calibrated kernels tell which of two is faster: the error of the logarithm of their predicted ratio, from pairs of timings.

Two kernels of one family that are fitted alike err alike, so that the ratio of their predictions is better than either of them; kernels
of different libraries or formats do not. The figures decide how far a change from one to the other can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from replay.calibration.fit import predict
from replay.calibration.measured import MeasuredSet
from replay.calibration.pairing import Mask, Rows, equal_shapes, split_shapes
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware
from replay.specs.calibration import FamilyCalibration, PairError
from replay.tiling.terms import Array

FEWEST_PAIRS = 30
"""Pairs below which the spread of their errors is a guess: its own relative error is 1 / sqrt(2 n), 13 % here."""


def with_pairs(fitted: Sequence[tuple[MeasuredSet, FamilyCalibration]]) -> list[FamilyCalibration]:
    """Return the calibrations, in their order, with the errors of their ratios to earlier ones where enough pairs of timings are.

    Pairs are of one device and family, of shapes that no fit has seen, and time equal shapes, or shapes of one calibration of which ranks
    share the second in two.
    """
    errors = [_log_errors(measured, entry) for measured, entry in fitted]
    unseen = [_unseen(measured) for measured, _ in fitted]
    pairs: list[list[PairError]] = [[] for _ in fitted]
    for index, (measured, entry) in enumerate(fitted):
        pairs[index] += _pair(entry, split_shapes(measured.family.name, measured.shapes, unseen[index]), errors[index], errors[index])
    for first, second in combinations(range(len(fitted)), 2):
        (before, entry), (later, _) = fitted[first], fitted[second]
        if (before.hardware, before.family.name) == (later.hardware, later.family.name):
            rows = equal_shapes(before.shapes, later.shapes, (unseen[first], unseen[second]))
            pairs[second] += _pair(entry, rows, errors[first], errors[second])
    return [replace(entry, pairs=tuple(own)) for (_, entry), own in zip(fitted, pairs, strict=True)]


def _log_errors(measured: MeasuredSet, entry: FamilyCalibration) -> Array:
    device = read_hardware(measured.hardware)
    return np.asarray(np.log(predict(measured.family, measured.shapes, device, entry.parameters, entry.residual) / measured.seconds))


def _unseen(measured: MeasuredSet) -> Mask:
    held_out = ~fitted_mask(measured.group_key)
    return held_out if held_out.any() else np.ones_like(held_out)


def _pair(other: FamilyCalibration, rows: Rows, before: Array, later: Array) -> list[PairError]:
    if len(rows) < FEWEST_PAIRS:
        return []
    of_ratio = later[rows[:, 1]] - before[rows[:, 0]]
    error = float(np.sqrt(np.mean(of_ratio**2)))
    return [PairError(stack=other.stack, variant=other.variant, n=len(rows), log_ratio_error=round(error, 4))]
