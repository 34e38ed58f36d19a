"""What moves between device memory and buffers, and which tiles the buffers hold.

Three nested loops run over tiles of rows, columns and depth. What the innermost one keeps in its buffer is read once: results with
depth innermost, weights with rows, inputs with columns; each other operand is moved again for every trip around the loop it does not
depend on. (Where a loop has a single trip, some nests move less than this says of them; another of the three then moves as little.)
Results that leave before the depth is done do so as partial sums and come back.

The last element of what is read twice by neighbouring row tiles of a convolution - the halo - is read again for every cut, up to what
the unfolded product would read.
"""

from __future__ import annotations

import numpy as np

from replay.specs.hardware import BufferSpec, SpatialSpec
from replay.tiling.spatial.dataflow import Product, Tiles
from replay.tiling.terms import Array

LOOP_ORDERS = ("depth_innermost", "rows_innermost", "columns_innermost")
OPERANDS = ("inputs", "weights", "outputs")


def memory_traffic(order: str, spatial: SpatialSpec, product: Product, tiles: Tiles) -> dict[str, Array]:
    """Return the bytes of each operand that move between device memory and buffers under a loop order."""
    inputs = _inputs_once(product, tiles.row_trips) * product.format.element_bytes * product.repeats
    weights = product.columns * product.depth * product.format.element_bytes * product.repeats
    results = product.rows * product.columns * product.repeats
    spills = 0.0 if order == "depth_innermost" else 2.0 * (tiles.depth_trips - 1.0) * spatial.accumulator_bytes
    return {
        "inputs": inputs if order == "columns_innermost" else inputs * tiles.column_trips,
        "weights": weights if order == "rows_innermost" else weights * tiles.row_trips,
        "outputs": results * (product.format.element_bytes + spills),
    }


def _inputs_once(product: Product, row_trips: Array) -> Array:
    """Return the input elements of one pass over all row tiles."""
    unfolded = product.rows * product.depth
    cuts = np.maximum(row_trips - product.uncut_rows, 0.0)
    return np.asarray(np.minimum(unfolded * product.input_density + cuts * product.halo_elements, unfolded))


def buffer_groups(spatial: SpatialSpec) -> list[tuple[BufferSpec, tuple[str, ...]]]:
    """Return each buffer with the operands that it holds."""
    holders = {operand: operand if operand in spatial.buffers else "shared" for operand in OPERANDS}
    return [(buffer, tuple(operand for operand in OPERANDS if holders[operand] == name)) for name, buffer in spatial.buffers.items()]


def held_bytes(spatial: SpatialSpec, product: Product, tiles: Tiles) -> dict[str, Array]:
    """Return the bytes that tiles of each operand take in its buffer: twice a tile where the next one is loaded beside it."""
    whole_depth = (tiles.depth_trips == 1.0) & (product.repeats == 1.0)
    outputs = tiles.rows * tiles.columns * spatial.accumulator_bytes
    single = (tiles.row_trips * tiles.column_trips * product.repeats) == 1.0
    return {
        "inputs": _input_slice(product, tiles.rows) * tiles.depth * _copies(spatial, whole_depth & (tiles.row_trips == 1.0)),
        "weights": tiles.columns * product.format.element_bytes * tiles.depth * _copies(spatial, whole_depth & (tiles.column_trips == 1.0)),
        "outputs": outputs * _copies(spatial, single),
    }


def deepest(spatial: SpatialSpec, product: Product, tiles: Tiles) -> Array:
    """Return how deep tiles of these rows and columns may be, where the depth is cut; below 1 where the buffers hold none of them."""
    copies = 2.0 if spatial.double_buffered else 1.0
    per_element = {"inputs": _input_slice(product, tiles.rows), "weights": tiles.columns * product.format.element_bytes}
    outputs = held_bytes(spatial, product, tiles)["outputs"]
    depth: Array = np.full(outputs.shape, np.inf)
    for buffer, operands in buffer_groups(spatial):
        room = buffer.bytes - (outputs if "outputs" in operands else 0.0)
        cut = [per_element[operand] * copies for operand in operands if operand in per_element]
        depth = np.minimum(depth, room / sum(cut) if cut else np.where(room >= 0.0, np.inf, 0.0))
    return depth


def fits(spatial: SpatialSpec, product: Product, tiles: Tiles) -> Array:
    """Return whether every buffer holds its operands' tiles."""
    held = held_bytes(spatial, product, tiles)
    within = [sum((held[operand] for operand in operands), np.zeros(1)) <= buffer.bytes for buffer, operands in buffer_groups(spatial)]
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*within)))


def _input_slice(product: Product, rows: Array) -> Array:
    """Return the bytes of a row tile's inputs for one element of the depth."""
    overlap = product.halo_elements / product.depth
    return np.asarray(np.minimum(rows * product.input_density + overlap, rows) * product.format.element_bytes)


def _copies(spatial: SpatialSpec, only_one: Array) -> Array:
    return np.where(only_one | (not spatial.double_buffered), 1.0, 2.0)
