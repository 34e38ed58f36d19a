"""What a tile takes of its unit, and how many tiles fit on a unit at a time."""

from __future__ import annotations

from dataclasses import dataclass

from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.tiling.bins import AttentionTile, TunedTile, attention_tile_bytes, product_format
from replay.tiling.families.gemm_tiles import ACCUMULATOR_BYTES, STAGES, Tile, operand_bytes
from replay.tiling.tuned_tables import held_stages, threads_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TileResources:
    """Resources of one tile."""

    unit_memory_bytes: float
    """Operand stages held at once."""
    accumulator_bytes: float
    """Registers of its results; addresses and operand fragments take more."""
    threads_count: int | None
    """Threads that compute it, where a tuned table says so."""
    tiles_per_unit: int
    """Tiles that one unit holds by both, at least 1: the most that can hide each other's latency."""


def product_resources(tile: Tile, kernel: Kernel, tuned: TunedTile | None, device: HardwareSpec) -> TileResources:
    """Return what an output tile of a matrix multiply or of experts takes; `tuned` says where it was looked up."""
    stages = STAGES if tuned is None else held_stages(tuned.entry)
    operands = operand_bytes(tile, product_format(kernel), stages)
    threads = None if tuned is None else threads_count(tuned.table, tuned.entry)
    return _resources(operands, tile[0] * tile[1] * ACCUMULATOR_BYTES, threads, device)


def attention_resources(tile: AttentionTile, kernel: Kernel, device: HardwareSpec) -> TileResources:
    """Return what a tile of queries and keys takes."""
    return _resources(*attention_tile_bytes(tile, kernel), None, device)


def _resources(operands: float, accumulators: float, threads: int | None, device: HardwareSpec) -> TileResources:
    fit = max(1, int(min(device.unit_memory_bytes / operands, device.unit_registers_bytes / accumulators)))
    return TileResources(unit_memory_bytes=operands, accumulator_bytes=accumulators, threads_count=threads, tiles_per_unit=fit)
