"""Percentiles of many resamples at once, touching only the tail.

A resample's p-th percentile is found by walking the values from the largest down and adding up how often each occurs, until
the wanted rank from the top is reached: about (1 - p) n steps instead of a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import BlockDraw, Counts, Floats, block_counts, multiplicities
from replay.assembly.percentile import rank

_CHUNK_CELLS = 1_000_000  # replicates x units held at once: 4 MB of multiplicities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """The finite values that some of the units have."""

    values: Floats
    """[k]"""
    positions: Counts
    """[k] ascending unit indices, in 0..n-1."""
    percents: tuple[float, ...]
    """The percentiles asked for."""


def resampled_percentiles(draw: BlockDraw, samples: Sequence[Sample]) -> list[Floats]:
    """Return for each sample [replicates, percents]; NaN where a resample holds no member of the sample."""
    prepared = [_Walk.of(draw, sample) for sample in samples]
    results = [np.full((draw.replicates, len(sample.percents)), np.nan) for sample in samples]
    chunk = max(1, _CHUNK_CELLS // draw.n)
    for first in range(0, draw.replicates, chunk):
        last = min(first + chunk, draw.replicates)
        weights = multiplicities(draw, first, last)
        for walk, result in zip(prepared, results, strict=True):
            walk.fill(weights, first, last, result)
    return results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    descending: Floats
    """[k] values from the largest down."""
    order: Counts
    """[k] their positions."""
    needed: Counts
    """[replicates, percents] rank from the top that each percentile has in a resample; 0 in an empty one."""

    @classmethod
    def of(cls, draw: BlockDraw, sample: Sample) -> _Walk:
        by_size = np.argsort(-sample.values, kind="stable")
        members = np.zeros(draw.n, dtype=np.bool_)
        members[sample.positions] = True
        counts = block_counts(draw, members)
        needed = np.stack([_rank_from_top(counts, percent) for percent in sample.percents], axis=1)
        return cls(descending=sample.values[by_size], order=sample.positions[by_size], needed=needed)

    def fill(self, weights: NDArray[np.int32], first: int, last: int, result: Floats) -> None:
        """Write the percentiles of the replicates first..last-1, whose multiplicities are `weights`."""
        rows = first + np.flatnonzero(self.needed[first:last, 0] > 0)
        reach = int(self.needed[rows].max(initial=0)) * 3 // 2 + 16
        while rows.size:
            reach = min(reach, len(self.order))
            occurrences = np.cumsum(weights[rows - first][:, self.order[:reach]], axis=1, dtype=np.int32)
            needed = self.needed[rows]
            done = occurrences[:, -1] >= needed.max(axis=1)
            for column in range(needed.shape[1]):
                steps = (occurrences[done] < needed[done, column, None]).sum(axis=1)
                result[rows[done], column] = self.descending[steps]
            rows, reach = rows[~done], reach * 2


def _rank_from_top(counts: Counts, percent: float) -> Counts:
    distinct, where = np.unique(counts, return_inverse=True)
    ranks = np.array([count - rank(int(count), percent) + 1 if count else 0 for count in distinct], dtype=np.int64)
    return ranks[where]
