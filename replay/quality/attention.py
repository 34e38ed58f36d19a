"""Causal attention of a few query rows over cached keys and values, whole or in parts of the keys that are joined afterwards."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from replay.quality.elements import Element, Values

_ROWS = 256
"""Query rows worked on at once, which bounds the scores that are held."""


def attend(queries: Values, keys: Values, values: Values, *, window: int | None, parts: int, stored: Element | None) -> Values:
    """Return the outputs [rows, heads * size] of queries [rows, heads, size] that are the last of keys and values [tokens, kv heads, size].

    Weights are rounded to `stored` before they multiply values, as one streaming kernel does; `parts` ranges of the keys have maxima and
    sums of their own (FlashDecoding).
    """
    before = len(keys) - len(queries)
    pieces = []
    for first in range(0, len(queries), _ROWS):
        rows = queries[first : first + _ROWS]
        seen = before + first + len(rows)
        pieces.append(_rows(rows, keys[:seen], values[:seen], window, parts, stored))
    return np.concatenate(pieces)


def _rows(queries: Values, keys: Values, values: Values, window: int | None, parts: int, stored: Element | None) -> Values:
    count, heads, size = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.reshape(count, kv_heads, heads // kv_heads, size).transpose(1, 2, 0, 3).reshape(kv_heads, -1, size)
    positions = len(keys) - count + np.arange(count)
    edges = np.linspace(0, len(keys), min(parts, len(keys)) + 1).astype(int)
    joined: tuple[Values, Values, Values] | None = None
    for start, end in itertools.pairwise(edges.tolist()):
        tokens = np.arange(start, end)
        seen = tokens[None, :] <= positions[:, None]
        if window is not None:
            seen &= tokens[None, :] > positions[:, None] - window
        part = _part(grouped, keys[start:end], values[start:end], np.tile(seen, (heads // kv_heads, 1)), stored)
        joined = part if joined is None else _join(joined, part)
    assert joined is not None
    _, sums, outputs = joined
    with np.errstate(invalid="ignore"):
        found = (outputs / sums).reshape(kv_heads, heads // kv_heads, count, size)
    return np.ascontiguousarray(found.transpose(2, 0, 1, 3)).reshape(count, heads * size)


def _part(
    queries: Values, keys: Values, values: Values, seen: npt.NDArray[np.bool_], stored: Element | None
) -> tuple[Values, Values, Values]:
    """Return maxima, sums and weighted values of one range of keys [kv heads, rows, 1 or size]."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = queries @ keys.transpose(1, 2, 0) / np.float32(np.sqrt(queries.shape[-1]))
        scores = np.where(seen, scores, np.float32(-np.inf))
        most = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(most), np.float32(0), most))
        sums = weights.sum(axis=-1, keepdims=True)
        return most, sums, (weights if stored is None else stored.stored(weights)) @ values.transpose(1, 0, 2)


def _join(one: tuple[Values, Values, Values], other: tuple[Values, Values, Values]) -> tuple[Values, Values, Values]:
    most = np.maximum(one[0], other[0])
    with np.errstate(invalid="ignore"):
        shrunk = [np.where(np.isneginf(part[0]), np.float32(0), np.exp(part[0] - most)) for part in (one, other)]
    return most, one[1] * shrunk[0] + other[1] * shrunk[1], one[2] * shrunk[0] + other[2] * shrunk[1]
