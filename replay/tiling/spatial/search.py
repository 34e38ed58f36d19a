"""The fastest legal tile and loop order of each product under one dataflow.

A legal tile is a multiple of the array's edges (`granules`), or the whole dimension, and fits the buffers. No term of the time falls
when a dimension is cut into more tiles, or when the same number of tiles is cut less evenly. So it is enough to try the smallest tile
for each number of row and column tiles (about 2 sqrt(n) of n multiples) with the deepest one that fits beside it: none of the legal
tiles that are left out is faster. Tiles that leave the rows or the columns whole are tried first: where one of them is as good as a
single tile of everything, no other can be better. Among equally fast ones the choice moves the fewest bytes of device memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil, isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.tiling.spatial.cost import Cost, Rates, costs
from replay.tiling.spatial.dataflow import Granules, Product, Tiles, granules
from replay.tiling.spatial.traffic import LOOP_ORDERS, deepest, fits
from replay.tiling.terms import Array

Tile = tuple[int, int, int]
"""Rows, columns and depth."""
Cut = tuple[bool, bool]
"""Whether rows and columns are cut into tiles."""
CUTS: tuple[Cut, ...] = ((False, True), (True, False), (True, True))
"""In the order that they are tried; the last one holds all tiles."""
GRID_ELEMENTS = 1 << 14
"""Candidates that are worked out at once, so that the columns of each step stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped(Cost):
    """The fastest tiles of products [rows], with their cost."""

    joined_s: Array
    """Time without the device's floor; infinite where no tile fits."""
    dataflow: npt.NDArray[np.str_]
    loop_order: npt.NDArray[np.str_]
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
    """Return the fastest legal tiles and loop orders [rows], or the best loop orders for a tile that is asked for."""
    if tile is not None:
        return _best(product.grid(slice(None)), dataflow, rates, _asked(product.grid(slice(None)), tile))
    left, parts, places = np.arange(len(product.rows)), [], []
    for cut in CUTS:
        found = _in_chunks(product, left, dataflow, rates, cut)
        final = _unbeatable(found, product.grid(left), dataflow, rates) if cut != CUTS[-1] else np.full(len(left), True)
        parts.append(found.take(final))
        places.append(left[final])
        left = left[~final]
        if not len(left):
            break
    return _joined(parts).take(np.argsort(np.concatenate(places)))


def _joined(parts: list[Mapped]) -> Mapped:
    return Mapped(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Mapped)})


def _unbeatable(found: Mapped, product: Product, dataflow: str, rates: Rates) -> npt.NDArray[np.bool_]:
    """Return which mappings are as good as one tile of everything, whether or not that fits."""
    single: Array = np.ones((1, 1, 1))
    tiles = Tiles(
        rows=product.rows, columns=product.columns, depth=product.depth, row_trips=single, column_trips=single, depth_trips=single
    )
    ideal = next(costs(product, dataflow, rates, tiles))
    ideal_s = ideal.seconds(double_buffered=rates.spatial.double_buffered)
    return np.asarray((found.joined_s == ideal_s.ravel()) & (found.dram_bytes == ideal.dram_bytes.ravel()))


def _in_chunks(product: Product, rows: npt.NDArray[np.int64], dataflow: str, rates: Rates, cut: Cut) -> Mapped:
    """Return the fastest tiles of some products with the dimensions cut that may be."""
    size = granules(dataflow, rates.spatial, product.format)
    lengths = (product.rows[rows], product.columns[rows])
    step = max(1, GRID_ELEMENTS // prod(2 * _side(length, size[axis]) for axis, length in enumerate(lengths) if cut[axis]))
    parts = []
    for start in range(0, len(rows), step):
        some = product.grid(rows[start : start + step])
        parts.append(_best(some, dataflow, rates, _candidates(some, rates, size, cut)))
    return _joined(parts)


def _best(product: Product, dataflow: str, rates: Rates, tiles: Tiles) -> Mapped:
    """Return the fastest of a grid of tiles [products, row tiles, column tiles]."""
    legal = fits(rates.spatial, product, tiles)
    count = len(product.rows)
    seconds, dram, order = (column.reshape(count, -1) for column in _best_order(product, dataflow, rates, tiles, legal))
    index = np.argmin(np.where(seconds == seconds.min(axis=1, keepdims=True), dram, np.inf), axis=1)
    each = np.arange(count)

    def at_best(column: Array) -> Array:
        return np.asarray(np.broadcast_to(column, legal.shape).reshape(count, -1)[each, index].reshape(-1, 1, 1))

    found, orders = Tiles(**{field.name: at_best(getattr(tiles, field.name)) for field in fields(Tiles)}), order[each, index]
    ordered = list(costs(product, dataflow, rates, found))

    def in_order(name: str) -> Array:
        return np.asarray(np.choose(orders, [np.broadcast_to(getattr(cost, name), (count, 1, 1)).ravel() for cost in ordered]))

    return Mapped(
        **{field.name: in_order(field.name) for field in fields(Cost)},
        joined_s=seconds[each, index],
        dataflow=np.full(count, dataflow),
        loop_order=np.array(LOOP_ORDERS)[orders],
        tile=np.concatenate([found.rows, found.columns, found.depth], axis=2).reshape(count, 3).astype(np.int64),
    )


def _best_order(
    product: Product, dataflow: str, rates: Rates, tiles: Tiles, legal: npt.NDArray[np.bool_]
) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """Return time and memory bytes of the best loop order of each tile, and which it is; infinite times where the tile does not fit."""
    seconds, dram, order = np.full(legal.shape, np.inf), np.full(legal.shape, np.inf), np.zeros(legal.shape, dtype=np.int64)
    for index, cost in enumerate(costs(product, dataflow, rates, tiles)):
        candidate_s = np.where(legal, cost.seconds(double_buffered=rates.spatial.double_buffered), np.inf)
        better = (candidate_s < seconds) | ((candidate_s == seconds) & (cost.dram_bytes < dram))
        seconds, dram = np.where(better, candidate_s, seconds), np.where(better, cost.dram_bytes, dram)
        order[better] = index
    return seconds, dram, order


def _candidates(product: Product, rates: Rates, size: Granules, cut: Cut) -> Tiles:
    """Return the smallest tile for each number of row and column tiles, with the deepest tile that fits beside it."""
    rows, row_trips = _evenly(product.rows, size[0], tiled=cut[0])
    columns, column_trips = (part.transpose(0, 2, 1) for part in _evenly(product.columns, size[1], tiled=cut[1]))
    tiles = Tiles(
        rows=rows,
        columns=columns,
        depth=product.depth,
        row_trips=row_trips,
        column_trips=column_trips,
        depth_trips=np.ones((1, 1, 1)),
    )
    most = np.maximum(np.floor(deepest(rates.spatial, product, tiles) / size[2]), 1.0)  # where no granule fits, `fits` refuses one
    multiples = np.ceil(product.depth / size[2])
    depth = np.ceil(multiples / np.ceil(multiples / most)) * size[2]
    depth = np.where(fits(rates.spatial, product, tiles), product.depth, np.minimum(depth, product.depth))
    return replace(tiles, depth=depth, depth_trips=np.ceil(product.depth / depth))


def _evenly(sizes: Array, granule: int, *, tiled: bool) -> tuple[Array, Array]:
    """Return the smallest tile for every number of tiles, largest first, and those numbers [products, candidates, 1], some of them twice.

    With n multiples and s >= sqrt(n), each such tile is either ceil(n / q) multiples for q up to s, or at most s multiples.
    """
    if not tiled:
        return sizes, np.ones_like(sizes)
    multiples = np.ceil(sizes / granule)
    count = np.arange(1.0, _side(sizes, granule) + 1.0).reshape(1, -1, 1)
    in_tile = np.concatenate([np.ceil(multiples / count), np.minimum(count[:, ::-1], multiples)], axis=1)
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
