"""Fidelity: how far calibrated kernel models are off measured kernels, and their sums off measured layers, models and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.calibration.fit import error_figures, predict
from replay.calibration.measured import MeasuredSet
from replay.calibration.pairing import equal_shapes
from replay.calibration.split import fitted_mask
from replay.calibration.whole import MeasuredWhole
from replay.catalog.hardware import read_hardware, with_calibration
from replay.errors import SpecError
from replay.specs.calibration import CalibrationDocument, FamilyCalibration
from replay.tiling.families.gemm_formats import GEMM_FORMATS
from replay.tiling.terms import Array

Lookup = Callable[[str], CalibrationDocument | None]
_Measured = MeasuredSet | MeasuredWhole
_Change = Callable[[_Measured, _Measured], bool]
CLEAR_CHANGE_RATIO = 0.10
"""Measured changes beyond this count for the accuracy of the sign; smaller ones are near the repeat noise."""
LEAST_RATIO = 0.03
"""Median of measured over predicted times of wholes below which a column is in seconds; queues leave no upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured set beside what the model predicts for it."""

    kind: str
    measured: MeasuredSet | MeasuredWhole
    predicted_s: Array
    held_out: npt.NDArray[np.bool_]
    """[rows] which rows the calibration has not seen."""
    n_fitted: int
    source: str
    """`calibrated` for this device and stack, `calibrated for <device or stack>` for others, or `datasheet` (start values, no fit).

    Of wholes, the weakest source that most of the time needs.
    """

    def to_document(self) -> dict[str, Any]:
        """Return the report's row: errors in percent, over rows that the fit has not seen; None where there are none."""
        rows = self.held_out
        figures = error_figures(self.predicted_s[rows], self.measured.seconds[rows], self.n_fitted) if rows.any() else None
        return {
            "kind": self.kind,
            "family": self.measured.family_name,
            "hardware": self.measured.hardware,
            "stack": self.measured.stack,
            "variant": self.measured.variant,
            "source": self.source,
            "n": int(rows.sum()),
            "n_fitted": self.n_fitted,
            "n_skipped": sum(count for _, count in self.measured.skipped),
            "mape_percent": figures and 100 * figures.mean_ratio,
            "median_ape_percent": figures and 100 * figures.median_ratio,
            "p90_ape_percent": figures and 100 * figures.p90_ratio,
            "bias_percent": figures and 100 * figures.bias_ratio,
            "by_decade": self._by_decade(),
            "skipped": [{"reason": reason, "rows": count} for reason, count in self.measured.skipped],
        }

    def _by_decade(self) -> list[dict[str, Any]]:
        seconds, predicted = self.measured.seconds[self.held_out], self.predicted_s[self.held_out]
        decades = np.floor(np.log10(seconds)).astype(int)
        found = []
        for decade in np.unique(decades):
            figures = error_figures(predicted[decades == decade], seconds[decades == decade], self.n_fitted)
            bounds = {"from_s": float(10.0**decade), "to_s": float(10.0 ** (decade + 1))}
            found.append({**bounds, "n": figures.n, "mape_percent": 100 * figures.mean_ratio, "bias_percent": 100 * figures.bias_ratio})
        return found


def compare(kind: str, measured: MeasuredSet | MeasuredWhole, lookup: Lookup) -> Compared:
    """Return a measured set beside the prediction of the calibration that fits it best, a whole beside that of all calibrations.

    Where `lookup` gives the calibration of another device, the datasheet rule carries it over: parameters are shares of a device's
    rates, or times and cycles, so they are kept and the device is changed (H100 to H200: the same units on faster memory). The
    residual is not: it is about which kernels a library takes on that device.

    Raises:
        SpecError: the times of a whole cannot be milliseconds.
    """
    if isinstance(measured, MeasuredWhole):
        return _compare_whole(kind, measured, lookup)
    document = lookup(measured.hardware)
    entry, source = _entry(measured, document)
    parameters = {p.name: p.start for p in measured.family.parameters} if entry is None else entry.parameters
    residual = entry.residual if entry is not None and document is not None and document.hardware == measured.hardware else None
    predicted = predict(measured.family, measured.shapes, read_hardware(measured.hardware), parameters, residual)
    seen = fitted_mask(measured.group_key) if source == "calibrated" else np.zeros(len(predicted), dtype=bool)
    held_out = ~seen if (~seen).any() else np.ones(len(predicted), dtype=bool)
    n_fitted = entry.error.n_fitted if entry is not None and source == "calibrated" else 0
    return Compared(kind=kind, measured=measured, predicted_s=predicted, held_out=held_out, n_fitted=n_fitted, source=source)


def _compare_whole(kind: str, whole: MeasuredWhole, lookup: Lookup) -> Compared:
    device, document = read_hardware(whole.hardware), lookup(whole.hardware)
    prediction = whole.predict(device if document is None else with_calibration(device, document))
    lost = np.zeros(len(whole.seconds), dtype=bool)
    for _, mask in prediction.left_out:
        lost |= mask
    excess = float(np.median((whole.seconds / prediction.seconds)[~lost])) if not lost.all() else 1.0
    if excess < LEAST_RATIO:
        got = f"times of {whole.stack} {whole.variant} are {excess:.3g} times what is predicted for {whole.hardware}"
        raise SpecError(whole.where, got, "milliseconds", "convert the column to milliseconds")
    counts = tuple((reason, int(mask.sum())) for reason, mask in prediction.left_out if mask.any())
    return Compared(
        kind=kind,
        measured=replace(whole, skipped=(*whole.skipped, *counts)),
        predicted_s=prediction.seconds,
        held_out=~lost,
        n_fitted=0,
        source=prediction.source,
    )


def report(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return one row per set; a set that shares shapes with earlier ones also says how often the signs of their changes are right."""
    rows = []
    for index, one in enumerate(compared):
        signs = [sign for changed in (_other_stack, _other_format) if (sign := sign_accuracy(one, compared[:index], changed))]
        rows.append({**one.to_document(), **({"sign_accuracy": signs} if signs else {})})
    return rows


def sign_accuracy(later: Compared, earlier: Iterable[Compared], changed: _Change) -> dict[str, Any] | None:
    """Return how often the predicted sign of a change is right, against the first set of which `changed` holds with the same shapes.

    Pairs are of one kind, device and family, and count where both rows are unseen by their fits and the measured change exceeds
    CLEAR_CHANGE_RATIO; None without any.
    """
    for before in earlier:
        if _place(before) != _place(later) or not changed(before.measured, later.measured):
            continue
        pairs = equal_shapes(before.measured.shapes, later.measured.shapes, (before.held_out, later.held_out))
        if len(pairs):
            old, new = pairs[:, 0], pairs[:, 1]
            measured = np.log(later.measured.seconds[new] / before.measured.seconds[old])
            predicted = np.log(later.predicted_s[new] / before.predicted_s[old])
            clear = np.abs(measured) > np.log1p(CLEAR_CHANGE_RATIO)
            if clear.any():
                right = float((np.sign(measured) == np.sign(predicted))[clear].mean())
                against = " ".join(filter(None, (before.measured.stack, before.measured.variant)))
                return {"against": against, "n": int(clear.sum()), "right_ratio": right}
    return None


def _other_stack(before: _Measured, later: _Measured) -> bool:
    return before.variant == later.variant and before.stack != later.stack


def _other_format(before: _Measured, later: _Measured) -> bool:
    """Return whether two sets of one stack differ in the number format alone: other variants are other kernels."""
    return before.stack == later.stack and before.variant != later.variant and {before.variant, later.variant} <= GEMM_FORMATS.keys()


def _entry(measured: MeasuredSet, document: CalibrationDocument | None) -> tuple[FamilyCalibration | None, str]:
    if document is None:
        return None, "datasheet"
    own = document.find(measured.family.name, measured.fitted_variant, measured.stack)
    found = own or document.find(measured.family.name, measured.fitted_variant, None)
    if found is None:
        return None, "datasheet"
    others = [document.hardware] * (document.hardware != measured.hardware) + [found.stack] * (own is None)
    return found, " ".join(["calibrated", *(["for", *others] if others else [])])


def _place(one: Compared) -> tuple[str, str, str]:
    return one.kind, one.measured.hardware, one.measured.family_name
