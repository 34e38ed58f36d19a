"""What a description of systolic arrays must satisfy beyond its schema."""

from __future__ import annotations

import math
from collections.abc import Callable

from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec, SpatialSpec

PEAK_TOLERANCE_RATIO = 0.005
"""Datasheets round peaks: TPU v5e 197 for 196.6 TFLOP/s, TPU v1 92 for 91.8 TOP/s."""


def check_spatial(hardware: HardwareSpec, place: Callable[[str], str]) -> None:
    """Refuse arrays that contradict the device's peak, and operands without a buffer; `place` names where a key stands.

    Raises:
        SpecError: the first contradiction.
    """
    if hardware.spatial is None:
        return
    _check_peak(hardware, hardware.spatial, place)
    _check_buffers(hardware.spatial, place)


def _check_peak(hardware: HardwareSpec, spatial: SpatialSpec, place: Callable[[str], str]) -> None:
    name = spatial.cell_format
    if name not in hardware.matrix_flops_per_s:
        raise SpecError(
            place("spatial.cell_format"),
            f"the arrays multiply {name}, for which the device has no rate",
            "one of " + ", ".join(sorted(hardware.matrix_flops_per_s)),
            "name the format of one cell, or describe its rate",
        )
    cells = spatial.arrays_count * spatial.array_rows_count * spatial.array_columns_count
    arrays, peak = 2.0 * cells * hardware.clock_hz, hardware.matrix_flops_per_s[name]
    if not math.isclose(arrays, peak, rel_tol=PEAK_TOLERANCE_RATIO):
        raise SpecError(
            place("spatial.arrays_count"),
            f"{cells} cells at {hardware.clock_hz:g} Hz do {arrays:g} FLOP/s",
            f"matrix_flops_per_s.{name}, which is {peak:g}, within {PEAK_TOLERANCE_RATIO:.1%}",
            "correct the array, the clock, the peak or the cell format",
        )


def _check_buffers(spatial: SpatialSpec, place: Callable[[str], str]) -> None:
    own = [name for name in ("inputs", "weights", "outputs") if name in spatial.buffers]
    lacking = [name for name in ("inputs", "weights", "outputs") if name not in spatial.buffers]
    if "shared" in spatial.buffers and len(own) < 3:
        return
    if not lacking and "shared" not in spatial.buffers:
        return
    raise SpecError(
        place("spatial.buffers"),
        f"no buffer for {', '.join(lacking)}" if lacking else "a shared buffer that no operand uses",
        "a buffer for each of inputs, weights and outputs, or a shared one for the rest",
        "describe the missing buffer, or remove the spare one",
    )
