"""Search of the fastest tile and split of dense multiplies, all shapes and candidates at once; forms as of `gemm`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import Parameters
from replay.tiling.families.gemm_formats import RESULT_BYTES
from replay.tiling.families.gemm_tiles import (
    ACCUMULATOR_BYTES,
    MOST_SPLIT_TILES_PER_UNIT,
    SPLITS,
    Tile,
    columns_of,
    most_split,
    taken_split,
)
from replay.tiling.terms import Array, combine

TILES_THAT_HIDE_LATENCY = 4.0
"""Tiles of one unit that hide each other's step latency."""
COLUMNS_PER_UNIT = 16.0
"""Columns that the kernel for one row streams side by side on a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Products to place, columns of [rows], and what does not depend on the tile."""

    rows: Array
    columns: Array
    depth: Array
    activation_bytes: float
    weight_bytes: float
    step_elements: int
    flops_per_s: float
    """What the matrix units reach together: efficiency times peak."""
    widening_operations: float
    """Vector operations per weight and tile that reads it."""
    memory_s: Array
    dram_bytes: Array

    def take(self, rows: npt.NDArray[np.int64]) -> Product:
        """Return some of the products."""
        names = ("rows", "columns", "depth", "memory_s", "dram_bytes")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest candidates [rows]."""

    execute_s: Array
    combine_s: Array
    combine_bytes: Array
    tile: npt.NDArray[np.int64]
    split: npt.NDArray[np.int64]
    waves: Array
    padding_ratio: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """Terms of every tile that no split changes, [tiles, rows] or [tiles, 1]."""

    grid: Array
    """Output tiles of a product."""
    depth: Array
    work_cubed: Array
    """Cube of the time of one step, computing and loading."""
    store_s: Array
    latency_s: Array

    def take(self, rows: npt.NDArray[np.int64]) -> _Tiles:
        """Return the terms of some products."""
        return replace(self, **{name: getattr(self, name)[:, rows] for name in ("grid", "work_cubed", "store_s")})


def fastest(
    product: Product, tiles: tuple[Tile, ...], device: HardwareSpec, parameters: Parameters, *, split: int | None, vector: bool
) -> Fastest:
    """Return the fastest of `tiles` and splits (None: all), and of the kernel for one row where there is one (`vector`)."""
    count = len(product.rows)
    table = _tiles(product, tiles, device, parameters)
    deepest, most = most_split(product.depth, product.step_elements), MOST_SPLIT_TILES_PER_UNIT * device.units_count
    allowed = np.maximum(1.0, np.minimum(deepest, most / table.grid.min(axis=0)))  # by the tile that crowds units least
    pinned = None if split is None else taken_split(np.minimum(deepest, float(split)))
    time_s, index = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    parts, execute_s, combine_s, waves = np.ones(count), np.full(count, np.inf), np.zeros(count), np.ones(count)
    for asked in SPLITS:
        rows = np.flatnonzero(allowed >= asked if pinned is None else pinned == asked)
        if not len(rows):
            continue
        some = product.take(rows)
        tiles_to = np.inf if asked == 1 or pinned is not None else most
        best, found_s, found_waves = _best_tile(table.take(rows), asked, some, device, parameters, tiles_to=tiles_to)
        if vector and asked == 1:
            row_s = _one_row(some, device, parameters)
            found_s, best = np.minimum(found_s, row_s), np.where(row_s < found_s, -1, best)
        added_s, floor = _combine_s(some, asked, device, parameters), np.full(len(rows), parameters["floor_s"])
        total_s = combine(found_s, some.memory_s, floor, added_s, parameters["overlap_exponent"])
        better = total_s < time_s[rows]
        won = rows[better]
        time_s[won], index[won], parts[won] = total_s[better], best[better], asked
        execute_s[won], combine_s[won], waves[won] = found_s[better], added_s[better], found_waves[better]
    return _placed(product, tiles, index, parts, execute_s, combine_s, waves)


def _best_tile(
    table: _Tiles, split: int, product: Product, device: HardwareSpec, parameters: Parameters, *, tiles_to: float
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """Return index, execution time and waves [rows] of the fastest tile at a split of which a product has at most `tiles_to`."""
    seconds, waves = _execute(table, split, product, device, parameters)
    best, every = np.argmin(np.where(table.grid * split > tiles_to, np.inf, seconds), axis=0), np.arange(len(product.rows))
    return best, seconds[best, every], waves[best, every]


def _tiles(product: Product, tiles: tuple[Tile, ...], device: HardwareSpec, parameters: Parameters) -> _Tiles:
    rows, columns, depth = columns_of(tiles)
    used_rows, used_columns = np.minimum(rows, product.rows), np.minimum(columns, product.columns)
    compute_s = 2.0 * rows * columns * depth * device.units_count / product.flops_per_s
    compute_s = compute_s + product.widening_operations * columns * depth * device.units_count / device.vector_flops_per_s
    operands = (used_rows * product.activation_bytes + used_columns * product.weight_bytes) * depth
    load_s = operands / (parameters["unit_load_ratio"] * device.unit_cache_bytes_per_s)
    return _Tiles(
        grid=np.ceil(product.rows / rows) * np.ceil(product.columns / columns),
        depth=depth,
        work_cubed=compute_s * compute_s * compute_s + load_s * load_s * load_s,
        store_s=used_rows * used_columns * RESULT_BYTES / (parameters["store_rate_ratio"] * device.memory_bytes_per_s),
        latency_s=parameters["step_latency_cycles"] / device.clock_hz * np.maximum(1.0, depth / product.step_elements),
    )


def _execute(table: _Tiles, split: int, product: Product, device: HardwareSpec, parameters: Parameters) -> tuple[Array, Array]:
    """Return the execution time and the waves of every tile [tiles, rows] at a split."""
    occupancy = table.grid * split / device.units_count
    smooth = parameters["wave_smoothness_ratio"]
    waves = np.where(occupancy <= 1.0, 1.0, (1.0 - smooth) * occupancy + smooth * np.ceil(occupancy))
    steps = np.ceil(product.depth / (table.depth * split))
    worked, latency = waves * steps, steps * table.latency_s * np.maximum(1.0, occupancy / TILES_THAT_HIDE_LATENCY)
    joined = np.cbrt(worked * worked * worked * table.work_cubed + latency * latency * latency)
    return joined + waves * table.store_s, waves


def _one_row(product: Product, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the execution time of the kernel for one row [rows], infinite for more rows."""
    column_s = product.depth * product.weight_bytes / (parameters["column_rate_ratio"] * device.unit_cache_bytes_per_s)
    turns = np.maximum(1.0, product.columns / (COLUMNS_PER_UNIT * device.units_count))
    return np.where(product.rows == 1.0, column_s * turns, np.inf)


def _combine_s(product: Product, split: int, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the time to add the parts of a split [rows], 0 where there is none."""
    if split == 1:
        return np.zeros(len(product.rows))
    rate = parameters["combine_rate_ratio"] * device.memory_bytes_per_s
    return np.asarray(parameters["split_combine_s"] + _combine_bytes(product, np.array(float(split))) / rate)


def _combine_bytes(product: Product, split: Array) -> Array:
    return np.asarray(np.where(split > 1.0, ACCUMULATOR_BYTES * split * product.rows * product.columns, 0.0))


def _placed(
    product: Product,
    tiles: tuple[Tile, ...],
    index: npt.NDArray[np.int64],
    split: Array,
    execute_s: Array,
    combine_s: Array,
    waves: Array,
) -> Fastest:
    """Return the fastest with their tiles spelt out; index -1 is the kernel for one row."""
    tile = np.array((*tiles, (1, 1, product.step_elements)), dtype=np.int64)[index]
    one_row = index < 0
    covered = np.ceil(product.rows / tile[:, 0]) * tile[:, 0] * np.ceil(product.columns / tile[:, 1]) * tile[:, 1]
    return Fastest(
        execute_s=execute_s,
        combine_s=combine_s,
        combine_bytes=_combine_bytes(product, split),
        tile=tile,
        split=split.astype(np.int64),
        waves=np.where(one_row, 1.0, waves),
        padding_ratio=1.0 - product.rows * product.columns / covered,
    )
