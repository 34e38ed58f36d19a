"""What finding a scale adds to quantising with a given one: a difference of two kernels, not a kernel.

Public timings state dynamic quantisation as the static kernel's time plus this increment. Both kernels move the same bytes
while rows are worked on; the dynamic one first reduces each row to its largest element and then reads the row again::

    increment = floor + |memory + again, rows + reduction|_p - |memory, rows|_p
    rows      = (row cycles + columns x element cycles) / clock x max(1, rows / (units x 8))
    reduction = likewise with its own cycles and rows side by side, less for rows shorter than a warp's load
    again     = bytes read again, as far as the rows in flight overflow the cache

Where the static kernel waits for memory the reduction hides behind it, and the increment shrinks towards nothing. Being a
difference it obeys no law of a kernel's time: faster memory can uncover more of the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.streams import ELEMENTWISE, bytes_again, memory_once_s, p_norm
from replay.tiling.terms import Array, Terms

ROWS_PER_UNIT = 8.0
WARP_ELEMENTS = 256.0
"""Elements that a warp loads at once (8 a thread); a shorter row is reduced by a part of it in fewer steps."""
LEAST_S = 1e-8
"""A hundredth of a microsecond: below what two timings can tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleIncrementFamily:
    """Time that computing a scale per row adds; shapes as of `streams.ElementwiseFamily`."""

    name: str = "quantise_scale"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Memory and cache, the chain of a row with and without the reduction, and how many reductions run side by side."""
        return (
            ParameterDefinition(name="floor_s", meaning="least increment", start=5e-7, lower=1e-8, upper=1e-5),
            ParameterDefinition(name="memory_efficiency_ratio", meaning="DRAM rate reached", start=0.85, lower=0.2, upper=1.0),
            ParameterDefinition(
                name="cache_rate_ratio", meaning="rate from the cache over the DRAM rate", start=2.0, lower=1.0, upper=12.0
            ),
            ParameterDefinition(
                name="cache_share_ratio", meaning="share of the cache that keeps data between calls", start=0.6, lower=0.1, upper=2.0
            ),
            ParameterDefinition(
                name="overlap_exponent", meaning="p of the p-norm of memory and rows", start=3.0, lower=1.0, upper=8.0, logarithmic=False
            ),
            ParameterDefinition(name="row_cycles", meaning="chain of a row that is only quantised", start=300.0, lower=1.0, upper=2e4),
            ParameterDefinition(name="element_cycles", meaning="the same per element", start=0.3, lower=1e-3, upper=10.0),
            ParameterDefinition(
                name="scale_row_cycles", meaning="what the reduction adds to a row's chain", start=300.0, lower=1.0, upper=2e4
            ),
            ParameterDefinition(name="scale_element_cycles", meaning="the same per element", start=0.3, lower=1e-3, upper=10.0),
            ParameterDefinition(name="scale_rows_per_unit", meaning="reductions side by side on a unit", start=4.0, lower=0.5, upper=64.0),
            ParameterDefinition(
                name="unit_share_bytes", meaning="cache that the rows side by side on a unit share", start=1.5e5, lower=1e4, upper=1e7
            ),
        )

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ELEMENTWISE.residual_features

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the increment for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of the increment [rows]: the reduction and the bytes read again, scaled to what shows, and the floor."""
        rows, columns, read_bytes = shapes["rows"], shapes["columns"], shapes["read_bytes"]
        memory_s = memory_once_s(rows * columns * (read_bytes + shapes["written_bytes"]), device, parameters)
        again = bytes_again(shapes, device, ROWS_PER_UNIT, parameters)
        again_s = again / (parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s)

        def chain_s(prefix: str, rows_per_unit: float, share: Array | float) -> Array:
            cycles = share * parameters[f"{prefix}row_cycles"] + columns * parameters[f"{prefix}element_cycles"]
            return np.asarray(cycles / device.clock_hz * np.maximum(1.0, rows / (device.units_count * rows_per_unit)))

        static_s = chain_s("", ROWS_PER_UNIT, 1.0)
        reduction_s = chain_s("scale_", parameters["scale_rows_per_unit"], np.minimum(1.0, columns / WARP_ELEMENTS))
        exponent = parameters["overlap_exponent"]
        longer = p_norm(exponent, memory_s + again_s, static_s + reduction_s)
        shown_s = np.maximum(longer - p_norm(exponent, memory_s, static_s), 0.0)
        nothing, busy = np.zeros(len(rows)), (rows > 0).astype(np.float64)
        whole = Terms(compute_s=reduction_s, memory_s=again_s, launch_s=nothing, sync_s=nothing, bytes=again)
        floor_s = np.maximum(parameters["floor_s"], LEAST_S - shown_s)
        return replace(whole.scaled_to(shown_s * busy, exponent), sync_s=floor_s * busy)

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return zeros [rows]: a difference can vanish."""
        return np.zeros(len(shapes["rows"]))

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of rows and columns [rows, 2]."""
        return ELEMENTWISE.features(shapes)


SCALE_INCREMENT = ScaleIncrementFamily()
