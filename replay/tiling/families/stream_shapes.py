"""Shapes of streams: which rows, bytes and passes an operator's kernel has. One function an operator, each a path rule.

Every function returns the columns [shapes] that `replay.tiling.families.streams` needs. Sizes are arrays or numbers; bytes are per
element.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.tiling.families.family import Shapes
from replay.tiling.terms import Array

WARP = 32
UNIT_THREADS = 2048
"""Threads that one unit holds on the devices the rules were checked on; fitted row cycles absorb another number."""
WARP_SOFTMAX_COLUMNS = 1024
"""Longest row that PyTorch's softmax keeps in the registers of one warp (`softmax_warp_forward`)."""
SECTOR_BYTES = 32.0
"""Smallest piece that device memory delivers."""

Size = Array | float | int


def elementwise(elements: Size, *, inputs: float, outputs: float = 1.0, element_bytes: float) -> Shapes:
    """Return shapes of a kernel over `elements` that reads `inputs` tensors and writes `outputs` of them."""
    return _columns(elements, 1.0, inputs * element_bytes, outputs * element_bytes)


def norm(rows: Size, columns: Size, *, element_bytes: float, row_threads: int = 128) -> Shapes:
    """Return shapes of a layer or RMS norm: statistics in a first pass, the result in a second that reads the row again."""
    return _rowwise(_columns(rows, columns, element_bytes, element_bytes), passes=1.0, row_threads=row_threads)


def softmax(rows: Size, columns: Size, *, element_bytes: float) -> Shapes:
    """Return shapes of a softmax over the last dimension, by PyTorch's rule.

    Up to 1024 columns one warp holds a row in registers, padded to a power of two, and reads it once. Longer rows are walked
    three times (maximum, sum, result) by a block of 256 threads, of 512 above 2048 columns.
    """
    base = _columns(rows, columns, element_bytes, element_bytes)
    short = base["columns"] <= WARP_SOFTMAX_COLUMNS
    threads = np.where(short, WARP, np.where(base["columns"] <= 2 * WARP_SOFTMAX_COLUMNS, 256, 512))
    padded = 2.0 ** np.ceil(np.log2(base["columns"]))
    return {
        **base,
        "work_columns": np.where(short, padded, base["columns"]),
        "passes": np.where(short, 0.0, 2.0),
        "rows_per_unit": UNIT_THREADS / threads,
    }


def rope(tokens: Size, heads: Size, head_size: Size, *, element_bytes: float, row_threads: int = 1024) -> Shapes:
    """Return shapes of a rotary embedding of `heads` query and key heads a token, in place."""
    columns = np.asarray(heads, dtype=np.float64) * head_size
    return _rowwise(_columns(tokens, columns, element_bytes, element_bytes), passes=0.0, row_threads=row_threads)


def gated_activation(tokens: Size, columns: Size, *, gates: Size = 1.0, element_bytes: float, row_threads: int = 1024) -> Shapes:
    """Return shapes of an activation with `columns` results a token; each reads `gates` + 1 elements (0 gates: a plain one)."""
    base = _columns(tokens, columns, (np.asarray(gates, dtype=np.float64) + 1.0) * element_bytes, element_bytes)
    return _rowwise(base, passes=0.0, row_threads=row_threads)


def residual_add(tokens: Size, columns: Size, *, element_bytes: float, row_threads: int = 1024) -> Shapes:
    """Return shapes of adding two tensors of `columns` elements a token."""
    return _rowwise(_columns(tokens, columns, 2.0 * element_bytes, element_bytes), passes=0.0, row_threads=row_threads)


def embedding(tokens: Size, columns: Size, *, element_bytes: float) -> Shapes:
    """Return shapes of looking up a row of `columns` elements for each token."""
    return _columns(tokens, columns, element_bytes, element_bytes)


def quantise(rows: Size, columns: Size, *, from_bytes: float, to_bytes: float, row_threads: int = 256) -> Shapes:
    """Return shapes of converting elements between formats (either way), one block of threads a row."""
    return _rowwise(_columns(rows, columns, from_bytes, to_bytes), passes=0.0, row_threads=row_threads)


def transform(elements: Size, *, element_bytes: float, read_run_bytes: Size, written_run_bytes: Size) -> Shapes:
    """Return shapes of a layout change (transpose, NCHW to NHWC).

    A run is what lies together on one side. Memory moves whole sectors of 32 bytes, so that a run that ends inside one wastes
    its rest: runs of 2 bytes cost 16 times their bytes.
    """
    return _columns(elements, 1.0, element_bytes * _sector_ratio(read_run_bytes), element_bytes * _sector_ratio(written_run_bytes))


def _sector_ratio(run_bytes: Size) -> Array:
    run = np.asarray(run_bytes, dtype=np.float64)
    return np.asarray(np.ceil(run / SECTOR_BYTES) * SECTOR_BYTES / run)


def _columns(rows: Size, columns: Size, read_bytes: Size, written_bytes: Size) -> dict[str, Array]:
    parts = np.broadcast_arrays(*(np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in (rows, columns, read_bytes, written_bytes)))
    names = ("rows", "columns", "read_bytes", "written_bytes")
    return {name: np.array(part) for name, part in zip(names, parts, strict=True)}


def _rowwise(base: dict[str, Array], *, passes: float, row_threads: int) -> Shapes:
    like: npt.NDArray[np.float64] = np.ones(len(base["rows"]))
    return {**base, "work_columns": base["columns"], "passes": passes * like, "rows_per_unit": UNIT_THREADS / row_threads * like}
