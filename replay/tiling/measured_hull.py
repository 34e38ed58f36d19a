"""How far measured kernels lie from their model, between and beyond the shapes that were timed.

A timing is of a kernel of the same weights, heads or row length (`Hull.at`), and one point along the sizes that a step varies
(`Hull.along`). Between points, ln(measured / predicted) is interpolated linearly in the binary logarithms of those sizes, one size
after the other; several timings of one point count with their mean. Beyond the outermost points the ratio fades away within
REACH_OCTAVES, so that no cost jumps where the timings end. A row counts as measured where it lies between timed ones, at most
REACH_OCTAVES from one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pc

from replay.errors import SpecError
from replay.specs.measured import MeasuredKernels
from replay.tiling.families.decode_attention import SPLITS
from replay.tiling.families.family import Shapes
from replay.tiling.terms import Array

REACH_OCTAVES = 1.0
"""A judgement: public tables time every doubling of rows, sequences and context, and errors of the model seldom turn within one."""
SECONDS = "seconds"
OPTIONAL = (SPLITS,)
"""Columns that only a step's own shapes may have: what the mapping pins."""
PREFIX = "prefix_tokens"
"""What is cached before a prompt counts relative to the prompt: it is what makes the mean query see more keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hull:
    """Which shape columns have to be equal, and along which ones is interpolated."""

    at: tuple[str, ...]
    along: tuple[str, ...]


_HEADS = ("query_heads", "kv_heads", "head_size", "value_size", "window_tokens")
_STREAM = Hull(at=("columns", "read_bytes", "written_bytes"), along=("rows",))
_COLLECTIVE = Hull(at=("operation", "ranks", "ranks_per_node", "slowest_hop"), along=("payload_bytes",))
HULLS: Mapping[str, Hull] = {
    "gemm": Hull(at=("columns", "depth"), along=("rows",)),
    "vector_gemm": Hull(at=("columns", "depth", "count", "left_transposed", "right_transposed"), along=("rows",)),
    "experts": Hull(at=("hidden", "inter", "matrices", "choices", "experts"), along=("tokens",)),
    "prefill_attention": Hull(at=_HEADS, along=("sequences", "prompt_tokens", PREFIX)),
    "decode_attention": Hull(at=_HEADS, along=("sequences", "context_tokens")),
    **dict.fromkeys(("elementwise", "norm", "softmax", "rope", "activation", "residual_add", "quantise"), _STREAM),
    **dict.fromkeys(("ring_collective", "peer_all_reduce"), _COLLECTIVE),
}
"""By the name of the family: those that a serving step has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Timed calls: shape columns of the family [timings] and seconds [timings]."""

    shapes: Shapes
    seconds: Array
    stack: str
    """Software that was timed; empty where the tables name none."""

    def like(self, shapes: Shapes, hull: Hull) -> Timings:
        """Return the timings of kernels that equal those of `shapes` in all that is not interpolated; there may be none.

        Raises:
            SpecError: they lack a column that kernels of the family have.
        """
        lacking = [name for name in shapes if name not in self.shapes and name not in OPTIONAL]
        if lacking:
            raise SpecError("measured kernels", f"no column {lacking[0]}", "columns " + ", ".join(shapes), "make the record again")
        same = np.ones(len(self.seconds), dtype=np.bool_)
        for name in hull.at:
            same &= np.isclose(self.shapes[name], shapes[name][0], rtol=1e-6, atol=0.0)
        return replace(self, shapes={name: column[same] for name, column in self.shapes.items()}, seconds=self.seconds[same])


def timings(kernels: Sequence[MeasuredKernels]) -> Timings:
    """Return the rows of measured kernels of one family and stack as one."""
    tables = [pc.read_csv(pa.BufferReader(one.table.encode()), read_options=pc.ReadOptions(use_threads=False)) for one in kernels]
    names = tables[0].column_names
    columns = {name: np.concatenate([table[name].to_numpy().astype(np.float64) for table in tables]) for name in names}
    return Timings(seconds=columns.pop(SECONDS), shapes=columns, stack=kernels[0].stack)


def log_ratios(timed: Timings, predicted_s: Array, shapes: Shapes, hull: Hull) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return (ln of measured over predicted [rows], which rows lie inside the hull [rows]) for `shapes` [rows].

    `predicted_s` [timings] is what the model says of `timed`, at least one of them.
    """
    points, queries = (np.stack([_coordinate(name, part) for name in hull.along], axis=1) for part in (timed.shapes, shapes))
    return _between(points, np.log(timed.seconds / predicted_s), queries)


def _coordinate(name: str, shapes: Shapes) -> Array:
    if name == PREFIX:
        return np.asarray(np.log2(1.0 + shapes[PREFIX] / shapes["prompt_tokens"]))
    return np.asarray(np.log2(np.maximum(shapes[name], 1.0)))


def _between(points: Array, values: Array, queries: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return (interpolated values, whether inside) at `queries` [rows, sizes] of `values` [points] at `points` [points, sizes]."""
    levels, level = np.unique(points[:, 0], return_inverse=True)
    places, every = queries[:, 0], np.arange(len(queries))
    high = np.clip(np.searchsorted(levels, places), 1, max(len(levels) - 1, 1))
    low, high = high - 1, np.minimum(high, len(levels) - 1)
    gap = levels[high] - levels[low]
    share = np.clip((places - levels[low]) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)
    if points.shape[1] == 1:
        means = np.bincount(level, values) / np.bincount(level)
        found, inside = means[low] * (1.0 - share) + means[high] * share, np.ones(len(queries), dtype=np.bool_)
    else:
        parts = [_between(points[level == index, 1:], values[level == index], queries[:, 1:]) for index in range(len(levels))]
        heights, within = np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])
        found = heights[low, every] * (1.0 - share) + heights[high, every] * share
        inside = (within[low, every] | (share == 1.0)) & (within[high, every] | (share == 0.0))
    beyond = np.maximum(np.maximum(levels[0] - places, places - levels[-1]), 0.0)
    nearest = np.minimum(np.abs(places - levels[low]), np.abs(places - levels[high]))
    fading = np.clip(1.0 - beyond / REACH_OCTAVES, 0.0, 1.0)
    return np.asarray(found * fading), np.asarray(inside & (beyond == 0.0) & (nearest <= REACH_OCTAVES))
