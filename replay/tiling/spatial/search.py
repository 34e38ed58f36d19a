"""The fastest legal tile and loop nest of each product under one dataflow.

A legal tile is a multiple of the array's edges (`granules`), or the whole dimension, and fits the buffers. No term of the time falls
when a dimension is cut into more tiles, or when the same number of tiles is cut less evenly. So it is enough to try the smallest tile
for each number of row and column tiles (about 2 sqrt(n) of n multiples), under each nest with the deepest one that fits beside it: none of
the legal tiles that are left out is faster. Where the depth streams, a last tile shallower than the array costs as much as a full fold,
so the deepest tile that leaves no such rest is tried as well. The simplest nest and tiles that leave the rows or the columns whole are
tried first: where one of them is as good as a single tile of everything, no other can be better. Among equally fast ones the choice
moves the fewest bytes of device memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.tiling.spatial.cost import Cost, Rates, cost_of
from replay.tiling.spatial.dataflow import Granules, Product, Tiles, granules
from replay.tiling.spatial.nests import NEST_NAMES, NESTS, PANELS, nests_at
from replay.tiling.spatial.traffic import deepest, fits
from replay.tiling.terms import Array

Tile = tuple[int, int, int]
"""Rows, columns and depth."""
Stage = tuple[tuple[int, ...], bool, bool]
"""Which of NESTS are tried, and whether rows and columns are cut into tiles."""
_ALL = tuple(range(len(NESTS)))
STAGES: tuple[Stage, ...] = (
    (PANELS[:2], False, True),
    (PANELS[::2], True, False),
    (_ALL, False, True),
    (_ALL, True, False),
    (_ALL, True, True),
)
"""In the order that they are tried; the last one holds everything."""
FEW = 1024
"""Candidates that are tried in one stage: numpy's calls would cost more than trying them all."""
GRID_ELEMENTS = 1 << 14
"""Candidates that are worked out at once, so that the columns of each step stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped(Cost):
    """The fastest tiles of products [rows], with their cost."""

    joined_s: Array
    """Time without the device's floor; infinite where no tile fits."""
    dataflow: npt.NDArray[np.str_]
    loop_order: npt.NDArray[np.str_]
    held_whole: npt.NDArray[np.str_]
    tile: npt.NDArray[np.int64]
    """[rows, 3]"""

    def take(self, rows: npt.NDArray[Any]) -> Mapped:
        """Return the mappings of some products."""
        return Mapped(**{field.name: getattr(self, field.name)[rows] for field in fields(Mapped)})

    def better(self, other: Mapped) -> Mapped:
        """Return the faster mapping of each product; of equally fast ones that with less traffic, of device memory first."""
        lose = np.zeros(len(self.joined_s), dtype=bool)
        for name in ("sram_bytes", "dram_bytes", "joined_s"):
            have, offered = getattr(self, name), getattr(other, name)
            lose = (offered < have) | ((offered == have) & lose)
        return _joined([self, other]).take(np.arange(len(lose)) + len(lose) * lose)


def fastest(product: Product, dataflow: str, rates: Rates, tile: Tile | None) -> Mapped:
    """Return the fastest legal tiles and loop nests [rows], or the best nests for a tile that is asked for."""
    if tile is not None:
        grid = product.grid(slice(None))
        return _best(grid, dataflow, rates, _ALL, _asked(grid, tile))
    sides = _sides(product, granules(dataflow, rates.spatial, product.format))
    few = len(NESTS) * sides[0] * sides[1] <= FEW
    waiting, parts, places = np.full(len(few), True), [], []
    for stage in STAGES:
        last = stage == STAGES[-1]
        for some in _groups(np.flatnonzero(waiting if last else waiting & ~few), sides, stage):
            grid = product.grid(some)
            found = _best(grid, dataflow, rates, stage[0], _candidates(grid, dataflow, rates, stage))
            final = np.full(len(some), True) if last else _unbeatable(found, grid, dataflow, rates)
            parts.append(found.take(final))
            places.append(some[final])
            waiting[some[final]] = False
    return _joined(parts).take(np.argsort(np.concatenate(places)))


def _sides(product: Product, size: Granules) -> npt.NDArray[np.int64]:
    """Return how many row tiles and column tiles are candidates, as the next power of two [2, products]."""
    multiples = np.stack([np.ceil(product.rows / size[0]), np.ceil(product.columns / size[1])])
    return np.asarray(2 ** (1 + np.ceil(np.log2(np.ceil(np.sqrt(multiples))))), dtype=np.int64)


def _groups(rows: npt.NDArray[np.int64], sides: npt.NDArray[np.int64], stage: Stage) -> Iterator[npt.NDArray[np.int64]]:
    """Yield products with about as many candidates each, as many at once as GRID_ELEMENTS allows."""
    row_sides, column_sides = (side[rows] if cut else np.ones_like(rows) for side, cut in zip(sides, stage[1:], strict=True))
    grids = row_sides * (sides.max() + 1) + column_sides
    for grid in np.unique(grids):
        alike = rows[grids == grid]
        step = max(1, GRID_ELEMENTS // (len(stage[0]) * int((row_sides * column_sides)[grids == grid][0])))
        for start in range(0, len(alike), step):
            yield alike[start : start + step]


def _joined(parts: list[Mapped]) -> Mapped:
    return Mapped(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Mapped)})


def _unbeatable(found: Mapped, product: Product, dataflow: str, rates: Rates) -> npt.NDArray[np.bool_]:
    """Return which mappings are as good as one tile of everything, whether or not that fits."""
    single: Array = np.ones((1, 1, 1, 1))
    tiles = Tiles(
        rows=product.rows, columns=product.columns, depth=product.depth, row_trips=single, column_trips=single, depth_trips=single
    )
    ideal = cost_of(product, dataflow, rates, nests_at((0,)), tiles)
    ideal_s = ideal.seconds(double_buffered=rates.spatial.double_buffered)
    return np.asarray((found.joined_s == ideal_s.ravel()) & (found.dram_bytes == ideal.dram_bytes.ravel()))


def _best(product: Product, dataflow: str, rates: Rates, places: tuple[int, ...], tiles: Tiles) -> Mapped:
    """Return the fastest of some of NESTS and a grid of tiles [products, nests, row tiles, column tiles]."""
    spatial, nests, count = rates.spatial, nests_at(places), len(product.rows)
    legal = fits(nests, spatial, product, tiles)
    cost = cost_of(product, dataflow, rates, nests, tiles)
    joined = np.where(legal, cost.seconds(double_buffered=spatial.double_buffered), np.inf)
    seconds, dram = joined.reshape(count, -1), np.broadcast_to(cost.dram_bytes, joined.shape).reshape(count, -1)
    index = np.argmin(np.where(seconds == seconds.min(axis=1, keepdims=True), dram, np.inf), axis=1)
    each = np.arange(count)

    def at_best(column: Array) -> Array:
        return np.asarray(np.broadcast_to(column, joined.shape).reshape(count, -1)[each, index])

    place = index // (joined.shape[2] * joined.shape[3])  # of the nest
    found = Tiles(**{field.name: at_best(getattr(tiles, field.name)).reshape(-1, 1, 1, 1) for field in fields(Tiles)})
    names = NEST_NAMES[list(places)][place]
    chosen = cost_of(product, dataflow, rates, nests.take(place), found)
    shape = (count, 1, 1, 1)
    return Mapped(
        **{field.name: np.broadcast_to(getattr(chosen, field.name), shape).ravel() for field in fields(Cost)},
        joined_s=seconds[each, index],
        dataflow=np.full(count, dataflow),
        loop_order=names[:, 0],
        held_whole=names[:, 1],
        tile=np.stack([found.rows.ravel(), found.columns.ravel(), found.depth.ravel()], axis=1).astype(np.int64),
    )


def _candidates(product: Product, dataflow: str, rates: Rates, stage: Stage) -> Tiles:
    """Return the smallest tile for each number of row and column tiles, with the deepest tile that fits beside it."""
    nests, size = nests_at(stage[0]), granules(dataflow, rates.spatial, product.format)
    rows, row_trips = _evenly(product.rows, size[0], tiled=stage[1])
    columns, column_trips = (part.transpose(0, 1, 3, 2) for part in _evenly(product.columns, size[1], tiled=stage[2]))
    tiles = Tiles(
        rows=rows,
        columns=columns,
        depth=product.depth,
        row_trips=row_trips,
        column_trips=column_trips,
        depth_trips=np.ones((1, 1, 1, 1)),
    )
    whole = np.ceil(product.depth / size[2])
    most = np.clip(np.floor(deepest(nests, rates.spatial, product, tiles) / size[2]), 1.0, whole)  # where none fits, `fits` refuses 1
    if dataflow == "output_stationary" and rates.spatial.folds_overlap:
        most = np.concatenate([most, _last_filled(most, whole)], axis=3)
        tiles = replace(tiles, **{name: np.concatenate([getattr(tiles, name)] * 2, axis=3) for name in ("columns", "column_trips")})
    parted = np.minimum(most * size[2], product.depth)
    depth = np.where(fits(nests, rates.spatial, product, tiles), product.depth, parted)
    return replace(tiles, depth=depth, depth_trips=np.ceil(product.depth / depth))


def _last_filled(most: Array, whole: Array) -> Array:
    """Return the largest number of multiples, up to `most`, that does not leave the last of `whole` alone in its tile; 1 if all do."""
    while (alone := (most > 1.0) & ((whole - 1.0) % most == 0.0)).any():
        most = np.where(alone, most - 1.0, most)
    return most


def _evenly(sizes: Array, granule: int, *, tiled: bool) -> tuple[Array, Array]:
    """Return the smallest tile for every number of tiles, largest first, and those numbers [products, 1, candidates, 1], some twice.

    With n multiples and s >= sqrt(n), each such tile is either ceil(n / q) multiples for q up to s, or at most s multiples.
    """
    if not tiled:
        return sizes, np.ones_like(sizes)
    multiples = np.ceil(sizes / granule)
    count = np.arange(1.0, _side(sizes, granule) + 1.0).reshape(1, 1, -1, 1)
    in_tile = np.concatenate([np.ceil(multiples / count), np.minimum(count[:, :, ::-1], multiples)], axis=2)
    tile = np.minimum(in_tile * granule, sizes)
    return tile, np.ceil(sizes / tile)


def _side(sizes: Array, granule: int) -> int:
    """Return the square root, rounded up, of the most multiples in a size."""
    return isqrt(ceil(float(sizes.max()) / granule) - 1) + 1


def _asked(product: Product, tile: Tile) -> Tiles:
    """Return a tile as far as each product reaches."""
    parts = [np.minimum(float(part), whole) for part, whole in zip(tile, _sizes(product), strict=True)]
    trips = [np.ceil(whole / part) for part, whole in zip(parts, _sizes(product), strict=True)]
    return Tiles(rows=parts[0], columns=parts[1], depth=parts[2], row_trips=trips[0], column_trips=trips[1], depth_trips=trips[2])


def _sizes(product: Product) -> tuple[Array, Array, Array]:
    return product.rows, product.columns, product.depth
