"""What a tile of a kernel takes of its unit, as the mapping sheet shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.tiling.bins import AttentionTile, TunedTile, attention_resources, product_format
from replay.tiling.families.gemm_tiles import Tile, operand_bytes, tile_resources
from replay.tiling.families.tile_resources import TileResources
from replay.tiling.tuned_tables import held_stages, threads_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResources:
    """Resources of one tile."""

    unit_memory_bytes: float
    """Operand stages held at once."""
    accumulator_bytes: float
    """Registers of its results; addresses and operand fragments take more."""
    spilled_bytes: float
    """Results that do not fit the registers."""
    threads_count: int | None
    """Threads that compute it, where a tuned table says so."""
    tiles_per_unit: int
    """Occupancy: tiles that one unit holds by both, at least 1."""


def shown_product(tile: Tile, kernel: Kernel, tuned: TunedTile | None, device: HardwareSpec) -> ShownResources:
    """Return what an output tile of a matrix multiply or of experts takes; `tuned` says where it was looked up."""
    format_ = product_format(kernel)
    needs = tile_resources(tile, format_, device)
    if tuned is None:
        return _shown(needs, None)
    needs = replace(needs, operand_bytes=operand_bytes(tile, format_, held_stages(tuned.entry)))
    return _shown(needs, threads_count(tuned.table, tuned.entry))


def shown_attention(tile: AttentionTile, kernel: Kernel, device: HardwareSpec) -> ShownResources:
    """Return what a tile of queries and keys takes."""
    return _shown(attention_resources(tile, kernel, device), None)


def _shown(needs: TileResources, threads: int | None) -> ShownResources:
    return ShownResources(
        unit_memory_bytes=needs.operand_bytes,
        accumulator_bytes=needs.accumulator_bytes,
        spilled_bytes=needs.spilled_bytes,
        threads_count=threads,
        tiles_per_unit=needs.resident_count,
    )
