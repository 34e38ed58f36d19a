"""Matrix products whose sums are kept in a narrow accumulator, cut short at intervals, or taken in parts.

On a device a product of depth K is summed step by step: each step's products are added up exactly and then added to an accumulator of
limited width. Hopper's fp8 units keep about 14 bits of it (DeepSeek-V3 report, arXiv 2412.19437, section 3.5.2), which is why kernels add
it to an fp32 sum after an interval of the depth. Split-K takes the depth in parts and adds their sums.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from replay.quality.elements import ELEMENTS, Values

STEP = 32
"""Depth of one step of an accumulator: of an 8-bit matrix instruction."""
ACCUMULATORS = ("fp32", "fp22", "bf16", "fp16")
"""`fp22` has 13 bits of fraction and cuts off what is below, the others round to nearest."""
_FP22_MASK = np.uint32(0xFFFFFC00)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """How the sums of a product are kept."""

    width: str = "fp32"
    interval: int | None = None
    """Depth after which a narrow accumulator is added to an fp32 sum; None: only at the end."""

    def __str__(self) -> str:
        return self.width if self.interval is None else f"{self.width} added to fp32 every {self.interval}"


WIDE = Accumulation()


def product(rows: Values, weights: Values, accumulation: Accumulation = WIDE, parts: int = 1) -> Values:
    """Return rows [n, K] times weights [m, K] transposed -> [n, m]; `parts` ranges of K are summed on their own and then added in order."""
    depth = rows.shape[1]
    if parts == 1:
        return _sum(rows, weights, accumulation)
    edges = np.linspace(0, depth, min(parts, depth) + 1).astype(int).tolist()
    total: Values | None = None
    for first, last in itertools.pairwise(edges):
        part = _sum(rows[:, first:last], weights[:, first:last], accumulation)
        total = part if total is None else total + part
    assert total is not None
    return total


def _sum(rows: Values, weights: Values, accumulation: Accumulation) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        if accumulation.width == "fp32":
            return rows @ weights.T
        depth = rows.shape[1]
        total = np.zeros((len(rows), len(weights)), dtype=np.float32)
        interval = accumulation.interval or depth
        for start in range(0, depth, interval):
            kept = np.zeros_like(total)
            end = min(depth, start + interval)
            for step in range(start, end, STEP):
                stop = min(end, step + STEP)
                kept = _narrowed(kept + rows[:, step:stop] @ weights[:, step:stop].T, accumulation.width)
            total += kept
    return total


def _narrowed(values: Values, width: str) -> Values:
    if width == "fp22":
        return (np.ascontiguousarray(values).view(np.uint32) & _FP22_MASK).view(np.float32)
    return ELEMENTS[width].stored(values)
