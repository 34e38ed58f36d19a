"""What systolic arrays do with a product: cycles, and traffic between arrays and buffers, by what stays in place.

A product of rows x depth inputs and depth x columns weights is cut into *folds* that fill an array of R x C cells; through each
fold the third dimension streams:

================= ============ =========== =========
in place          array rows   columns     streams
================= ============ =========== =========
weight_stationary depth        columns     rows
output_stationary rows         columns     depth
input_stationary  depth        rows        columns
================= ============ =========== =========

A fold with a stream of T takes 2 R + C + T - 2 cycles: R to load the stationary values (or to drain the results), R + C - 2 for the
skew, and T (Samajdar et al. 2020, "A Systematic Methodology for Characterizing Scalability of DNN Accelerators using SCALE-Sim",
section III). With a second stationary value in every cell, folds follow one another after max(T, R) cycles, and only the first one
is filled and the last one drained (Jouppi et al. 2017, section 2: 256 cycles hidden behind the previous tile).

A cell that multiplies `lanes` narrow pairs a clock takes that many neighbours along the depth. Arrays side by side take different folds;
where rows or columns stream, they may also share a fold's stream. Arrays that hold the same stationary values are fed by one read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import SpatialSpec
from replay.tiling.spatial.formats import CellFormat
from replay.tiling.terms import Array

Granules = tuple[int, int, int]
"""Rows, columns and depth that a tile is cut to multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Products of rows x depth inputs and depth x columns weights; all columns have one shape, [rows] or one that broadcasts with tiles."""

    rows: Array
    columns: Array
    depth: Array
    repeats: Array
    """Products of these sizes with operands of their own: groups of a convolution, heads."""
    input_density: Array
    """Input elements that differ over rows x depth: below 1 where neighbouring pixels of a convolution share inputs."""
    halo_elements: Array
    """Input elements that two neighbouring row tiles both read."""
    uncut_rows: Array
    """Row tiles that share nothing: images."""
    format: CellFormat

    @property
    def words(self) -> Array:
        """Depth in what a cell multiplies per clock."""
        return np.asarray(np.ceil(self.depth / self.format.lanes))

    @property
    def multiplies(self) -> Array:
        """Multiply-accumulates that the definition needs."""
        return self.rows * self.columns * self.depth * self.repeats

    def grid(self, where: npt.NDArray[np.int64] | slice) -> Product:
        """Return some of the products, as columns that broadcast with a grid [products, nests, row tiles, column tiles]."""
        return replace(self, **{name: getattr(self, name)[where].reshape(-1, 1, 1, 1) for name in _COLUMNS})


_COLUMNS = tuple(field.name for field in fields(Product) if field.name != "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles of products and how many cover each dimension."""

    rows: Array
    columns: Array
    depth: Array
    row_trips: Array
    column_trips: Array
    depth_trips: Array


def granules(dataflow: str, spatial: SpatialSpec, cell: CellFormat) -> Granules:
    """Return what tiles are multiples of: an array's edges where folds lie, and for the stream what the arrays share evenly."""
    edge, width = spatial.array_rows_count, spatial.array_columns_count
    shared = math.lcm(edge, spatial.arrays_count)
    deep = edge * max(1, int(cell.lanes))
    return {
        "weight_stationary": (shared, width, deep),
        "output_stationary": (edge, width, deep),
        "input_stationary": (width, shared, deep),
    }[dataflow]


def array_cycles(dataflow: str, spatial: SpatialSpec, product: Product, tiles: Tiles) -> Array:
    """Return the clock cycles of the arrays for all tiles of each product."""
    edge, width = spatial.array_rows_count, spatial.array_columns_count
    if dataflow == "output_stationary":
        down, across = product.rows, product.columns
        length, tile, trips = product.words, np.ceil(tiles.depth / product.format.lanes), tiles.depth_trips
        sharing = [1]
    else:
        by_rows = dataflow == "weight_stationary"
        down, across = product.words, product.columns if by_rows else product.rows
        length, tile, trips = (
            (product.rows, tiles.rows, tiles.row_trips) if by_rows else (product.columns, tiles.columns, tiles.column_trips)
        )
        sharing = [count for count in range(1, spatial.arrays_count + 1) if spatial.arrays_count % count == 0]
    folds = np.ceil(down / edge) * np.ceil(across / width) * product.repeats
    last = length - (trips - 1.0) * tile
    cycles = [_cycles(spatial, np.ceil(folds * arrays / spatial.arrays_count), tile / arrays, last / arrays, trips) for arrays in sharing]
    return np.asarray(np.minimum.reduce(cycles))


def _cycles(spatial: SpatialSpec, rounds: Array, tile: Array, last: Array, trips: Array) -> Array:
    """Return the cycles of `rounds` folds on one array, each with `trips` streams of `tile`, the last one shorter."""
    edge, skew = spatial.array_rows_count, 2.0 * spatial.array_rows_count + spatial.array_columns_count - 2.0
    last = np.ceil(last)
    if not spatial.folds_overlap:
        return np.asarray(rounds * (trips * skew + (trips - 1.0) * tile + last))
    # A single short stream ends before the load that it would have hidden.
    unhidden = np.where(trips == 1.0, np.maximum(edge - last, 0.0), 0.0)
    return np.asarray(rounds * ((trips - 1.0) * np.maximum(tile, edge) + np.maximum(last, edge)) + skew - unhidden)


def array_traffic(dataflow: str, spatial: SpatialSpec, product: Product, tiles: Tiles) -> dict[str, Array]:
    """Return the bytes that arrays read from and write to the buffer of each operand.

    What streams is read once for each fold across it, what stays once for each tile of the stream. Partial sums are written for every
    fold over the depth, and read back for every one but the first.
    """
    edge, width = spatial.array_rows_count, spatial.array_columns_count
    inputs = product.rows * product.depth * product.format.element_bytes * product.repeats
    weights = product.columns * product.depth * product.format.element_bytes * product.repeats
    sums = product.rows * product.columns * spatial.accumulator_bytes * product.repeats
    if dataflow == "output_stationary":
        input_reads, weight_reads, partial = np.ceil(product.columns / width), np.ceil(product.rows / edge), tiles.depth_trips
    else:
        partial = np.ceil(product.words / edge)
        input_reads, weight_reads = np.ceil(product.columns / width), tiles.row_trips
        if dataflow == "input_stationary":
            input_reads, weight_reads = tiles.column_trips, np.ceil(product.rows / width)
    return {"inputs": inputs * input_reads, "weights": weights * weight_reads, "outputs": sums * (2.0 * partial - 1.0)}


def stationary_bytes(dataflow: str, spatial: SpatialSpec, product: Product) -> Array:
    """Return the bytes of one fold's stationary values, which no stream of the same product hides."""
    edge, width = float(spatial.array_rows_count), float(spatial.array_columns_count)
    if dataflow == "output_stationary":
        return np.minimum(product.rows, edge) * np.minimum(product.columns, width) * product.format.element_bytes
    across = product.columns if dataflow == "weight_stationary" else product.rows
    return np.minimum(product.depth, edge * product.format.lanes) * np.minimum(across, width) * product.format.element_bytes
