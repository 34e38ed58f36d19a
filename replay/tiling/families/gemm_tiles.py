"""Output tiles that a unit can hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.gemm_formats import GemmFormat
from replay.tiling.families.tile_resources import TileResources
from replay.tiling.terms import Array

TILE_ROWS = (16, 32, 64, 128, 256)
TILE_COLUMNS = (32, 64, 128, 256)
SPLITS = (1, 2, 4, 8, 16, 32)
"""Parts that the reduction is split into."""
LEAST_SPLIT_STEPS = 2
"""A split leaves each part at least this many steps."""
MOST_SPLIT_TILES_PER_UNIT = 4
"""Tiles of a unit beyond which no library splits."""
STAGES = 2
"""Operand steps held at once: one is computed on while the next one loads."""
ACCUMULATOR_BYTES = 4.0
ACCUMULATOR_SHARE_RATIO = 0.75
"""Share of the registers that accumulators may take: addresses and operand fragments need the rest."""

Tile = tuple[int, int, int]
"""Rows, columns, and reduction depth of one step."""


def tile_problem(tile: Tile, format_: GemmFormat, device: HardwareSpec) -> str | None:
    """Return why a tile cannot run on one unit, or None."""
    name = "x".join(map(str, tile))
    if min(tile) < 1:
        return f"tile {name} has a side below 1"
    problem = tile_resources(tile, format_, device).launch_problem
    return f"tile {name} {problem} on {device.name}" if problem else None


def tile_resources(tile: Tile, format_: GemmFormat, device: HardwareSpec) -> TileResources:
    """Return what a tile takes of a unit."""
    rows, columns, _ = tile
    return TileResources(
        operand_bytes=operand_bytes(tile, format_),
        accumulator_bytes=rows * columns * ACCUMULATOR_BYTES,
        operand_budget_bytes=device.unit_memory_bytes,
        accumulator_budget_bytes=ACCUMULATOR_SHARE_RATIO * device.unit_registers_bytes,
    )


def operand_bytes(tile: Tile, format_: GemmFormat, stages: int = STAGES) -> float:
    """Return the unit memory that holds the operands of `stages` steps of a tile."""
    rows, columns, depth = tile
    return stages * depth * (rows * format_.activation_bytes + columns * format_.weight_bytes)


def legal_tiles(format_: GemmFormat, device: HardwareSpec) -> tuple[Tile, ...]:
    """Return the tiles to choose among: those of the table that a unit holds without spilling, small ones first."""
    every = ((rows, columns, format_.step_elements) for rows in TILE_ROWS for columns in TILE_COLUMNS)
    held = ((tile, tile_resources(tile, format_, device)) for tile in every)
    return tuple(tile for tile, needs in held if not needs.launch_problem and not needs.spilled_bytes)


def most_split(depth: Array, step_elements: int) -> Array:
    """Return the largest split that leaves every part enough steps [rows], at least 1."""
    return np.asarray(np.maximum(1.0, np.floor(depth / (LEAST_SPLIT_STEPS * step_elements))))


def taken_split(most: Array) -> Array:
    """Return the largest of `SPLITS` that is at most `most` (>= 1), elementwise."""
    return np.asarray(np.array(SPLITS)[np.searchsorted(SPLITS, most, side="right") - 1])


def columns_of(tiles: tuple[Tile, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return rows, columns and depths of tiles, each [tiles, 1]."""
    table = np.array(tiles, dtype=np.float64).reshape(-1, 3)
    return table[:, 0:1], table[:, 1:2], table[:, 2:3]
