"""What a kernel family is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.terms import Array, Terms

Shapes = Mapping[str, Array]
"""Columns of equal length [rows]; a family names the ones it needs."""
Parameters = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterDefinition:
    """One calibrated parameter, with a physical meaning and the range it is looked for in."""

    name: str
    meaning: str
    start: float
    lower: float
    upper: float
    logarithmic: bool = True
    """Fitted as its logarithm (scales) or as it is (shares, exponents)."""


class KernelFamily(Protocol):
    """A family of kernels that share one cost model."""

    @property
    def name(self) -> str:
        """Name of the family in calibration documents."""
        ...

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Its calibrated parameters."""
        ...

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the features that `features` returns, for the smooth residual."""
        ...

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the physical time of one call for each shape [rows], at least `bound_s`."""
        ...

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call for each shape [rows], before the bound; `time_s(overlap_exponent)` joins them."""
        ...

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the exponent that joins the terms."""
        ...

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time physics allows [rows]: FLOPs over the peak, or bytes over the fastest level that can hold them."""
        ...

    def features(self, shapes: Shapes) -> Array:
        """Return the residual's features [rows, features]: logarithms of sizes and shares of waves, nothing of the device's rates."""
        ...


def joined_s(family: KernelFamily, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the time of one call for each shape [rows]: the family's terms joined, at least its bound."""
    joined = family.terms(shapes, device, parameters).time_s(family.overlap_exponent(parameters))
    return np.asarray(np.maximum(joined, family.bound_s(shapes, device)))
