"""What moves between device memory and buffers, and which tiles the buffers hold.

Each operand moves once, or once for every trip of the loop it does not depend on (see `nests`). Results that leave before the depth is
done do so as partial sums and come back. Two neighbouring row tiles of a convolution both read the pixels between them - the halo - up
to what the unfolded product would read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay.specs.hardware import BufferSpec, SpatialSpec
from replay.tiling.spatial.dataflow import Product, Tiles
from replay.tiling.spatial.nests import OPERANDS, Flags, Nests
from replay.tiling.terms import Array


def memory_traffic(nests: Nests, spatial: SpatialSpec, product: Product, tiles: Tiles) -> dict[str, Array]:
    """Return the bytes of each operand that move between device memory and its buffer."""
    element_bytes = product.format.element_bytes
    read_trips = np.where(nests.whole_rows_of_inputs, 1.0, tiles.row_trips)
    inputs = _inputs_once(product, read_trips) * (element_bytes * product.repeats)
    weights = product.columns * product.depth * (element_bytes * product.repeats)
    returning = np.where(nests.sums_leave, tiles.depth_trips - 1.0, 0.0)
    return {
        "inputs": inputs * np.where(nests.inputs_again, tiles.column_trips, 1.0),
        "weights": weights * np.where(nests.weights_again, tiles.row_trips, 1.0),
        "outputs": product.rows * product.columns * product.repeats * (element_bytes + 2.0 * spatial.accumulator_bytes * returning),
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


def fits(nests: Nests, spatial: SpatialSpec, product: Product, tiles: Tiles) -> Flags:
    """Return whether every buffer holds what its operands keep there."""
    slices = _slices(nests, spatial, product, tiles)
    held = {
        "inputs": slices["inputs"] * np.where(nests.whole_depth_of_inputs, product.depth, tiles.depth),
        "weights": slices["weights"] * np.where(nests.whole_depth_of_weights, product.depth, tiles.depth),
        "outputs": slices["outputs"],
    }
    within = [_sum(held, operands) <= buffer.bytes for buffer, operands in buffer_groups(spatial)]
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*within)))


def deepest(nests: Nests, spatial: SpatialSpec, product: Product, tiles: Tiles) -> Array:
    """Return how deep tiles of these rows and columns may be, where the depth is cut; below 1 where the buffers hold none of them."""
    slices = _slices(nests, spatial, product, replace(tiles, depth_trips=np.full((1, 1, 1, 1), 2.0)))
    whole = {"inputs": nests.whole_depth_of_inputs, "weights": nests.whole_depth_of_weights}
    fixed = {operand: np.where(flags, slices[operand] * product.depth, 0.0) for operand, flags in whole.items()}
    growing = {operand: np.where(flags, 0.0, slices[operand]) for operand, flags in whole.items()}
    depth: Array = np.full((1, 1, 1, 1), np.inf)
    for buffer, operands in buffer_groups(spatial):
        left = buffer.bytes - _sum({**fixed, "outputs": slices["outputs"]}, operands)
        slope = _sum({**growing, "outputs": np.zeros(1)}, operands)
        unbound = np.where(left >= 0.0, np.inf, 0.0)
        depth = np.minimum(depth, np.where(slope > 0.0, left / np.where(slope > 0.0, slope, 1.0), unbound))
    return depth


def _slices(nests: Nests, spatial: SpatialSpec, product: Product, tiles: Tiles) -> dict[str, Array]:
    """Return the bytes that operands take in their buffers: of inputs and weights for one element of the depth, of results in all.

    They are doubled where the next part is loaded (or the last one written) beside the current one, unless there is only one part.
    """
    one_row, one_column, one_depth = (trips == 1.0 for trips in (tiles.row_trips, tiles.column_trips, tiles.depth_trips))
    all_rows, all_columns = nests.whole_rows_of_inputs | one_row, nests.whole_columns_of_weights | one_column
    overlap = np.where(all_rows, 0.0, product.halo_elements / product.depth)
    rows = np.where(nests.whole_rows_of_inputs, product.rows, tiles.rows)
    columns = np.where(nests.whole_columns_of_weights, product.columns, tiles.columns)
    result_rows = np.where(nests.whole_rows_of_outputs, product.rows, tiles.rows)
    result_columns = np.where(nests.whole_columns_of_outputs, product.columns, tiles.columns)
    parts = {
        "inputs": all_rows & (nests.whole_depth_of_inputs | one_depth),
        "weights": all_columns & (nests.whole_depth_of_weights | one_depth),
        "outputs": (nests.whole_rows_of_outputs | one_row) & (nests.whole_columns_of_outputs | one_column),
    }
    bytes_once = {
        "inputs": np.minimum(rows * product.input_density + overlap, rows) * product.format.element_bytes,
        "weights": columns * product.format.element_bytes,
        "outputs": result_rows * result_columns * spatial.accumulator_bytes,
    }
    if not spatial.double_buffered:
        return bytes_once
    return {operand: bytes_once[operand] * np.where(only & (product.repeats == 1.0), 1.0, 2.0) for operand, only in parts.items()}


def _sum(amounts: dict[str, Array], operands: tuple[str, ...]) -> Array:
    return sum((amounts[operand] for operand in operands), np.zeros(1))
