"""Number formats on the cells of a systolic array."""

from __future__ import annotations

from dataclasses import dataclass

from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec, SpatialSpec

FORMAT_BYTES = {"tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes of one element in the formats that `matrix_flops_per_s` can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFormat:
    """How cells multiply elements of one width."""

    name: str
    element_bytes: float
    lanes: float
    """Depth elements that a cell multiplies per clock: whole, or one over the clocks that a slower format takes."""
    flops_per_s: float


def cell_format(device: HardwareSpec, element_bytes: float) -> CellFormat:
    """Return the format of a width: the cells' own, else the fastest that the device has a rate for.

    Raises:
        SpecError: the device has no arrays, or no rate for elements of this width; none is made up.
    """
    own = spatial_of(device).cell_format
    rates = {name: rate for name, rate in device.matrix_flops_per_s.items() if FORMAT_BYTES[name] == element_bytes}
    if not rates:
        raise SpecError(
            f"{device.name}: matrix_flops_per_s",
            f"no rate for elements of {element_bytes:g} bytes",
            ", ".join(f"{FORMAT_BYTES[name]:g} ({name})" for name in sorted(device.matrix_flops_per_s)),
            "take a format that the device has, or describe its rate with a source",
        )
    name = own if own in rates else max(rates, key=rates.__getitem__)
    ratio = rates[name] / device.matrix_flops_per_s[own]
    lanes = float(round(ratio)) if ratio >= 1.0 else 1.0 / round(1.0 / ratio)  # datasheets round the peaks
    return CellFormat(name=name, element_bytes=element_bytes, lanes=lanes, flops_per_s=rates[name])


def spatial_of(device: HardwareSpec) -> SpatialSpec:
    """Return the arrays of a device.

    Raises:
        SpecError: its description has none.
    """
    if device.spatial is None:
        raise SpecError(f"hardware {device.name}", "no table [spatial]", "systolic arrays", "describe them, or take another device")
    return device.spatial
