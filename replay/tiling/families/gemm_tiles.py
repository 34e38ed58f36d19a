"""Output tiles that a unit can hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.gemm_formats import GemmFormat
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
    rows, columns, depth = tile
    name = f"tile {rows}x{columns}x{depth}"
    if min(tile) < 1:
        return f"{name} has a side below 1"
    operands = operand_bytes(tile, format_)
    if operands > device.unit_memory_bytes:
        return f"{name} needs {operands:.0f} bytes of unit memory, {device.name} has {device.unit_memory_bytes:.0f}"
    accumulators, registers = rows * columns * ACCUMULATOR_BYTES, ACCUMULATOR_SHARE_RATIO * device.unit_registers_bytes
    if accumulators > registers:
        return f"{name} needs {accumulators:.0f} bytes of accumulators, {device.name} has {registers:.0f} for them"
    return None


def operand_bytes(tile: Tile, format_: GemmFormat, stages: int = STAGES) -> float:
    """Return the unit memory that holds the operands of `stages` steps of a tile."""
    rows, columns, depth = tile
    return stages * depth * (rows * format_.activation_bytes + columns * format_.weight_bytes)


def legal_tiles(format_: GemmFormat, device: HardwareSpec) -> tuple[Tile, ...]:
    """Return the tiles to choose among: those of the table that a unit holds, small ones first."""
    every = ((rows, columns, format_.step_elements) for rows in TILE_ROWS for columns in TILE_COLUMNS)
    return tuple(tile for tile in every if tile_problem(tile, format_, device) is None)


def most_split(depth: Array, step_elements: int) -> Array:
    """Return the largest split that leaves every part enough steps [rows], at least 1."""
    return np.asarray(np.maximum(1.0, np.floor(depth / (LEAST_SPLIT_STEPS * step_elements))))


def columns_of(tiles: tuple[Tile, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return rows, columns and depths of tiles, each [tiles, 1]."""
    table = np.array(tiles, dtype=np.float64).reshape(-1, 3)
    return table[:, 0:1], table[:, 1:2], table[:, 2:3]
