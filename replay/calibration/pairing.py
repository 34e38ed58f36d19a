"""Rows of two sets of measurements that time the same shapes, and shapes that ranks split in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from replay.tiling.families.family import Shapes

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SPLIT_COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "gemm": (("columns",), ("depth",)),
    "experts": (("inter",),),
    "prefill_attention": (("query_heads", "kv_heads"),),
    "decode_attention": (("query_heads", "kv_heads"),),
}
"""By family, the columns that halve together where twice as many ranks share an operator."""


def equal_shapes(before: Shapes, later: Shapes, rows: tuple[Mask, Mask]) -> Rows:
    """Return [pairs, 2] places of rows with equal shapes, among the chosen `rows` of each ([rows], [rows])."""
    names = sorted(set(before) & set(later))
    return _matches(_keys(before, names, rows[0]), _keys(later, names, rows[1]), rows)


def split_shapes(family: str, shapes: Shapes, rows: Mask) -> Rows:
    """Return [pairs, 2] places of rows that differ in one split alone (SPLIT_COLUMNS): the second is the whole, the first its half."""
    found = []
    for halved in SPLIT_COLUMNS.get(family, ()):
        names = sorted(shapes)
        if not set(halved) <= set(names):
            continue
        doubled = [2.0 if name in halved else 1.0 for name in names]
        halves = [tuple(np.multiply(key, doubled).tolist()) for key in _keys(shapes, names, rows)]
        found.append(_matches(halves, _keys(shapes, names, rows), (rows, rows)))
    return np.concatenate(found) if found else np.zeros((0, 2), dtype=np.int64)


def _matches(before: Sequence[tuple[float, ...]], later: Sequence[tuple[float, ...]], rows: tuple[Mask, Mask]) -> Rows:
    index = dict(zip(before, np.flatnonzero(rows[0]).tolist(), strict=True))
    places = np.flatnonzero(rows[1]).tolist()
    found = [(index[key], place) for place, key in zip(places, later, strict=True) if key in index]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _keys(shapes: Shapes, names: Sequence[str], rows: Mask) -> list[tuple[float, ...]]:
    columns = [np.broadcast_to(np.asarray(shapes[name], dtype=float), rows.shape)[rows].tolist() for name in names]
    return list(zip(*columns, strict=True))
