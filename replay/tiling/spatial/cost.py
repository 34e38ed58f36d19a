"""What tiles of a product cost under a dataflow and a loop nest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from replay.specs.hardware import SpatialSpec
from replay.tiling.spatial.dataflow import Product, Tiles, array_cycles, array_traffic, stationary_bytes
from replay.tiling.spatial.nests import Nests
from replay.tiling.spatial.traffic import buffer_groups, memory_traffic
from replay.tiling.terms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The arrays of a device, their clock and the rate of its memory."""

    spatial: SpatialSpec
    clock_hz: float
    memory_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of tiles, without the device's floor."""

    cycles: Array
    """Of the arrays."""
    compute_s: Array
    """On the chip: the arrays, or a buffer that is slower than they are."""
    memory_s: Array
    exposed_s: Array
    """Memory time that no computing hides though buffers are double: the first stationary values (or the last results)."""
    dram_bytes: Array
    sram_bytes: Array
    """Read and written by arrays and device memory."""
    sram_energy_j: Array
    """Of the buffers that have an energy."""

    def seconds(self, *, double_buffered: bool) -> Array:
        """Return the joined times."""
        if double_buffered:
            return np.asarray(np.maximum(self.compute_s, self.memory_s) + self.exposed_s)
        return self.compute_s + self.memory_s


def cost_of(product: Product, dataflow: str, rates: Rates, nests: Nests, tiles: Tiles) -> Cost:
    """Return what tiles cost under a dataflow and loop nests, in the shape that they all broadcast to."""
    spatial = rates.spatial
    cycles, near = array_cycles(dataflow, spatial, product, tiles), array_traffic(dataflow, spatial, product, tiles)
    arrays_s = np.maximum(cycles / rates.clock_hz, 2.0 * product.multiplies / product.format.flops_per_s)
    exposed = stationary_bytes(dataflow, spatial, product) if spatial.double_buffered else np.zeros(1)
    far = memory_traffic(nests, spatial, product, tiles)
    passing = [
        (buffer, sum((near[operand] + far[operand] for operand in operands), np.zeros(1))) for buffer, operands in buffer_groups(spatial)
    ]
    banks_s = [moved / buffer.bytes_per_s for buffer, moved in passing if buffer.bytes_per_s is not None]
    dram_bytes = far["inputs"] + far["weights"] + far["outputs"]
    return Cost(
        cycles=cycles,
        compute_s=reduce(np.maximum, banks_s, arrays_s),
        memory_s=(dram_bytes - exposed) / rates.memory_bytes_per_s,
        exposed_s=exposed / rates.memory_bytes_per_s,
        dram_bytes=dram_bytes,
        sram_bytes=sum((moved for _, moved in passing), np.zeros(1)),
        sram_energy_j=sum((moved * (buffer.energy_j_per_byte or 0.0) for buffer, moved in passing), np.zeros(1)),
    )
