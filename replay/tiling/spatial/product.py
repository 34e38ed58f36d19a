"""Products and convolutions on systolic arrays: the door."""

from __future__ import annotations

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import Shapes
from replay.tiling.spatial.choice import SpatialChoice, choose
from replay.tiling.spatial.dataflow import Product
from replay.tiling.spatial.formats import cell_format
from replay.tiling.spatial.search import Tile
from replay.tiling.terms import Array


def spatial_product(
    device: HardwareSpec,
    rows: Array,
    columns: Array,
    depth: Array,
    *,
    element_bytes: float,
    repeats: float | Array = 1.0,
    dataflow: str | None = None,
    tile: Tile | None = None,
) -> SpatialChoice:
    """Return the fastest mapping of products of rows x depth inputs and depth x columns weights, broadcast to [rows].

    `repeats` counts products with operands of their own. A dataflow or a tile (rows, columns, depth; of a smaller product the whole)
    that is asked for is taken as it is; the free choice is never slower than any that could be asked for.

    Raises:
        SpecError: the device has no arrays or no rate for elements of this width, a size is below 1, the arrays do not know the dataflow,
            the tile is no multiple of their edges, or the buffers hold no such tile - or, left free, none at all.
    """
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (rows, columns, depth, repeats)), np.ones(1))
    product = Product(
        rows=sizes[0],
        columns=sizes[1],
        depth=sizes[2],
        repeats=sizes[3],
        input_density=np.ones(len(sizes[0])),
        halo_elements=np.zeros(len(sizes[0])),
        uncut_rows=np.ones(len(sizes[0])),
        format=cell_format(device, element_bytes),
    )
    return choose(device, product, dataflow=dataflow, tile=tile)


def spatial_convolution(
    device: HardwareSpec, shapes: Shapes, *, element_bytes: float, dataflow: str | None = None, tile: Tile | None = None
) -> SpatialChoice:
    """Return the fastest mapping of convolutions [rows] as products of pixels x (channels x filter) and filters, one product per group.

    `shapes` are those of `families.convolution.convolution_shapes`. Inputs are unfolded on their way from the buffer to the arrays:
    device memory and buffers hold each pixel once, beside the pixels that two neighbouring tiles both need. A tile counts result pixels,
    filters of a group, and channels of a group times filter size.

    Raises:
        SpecError: as `spatial_product`.
    """
    groups, pixels = shapes["groups"], shapes["images"] * shapes["result_rows"] * shapes["result_columns"]
    channels, taps = shapes["channels"] / groups, shapes["filter_rows"] * shapes["filter_columns"]
    touched_rows = _touched(shapes["rows"], shapes["result_rows"], shapes["filter_rows"], shapes["row_stride"])
    touched_columns = _touched(shapes["columns"], shapes["result_columns"], shapes["filter_columns"], shapes["column_stride"])
    overlap = np.minimum(np.maximum(shapes["filter_rows"] - shapes["row_stride"], 0.0), touched_rows)
    product = Product(
        rows=pixels,
        columns=shapes["filters"] / groups,
        depth=channels * taps,
        repeats=groups,
        input_density=np.minimum(shapes["images"] * touched_rows * touched_columns / (pixels * taps), 1.0),
        halo_elements=overlap * touched_columns * channels,
        uncut_rows=shapes["images"],
        format=cell_format(device, element_bytes),
    )
    return choose(device, product, dataflow=dataflow, tile=tile)


def _touched(size: Array, results: Array, taps: Array, stride: Array) -> Array:
    """Return how many of `size` input lines the filter reads: those between two strides of a smaller filter stay out."""
    return np.asarray(np.minimum(size, results * np.minimum(taps, stride) + np.maximum(taps - stride, 0.0)))
