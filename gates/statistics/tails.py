"""Percentiles of many resamples at once, touching only the tail.

A resample's p-th percentile is found by walking the values from the largest down and adding up how often each occurs, until
the wanted rank from the top is reached: about (1 - p) n steps instead of a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gates.statistics.blocks import BlockDraw, Counts, Floats, block_counts, multiplicities
from gates.statistics.tail_walk import walk_tails
from replay.assembly.percentile import ranks

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
    walks = [_Walk.of(draw, sample) for sample in samples]
    results = [np.full((draw.replicates, len(sample.percents)), np.nan) for sample in samples]
    chunk = max(1, _CHUNK_CELLS // draw.n)
    for first in range(0, draw.replicates, chunk):
        last = min(first + chunk, draw.replicates)
        weights = multiplicities(draw, first, last)
        for walk, result in zip(walks, results, strict=True):
            walk_tails(weights, walk.order, walk.descending, walk.needed[first:last], result[first:last])
    return results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    descending: Floats
    """[k] values from the largest down."""
    order: Counts
    """[k] their positions."""
    needed: Counts
    """[replicates, percents] place from the top that each percentile has in a resample; 0 in an empty one."""

    @classmethod
    def of(cls, draw: BlockDraw, sample: Sample) -> _Walk:
        by_size = np.argsort(-sample.values, kind="stable")
        members = np.zeros(draw.n, dtype=np.bool_)
        members[sample.positions] = True
        counts = block_counts(draw, members)
        needed = np.stack([_ranks_from_top(counts, percent) for percent in sample.percents], axis=1)
        return cls(descending=sample.values[by_size], order=sample.positions[by_size], needed=needed)


def _ranks_from_top(counts: Counts, percent: float) -> Counts:
    """Return the places, counted from the largest value, of the percentile in samples of these sizes; 0 for an empty sample."""
    return np.where(counts > 0, counts - ranks(counts, percent) + 1, 0)
