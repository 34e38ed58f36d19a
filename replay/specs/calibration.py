"""Calibrations: fitted parameters of a kernel family on one device and software stack, with their own error on kernels left out.

A shipped calibration holds parameters, a small smooth residual and error figures - never rows of measurements.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
class FamilyCalibration:
    """One kernel family on one device under one stack."""

    family: str
    """`gemm`, `prefill_attention`, ..."""
    stack: str
    """Software the kernels came from, as the measurements name it (`vllm_0.24.0`)."""
    variant: str
    """What the family's parameters are split by beside the stack (a format, a head size); empty where by nothing."""
    parameters: dict[str, float]
    residual: ResidualSpec | None
    error: ErrorFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationDocument:
    """All calibrations of one device."""

    hardware: str
    families: tuple[FamilyCalibration, ...]
    split: str
    """The rule that kept shape groups out of the fit, in words."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)
