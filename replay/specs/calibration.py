"""Calibrations: fitted parameters of a kernel family on one device and software stack, with their own error on kernels left out.

A shipped calibration holds parameters, a small residual and error figures - never rows of measurements.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from replay.errors import SpecError
from replay.provenance import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSpec:
    """Smooth correction of the logarithm of a family's time, on top of its physics.

    ``log factor(x) = sum_j weights[j] exp(-|(x - mean) / scale - centres[j]|^2 / (2 length^2))`` over features x. Far from
    every centre it fades to 0, so that the physics alone extrapolates.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    length: float
    centres: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLayer:
    """One layer of a residual network: ``outputs = inputs @ weights + biases``."""

    weights: tuple[tuple[float, ...], ...]
    """[inputs, outputs]."""
    biases: tuple[float, ...]
    """[outputs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkResidualSpec:
    """Correction of the logarithm of a family's time by a small network, for families of many features.

    ``log factor(x) = exp(-|z - c|^2 / 2) network(c)`` with ``z = (x - mean) / scale`` and c = z moved into [lower, upper], the range
    of the fit: outside it fades to 0, so that the physics alone extrapolates. Layers but the last are followed by tanh.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    layers: tuple[NetworkLayer, ...]


Residual = ResidualSpec | NetworkResidualSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Relative errors of predicted against measured times, on shape groups that the fit did not see; fractions, not percent."""

    n_fitted: int
    n: int
    """Rows the figures are over."""
    mean_ratio: float
    """Mean absolute relative error."""
    median_ratio: float
    p90_ratio: float
    bias_ratio: float
    """exp(mean log(predicted / measured)) - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairError:
    """How far the ratio of two calibrations of a family is off, on shapes that no fit has seen."""

    stack: str
    """The other calibration's; the same one stands for its own kernels at shapes that ranks split in two."""
    variant: str
    n: int
    """Pairs of timings."""
    log_ratio_error: float
    """Root mean square of log(predicted ratio / measured ratio)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCalibration:
    """One kernel family on one device under one stack."""

    family: str
    """`gemm`, `prefill_attention`, ..."""
    stack: str
    """Software the kernels came from, as the measurements name it (`vllm_0.24.0`)."""
    variant: str
    """What the family's parameters are split by beside the stack (a format, a head size); empty where by nothing."""
    parameters: dict[str, float]
    residual: Residual | None
    error: ErrorFigures
    pairs: tuple[PairError, ...] = ()
    """Errors of its ratio to others of the family on the device, where pairs of timings say them; each stands with one of the two."""

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> FamilyCalibration:
        """Return the record of a checked JSON form."""
        residual = None if document["residual"] is None else _residual(document["residual"])
        pairs = tuple(PairError(**pair) for pair in document.get("pairs", ()))
        return cls(**{**document, "residual": residual, "error": ErrorFigures(**document["error"]), "pairs": pairs})

    def pair(self, stack: str, variant: str) -> PairError | None:
        """Return the error of the ratio to the calibration of a stack and variant, None where no pairs say it."""
        return next((pair for pair in self.pairs if (pair.stack, pair.variant) == (stack, variant)), None)

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it among the calibrations of a device."""
        return self.family, self.stack, self.variant

    @property
    def label(self) -> str:
        """The same as one text."""
        return "/".join(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationDocument:
    """All calibrations of one device."""

    hardware: str
    families: tuple[FamilyCalibration, ...]
    split: str
    """The rule that kept shape groups out of the fit, in words."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form (schema `calibration.v1`); `from_document` reads it back."""
        document: dict[str, Any] = json.loads(canonical_json({"schema_version": "1", **asdict(self)}))
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> CalibrationDocument:
        """Return the record of a checked JSON form."""
        families = tuple(FamilyCalibration.from_document(family) for family in document["families"])
        return cls(hardware=document["hardware"], families=families, split=document["split"])

    def updated(self, later: CalibrationDocument) -> CalibrationDocument:
        """Return this document with the families of a later one of the device in place of the same (family, stack, variant), or appended.

        Raises:
            SpecError: they are of two devices, or groups were kept out by two rules.
        """
        for name in ("hardware", "split"):
            mine, its = getattr(self, name), getattr(later, name)
            if mine != its:
                raise SpecError(f"calibration of {self.hardware}: {name}", repr(its), repr(mine), "fit all families again")
        fitted = {entry.key: entry for entry in later.families}
        stale = set(fitted)
        kept = tuple(fitted.pop(entry.key) if entry.key in stale else _without_pairs(entry, stale) for entry in self.families)
        return replace(self, families=(*kept, *fitted.values()))

    def find(self, family: str, variant: str, stack: str | None) -> FamilyCalibration | None:
        """Return the calibration of a family and variant under a stack; with None, that of the newest stack by name."""
        found = [entry for entry in self.families if (entry.family, entry.variant) == (family, variant)]
        if stack is not None:
            found = [entry for entry in found if entry.stack == stack]
        return max(found, key=lambda entry: entry.stack, default=None)


def _without_pairs(entry: FamilyCalibration, stale: set[tuple[str, str, str]]) -> FamilyCalibration:
    """Return a calibration without the pairs with calibrations that were fitted anew."""
    return replace(entry, pairs=tuple(pair for pair in entry.pairs if (entry.family, pair.stack, pair.variant) not in stale))


def _residual(document: dict[str, Any]) -> Residual:
    if "layers" in document:
        layers = tuple(NetworkLayer(weights=_rows(layer["weights"]), biases=tuple(layer["biases"])) for layer in document["layers"])
        ranges = {name: tuple(document[name]) for name in ("features", "mean", "scale", "lower", "upper")}
        return NetworkResidualSpec(layers=layers, **ranges)
    tuples = {name: tuple(document[name]) for name in ("features", "mean", "scale", "weights")}
    return ResidualSpec(length=document["length"], centres=_rows(document["centres"]), **tuples)


def _rows(table: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in table)
