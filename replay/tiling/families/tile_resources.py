"""What a tile takes of a compute unit, and what happens where its accumulators do not fit the registers: they spill.

A kernel whose operands exceed the unit's memory cannot be launched. One that needs more registers than there are still runs: the
compiler keeps the excess in memory of its own, which every step reads and writes back. That traffic stays in the shared cache while
the spilled values of all units fit it, and goes to DRAM beyond (CUDA C++ best practices guide, "Local memory", "Register pressure").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.terms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TileResources:
    """Needs of one tile of a kernel, and the unit's budget for them."""

    operand_bytes: float
    """Fast memory for the stages of operands."""
    accumulator_bytes: float
    """Registers for partial results."""
    operand_budget_bytes: float
    accumulator_budget_bytes: float

    @property
    def launch_problem(self) -> str | None:
        """Why a tile cannot run at all, or None."""
        if self.operand_bytes <= self.operand_budget_bytes:
            return None
        return f"needs {self.operand_bytes:.0f} bytes of unit memory, and there are {self.operand_budget_bytes:.0f}"

    @property
    def spilled_bytes(self) -> float:
        """Partial results that do not fit the registers."""
        return max(0.0, self.accumulator_bytes - self.accumulator_budget_bytes)

    @property
    def spill_problem(self) -> str | None:
        """How a tile outgrows the registers, or None."""
        if not self.spilled_bytes:
            return None
        return (
            f"needs {self.accumulator_bytes:.0f} bytes of accumulators, and there are {self.accumulator_budget_bytes:.0f}: the rest spills"
        )

    @property
    def resident_count(self) -> int:
        """Tiles that one unit holds at once (its occupancy): as many as memory and registers allow, one where a single one spills."""
        by_memory = self.operand_budget_bytes / max(self.operand_bytes, 1.0)
        by_registers = self.accumulator_budget_bytes / max(self.accumulator_bytes, 1.0)
        return max(1, int(min(by_memory, by_registers)))


def spill_s(spilled_bytes: Array | float, steps: Array, device: HardwareSpec, dram_efficiency_ratio: float) -> Array:
    """Return the time [rows] of writing and reading spilled values in each of the `steps` [rows] that one unit makes in a row."""
    footprint = np.asarray(spilled_bytes) * device.units_count
    shared = dram_efficiency_ratio * device.memory_bytes_per_s / device.units_count
    rate = np.where(footprint > device.cache_bytes, shared, device.unit_cache_bytes_per_s)
    return np.asarray(2.0 * np.asarray(spilled_bytes) * steps / rate)
