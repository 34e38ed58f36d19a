"""Percentiles of many resamples at once, touching only the tail.

A resample's p-th percentile is found by walking the values from the largest down and adding up how often each occurs, until
the wanted rank from the top is reached. The first resamples walk the whole tail; they show the band of values in which the others'
percentiles lie, so that these count what is above the band block by block and walk the band alone. A resample whose percentile is
outside is done again without a band.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gates.statistics.blocks import BlockDraw, Counts, Floats
from gates.statistics.tail_walk import Slots, Words, count_members, walk_bands
from replay.assembly.percentile import ranks

_SPARE, _FEWEST = 1.25, 64
"""Units kept above what a resample needs on average: enough for nearly all resamples of traffic without bursts."""
_PILOT = 200
"""Resamples that show where the others' percentiles lie."""
_WORTH_THREADS = 1_000_000
"""Blocks to be walked over all samples from which starting threads costs less than it saves."""


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
    blocks = _Blocks(n=draw.n, starts=draw.starts.astype(np.int32), lengths=draw.lengths)
    keys = [sample.positions.tobytes() for sample in samples]
    sizes = {key: blocks.sizes(sample.positions) for key, sample in dict(zip(keys, samples, strict=True)).items()}
    if len(samples) * blocks.starts.size < _WORTH_THREADS:
        return [_percentiles(blocks, sample, sizes[key]) for sample, key in zip(samples, keys, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda sample, key: _percentiles(blocks, sample, sizes[key]), samples, keys))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocks:
    """A draw in the narrow integers that the walk reads."""

    n: int
    starts: Slots
    lengths: Counts

    def sizes(self, positions: Counts) -> Counts:
        """Return [replicates] the number of members in each resample."""
        result = np.full(len(self.starts), self.n, dtype=np.int64)
        if len(positions) < self.n:
            count_members(self.starts, self.lengths, self.n, *_marks(self.n, positions), result)
        return result


def _percentiles(blocks: _Blocks, sample: Sample, sizes: Counts) -> Floats:
    """Return [replicates, percents], two percentiles at a time: an odd one is its own neighbour."""
    percents = sample.percents + sample.percents[-1:] * (len(sample.percents) % 2)
    pairs = [_two_percentiles(blocks, sample, sizes, percents[first : first + 2]) for first in range(0, len(percents), 2)]
    found: Floats = np.concatenate(pairs, axis=1)[:, : len(sample.percents)]
    return found


def _two_percentiles(blocks: _Blocks, sample: Sample, sizes: Counts, percents: tuple[float, ...]) -> Floats:
    """Return [replicates, 2]: a few resamples walk all values above a cut, the others a band around what those found."""
    needed = np.stack([np.where(sizes > 0, sizes - ranks(sizes, percent) + 1, 0) for percent in percents], axis=1)
    result = np.full(needed.shape, np.nan)
    rows = np.flatnonzero(sizes > 0)
    pilot, rest = rows[:_PILOT], rows[_PILOT:]
    tail = _Tail.of(sample, int(_SPARE * needed.mean(axis=0).max()) + _FEWEST)
    places, tail = _walk_down(blocks, tail, sample, pilot, needed)
    result[pilot] = tail.descending[places]
    if len(rest):
        low, high = places.min(axis=0), places.max(axis=0)
        reach = (high - low) // 2 + _FEWEST
        firsts = np.maximum(0, low - reach)
        places = _walk(blocks, tail, (firsts, high + reach), rest, needed)
        inside = (places >= 0).all(axis=1)
        result[rest[inside]] = tail.descending[firsts + places[inside]]
        left = rest[~inside]
        places, tail = _walk_down(blocks, tail, sample, left, needed)
        result[left] = tail.descending[places]
    return result


def _walk_down(blocks: _Blocks, tail: _Tail, sample: Sample, rows: Counts, needed: Counts) -> tuple[Counts, _Tail]:
    """Return which value of the tail each percentile of the resamples is, and the tail, made longer until it holds them all."""
    places = np.full((len(rows), 2), -1, dtype=np.int64)
    while len(left := np.flatnonzero((places < 0).any(axis=1))):
        whole = (np.zeros(2, dtype=np.int64), np.full(2, len(tail.descending)))
        places[left] = _walk(blocks, tail, whole, rows[left], needed)
        if bool((places < 0).any()):
            tail = _Tail.of(sample, 2 * len(tail.descending))
    return places, tail


def _walk(blocks: _Blocks, tail: _Tail, bands: tuple[Counts, Counts], rows: Counts, needed: Counts) -> Counts:
    """Return [rows, 2] the place in its band (from, to) of each resample's percentile, -1 where it is not inside."""
    by_position = np.argsort(tail.positions)
    upto = np.zeros(len(by_position) + 1, dtype=np.int64)
    upto[1:] = np.cumsum((by_position < bands[0][0]).astype(np.int64) + ((by_position < bands[0][1]).astype(np.int64) << 32))
    within = [(by_position >= first) & (by_position < last) for first, last in zip(*bands, strict=True)]
    inside = np.zeros(len(by_position) + 1, dtype=np.int32)
    inside[1:] = np.cumsum(within[0] | within[1])
    slot_of = np.empty(len(by_position), dtype=np.int32)
    slot_of[by_position] = inside[:-1]
    slots = np.full((2, max(int(band.sum()) for band in within)), -1, dtype=np.int32)
    for column, (first, last) in enumerate(zip(*bands, strict=True)):
        band = slot_of[first:last]
        slots[column, : len(band)] = band
    result = np.full((len(rows), 2), -1, dtype=np.int64)
    marks = _marks(blocks.n, tail.positions)
    walk_bands((blocks.starts, blocks.lengths), blocks.n, marks, (upto, inside), slots, rows, needed[rows], result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tail:
    """The largest values of a sample and where they stand."""

    descending: Floats
    """[kept]"""
    positions: Counts
    """[kept]"""

    @classmethod
    def of(cls, sample: Sample, kept: int) -> _Tail:
        kept = min(kept, len(sample.values))
        chosen = np.argpartition(sample.values, len(sample.values) - kept)[len(sample.values) - kept :]
        chosen = chosen[np.argsort(-sample.values[chosen])]
        return cls(descending=sample.values[chosen], positions=sample.positions[chosen])


def _marks(n: int, positions: Counts) -> tuple[Words, Slots]:
    """Return the bits of the units at `positions` in words of 64, and how many are set before each word."""
    marked = np.zeros(64 * (n // 64 + 1), dtype=np.uint8)
    marked[positions] = 1
    words = np.packbits(marked, bitorder="little").view("<u8").astype(np.uint64)
    per_word = marked.reshape(-1, 64).sum(axis=1, dtype=np.int32)
    return words, np.concatenate([[0], np.cumsum(per_word)[:-1]]).astype(np.int32)
