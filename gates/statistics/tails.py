"""Percentiles of many resamples at once, touching only the tail.

A resample's p-th percentile is found by walking the values from the largest down and adding up how often each occurs, until
the wanted rank from the top is reached. A few places of the tail are cuts: how much of the tail above each of them a resample holds
is counted block by block, in one sweep over the blocks of many resamples, so that each walks from one cut to the next at most. The
first resamples show where cuts are of use to the others; where they lie changes no result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gates.statistics.blocks import BlockDraw, Counts, Floats
from gates.statistics.tail_walk import WORDS, Slots, bucket_blocks, count_above, walk_tail
from replay.assembly.percentile import ranks

_SPARE, _FEWEST = 1.25, 64
"""Units kept above what a resample needs on average: enough for nearly all resamples of traffic without bursts."""
_CUTS = 2 * WORDS
"""Of all percentiles together, 3 or more of each: as many as one sweep counts."""
_PILOT = 200
"""Resamples that show where the others' percentiles lie."""
_BLOCKS_AT_ONCE, _ROWS_AT_ONCE = 1_000_000, 1000
"""Of the resamples that one thread handles together: their counts stay in the processor's cache."""
_WALKED_TOGETHER = 32
"""Resamples that all samples walk one after the other: what they read of these stays in the nearest cache."""
_WORTH_THREADS = 1_000_000
"""Blocks to be counted over all samples from which a second thread saves more than starting it costs."""


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
    keys = [sample.positions.tobytes() for sample in samples]
    before = {key: _before(sample.positions, draw.n) for key, sample in dict(zip(keys, samples, strict=True)).items()}
    results = [np.full((draw.replicates, len(sample.percents)), np.nan) for sample in samples]
    pilot = _Piece.of(draw, slice(0, _PILOT))
    sizes = pilot.sizes(before)
    step = max(1, min(_ROWS_AT_ONCE, _BLOCKS_AT_ONCE // len(draw.lengths)))

    def begin(sample: Sample, key: bytes, result: Floats) -> _Tail:
        needed = _needed(sizes[key], sample.percents)
        search = _Search.of(pilot, _Tail.at_first(sample, draw.n, needed), needed)
        search.walk(pilot, 0, pilot.rows)
        search = search.finished(pilot, sample)
        search.write(result[:_PILOT])
        return search.tail.narrowed(sample, draw.n, search.places)

    def go_on(first: int) -> None:
        piece = _Piece.of(draw, slice(first, first + step))
        sizes = piece.sizes(before)
        asked = zip(samples, keys, tails, strict=True)
        searches = [_Search.of(piece, tail, _needed(sizes[key], sample.percents)) for sample, key, tail in asked]
        for row in range(0, piece.rows, _WALKED_TOGETHER):
            for search in searches:
                search.walk(piece, row, row + _WALKED_TOGETHER)
        for search, sample, result in zip(searches, samples, results, strict=True):
            search.finished(piece, sample).write(result[first : first + step])

    with ThreadPoolExecutor(os.cpu_count() if len(samples) * draw.starts.size >= _WORTH_THREADS else 1) as pool:
        tails = list(pool.map(begin, samples, keys, results))
        list(pool.map(go_on, range(_PILOT, draw.replicates, step)))
    return results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    """Some resamples of a draw, by start and by bucket."""

    n: int
    rows: int
    sweeps: tuple[tuple[Slots, Slots, int], ...]
    """Blocks of one length, ascending: their starts, whose they are, and the length."""
    buckets: tuple[Slots, Slots, int]
    cut: tuple[Slots, int]
    """Blocks shorter than the others [rows, 0 or 1], and their length."""

    @classmethod
    def of(cls, draw: BlockDraw, rows: slice) -> _Piece:
        starts, length, cut_length = draw.starts[rows].astype(np.int32), int(draw.lengths[0]), int(draw.lengths[-1])
        whole = starts if cut_length == length else np.ascontiguousarray(starts[:, :-1])
        cut = np.ascontiguousarray(starts[:, whole.shape[1] :])
        heads = np.zeros((len(starts), (draw.n - 1) // length + 3), dtype=np.int32)
        entries = np.empty((len(starts), 2 * whole.shape[1]), dtype=np.int32)
        bucket_blocks(whole, length, draw.n, heads, entries)
        sweeps = ((*_by_start(whole, draw.n), length), (*_by_start(cut, draw.n), cut_length))
        return cls(
            n=draw.n,
            rows=len(starts),
            sweeps=sweeps if cut.size else sweeps[:1],
            buckets=(heads, entries, length),
            cut=(cut, cut_length),
        )

    def sizes(self, before: Mapping[bytes, Slots]) -> dict[bytes, Counts]:
        """Return [rows] for each of several sets of units: how many of them a resample holds; `before` as `_before`."""
        every = np.full(self.rows, self.n)
        return {key: every if upto[self.n] == self.n else self._size(upto) for key, upto in before.items()}

    def _size(self, before: Slots) -> Counts:
        """Return [rows] how many units a resample holds, of which so many stand before each place of the trace and once more [2 n + 1]."""
        held = np.zeros(self.rows)
        for ordered, owners, length in self.sweeps:
            held += np.bincount(owners, weights=before[ordered + length] - before[ordered], minlength=self.rows)
        return held.astype(np.int64)


def _before(units: Counts, n: int) -> Slots:
    """Return [2 n + 1] how many of the units stand before each place of the trace and of its repetition."""
    marks = np.zeros(n, dtype=np.int32)
    marks[units] = 1
    return np.concatenate([[0], np.cumsum(np.tile(marks, 2))]).astype(np.int32)


def _by_start(starts: Slots, n: int) -> tuple[Slots, Slots]:
    """Return the starts of blocks [rows, blocks], ascending, and the row of each; both sorted as one number, short where it can be."""
    bits = len(starts).bit_length()
    both: Slots | Counts = starts.astype(np.int32) if n << bits < 1 << 31 else starts.astype(np.int64)
    both = np.sort(both << bits | np.arange(len(starts), dtype=np.int32)[:, None], axis=None)
    return (both >> bits).astype(np.int32), (both & ((1 << bits) - 1)).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tail:
    """The largest values of a sample, where they stand, and the places among them up to which a resample's are counted."""

    descending: Floats
    """[kept]"""
    positions: Slots
    """[kept]"""
    cuts: Counts
    """[cuts] ascending."""
    units: Slots
    """Those above the last cut, as `count_above` reads them."""
    lanes: Slots
    """Between which cuts they are."""
    adds: Counts
    """[groups of cuts, lanes, WORDS] 1 for each cut that a unit of the lane is above."""

    @classmethod
    def of(cls, sample: Sample, n: int, kept: int, cuts: Counts) -> _Tail:
        kept = min(kept, len(sample.values))
        chosen = np.argpartition(sample.values, len(sample.values) - kept)[len(sample.values) - kept :]
        chosen = chosen[np.argsort(-sample.values[chosen])]
        cuts = np.unique(np.clip(cuts, 1, kept))
        counted = np.argsort(sample.positions[chosen[: cuts[-1]]])
        units = sample.positions[chosen[counted]]
        place = np.arange(-(-len(cuts) // (2 * WORDS)) * 2 * WORDS).reshape(-1, 2, 1, WORDS)  # [groups, halves of a word, 1, words]
        is_above = (place >= np.arange(len(cuts))[:, None]) & (place < len(cuts))
        return cls(
            descending=sample.values[chosen],
            positions=sample.positions[chosen].astype(np.int32),
            cuts=cuts,
            units=np.concatenate([units, units + n, [4 * n]]).astype(np.int32),
            lanes=np.tile(np.searchsorted(cuts, counted, side="right"), 2).astype(np.int32),
            adds=is_above[:, 0] + (is_above[:, 1].astype(np.int64) << 32),
        )

    @classmethod
    def at_first(cls, sample: Sample, n: int, needed: Counts) -> _Tail:
        """Return the tail in which a resample's percentiles lie on average, with cuts all along it."""
        ends = (_SPARE * needed.mean(axis=0)).astype(np.int64) + _FEWEST
        return cls.of(sample, n, int(ends.max()), np.linspace(0, ends, _cuts(needed) + 1, dtype=np.int64)[1:].ravel())

    def narrowed(self, sample: Sample, n: int, places: Counts) -> _Tail:
        """Return the tail that reaches beyond the percentiles' `places` [rows, percents], with cuts where these lie."""
        low, high = places.min(axis=0), places.max(axis=0)
        reach = (high - low) // 2 + _FEWEST
        cuts = np.concatenate([low - reach, np.linspace(low, high, _cuts(places) - 1, dtype=np.int64).ravel()])
        return self.of(sample, n, int((high + reach).max()), cuts)

    def above_cuts(self, piece: _Piece) -> Counts:
        """Return [groups, rows, WORDS] how many units above each cut a resample holds."""
        result = np.zeros((len(self.adds), piece.rows, WORDS), dtype=np.int64)
        for adds, found in zip(self.adds, result, strict=True):
            for blocks in piece.sweeps:
                count_above(blocks, self.units, self.lanes, adds, found)
        return result


def _cuts(places: Counts) -> int:
    """Return how many cuts each percentile gets; `places` [rows, percents]."""
    return max(3, _CUTS // int(places.shape[1]))


def _needed(sizes: Counts, percents: Sequence[float]) -> Counts:
    """Return [rows, percents] the place of each percentile from the top, 0 where a resample holds no member."""
    return np.stack([np.where(sizes > 0, sizes - ranks(sizes, percent) + 1, 0) for percent in percents], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Search:
    """The search for one sample's percentiles in one piece."""

    tail: _Tail
    above: Counts
    """[groups, rows, WORDS] how many units above each cut a resample holds."""
    needed: Counts
    """[rows, percents] the place of each percentile from the top, 0 for none."""
    places: Counts
    """[rows, percents] which value of the tail each is; -1 where it was not found."""

    @classmethod
    def of(cls, piece: _Piece, tail: _Tail, needed: Counts) -> _Search:
        return cls(tail=tail, above=tail.above_cuts(piece), needed=needed, places=np.full(needed.shape, -1, dtype=np.int64))

    def walk(self, piece: _Piece, first: int, last: int) -> None:
        """Find the places of the rows from `first` to before `last`."""
        cuts = self.tail.cuts, self.above
        rows = first, min(last, piece.rows)
        walk_tail(rows, piece.buckets, piece.cut, piece.n, self.tail.positions, cuts, self.needed, self.places)

    def finished(self, piece: _Piece, sample: Sample) -> _Search:
        """Return the search in a tail that is long enough for all rows."""
        search = self
        while bool(((search.places < 0) & (search.needed > 0)).any()):
            tail = search.tail
            search = _Search.of(piece, _Tail.of(sample, piece.n, 2 * len(tail.descending), tail.cuts), search.needed)
            search.walk(piece, 0, piece.rows)
        return search

    def write(self, result: Floats) -> None:
        """Write the values found into `result` [rows, percents], which stays as it is where there are none."""
        found = self.places >= 0
        result[found] = self.tail.descending[self.places[found]]
