"""What a tile takes of its unit, and how many tiles fit on a unit at a time."""

from __future__ import annotations

from dataclasses import dataclass

from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.tiling.bins import AttentionTile, attention_tile_bytes, product_format
from replay.tiling.families.gemm_tiles import ACCUMULATOR_BYTES, Tile, operand_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TileResources:
    """Resources of one tile."""

    unit_memory_bytes: float
    """Operand stages held at once."""
    accumulator_bytes: float
    """Registers of its results; addresses and operand fragments take more."""
    tiles_per_unit: int
    """Tiles that one unit holds by both, at least 1: the most that can hide each other's latency."""


def product_resources(tile: Tile, kernel: Kernel, device: HardwareSpec) -> TileResources:
    """Return what an output tile of a matrix multiply or of experts takes."""
    return _resources(operand_bytes(tile, product_format(kernel)), tile[0] * tile[1] * ACCUMULATOR_BYTES, device)


def attention_resources(tile: AttentionTile, kernel: Kernel, device: HardwareSpec) -> TileResources:
    """Return what a tile of queries and keys takes."""
    return _resources(*attention_tile_bytes(tile, kernel), device)


def _resources(operands: float, accumulators: float, device: HardwareSpec) -> TileResources:
    fit = min(device.unit_memory_bytes / operands, device.unit_registers_bytes / accumulators)
    return TileResources(unit_memory_bytes=operands, accumulator_bytes=accumulators, tiles_per_unit=max(1, int(fit)))
