"""The walk down the tail, compiled; imported only where claims are judged, for importing the compiler takes long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import Counts
from replay.compiled import compiled, compiled_part, inlined_part

Words = NDArray[np.uint64]
Slots = NDArray[np.int32]

_STRIDE = 32  # steps down the tail taken at once, before they are looked at one by one


@inlined_part
def _before(position: int, words: Words, counts: Slots) -> int:
    """Return how many marked units stand before `position`: a count per 64 units and the bits set below it in its word."""
    place = np.uint64(position) >> np.uint64(6)
    bits = words[place] & ((np.uint64(1) << np.uint64(position & 63)) - np.uint64(1))
    bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int(counts[place] + np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56)))


@compiled
def count_members(starts: Slots, lengths: Counts, n: int, words: Words, counts: Slots, result: Counts) -> None:
    """Write into `result` [replicates] how many marked units each resample of 0..n-1 holds."""
    every = _before(n, words, counts)
    for replicate in range(starts.shape[0]):
        total = 0
        for block in range(starts.shape[1]):
            start = starts[replicate, block]
            end = start + lengths[block]
            total -= _before(start, words, counts)
            total += _before(end, words, counts) if end <= n else every + _before(end - n, words, counts)
        result[replicate] = total


@compiled
def walk_bands(
    blocks: tuple[Slots, Counts],
    n: int,
    tail: tuple[Words, Slots],
    kept: tuple[Counts, Slots],
    slots: Slots,
    rows: Counts,
    needed: Counts,
    result: Counts,
) -> None:
    """Write into `result` [rows, 2], for the resamples `rows`, which value of a band stands at the place `needed` [rows, 2] from the top.

    `tail` marks the units of the largest values; two bands are runs of these values by size. Of the first units so marked,
    `kept` says how many stand above the first band + 2^32 x how many above the second [marked + 1], and how many in either band
    [marked + 1]; the j-th largest value of a band is that of the `slots[band, j]`-th unit in either, -1 beyond the last. A
    resample whose place is not in the band keeps what `result` holds. Touches a resample's block ends and the bands' units, never
    all n.
    """
    starts, lengths = blocks
    words, counts = tail
    upto, inside = kept
    size = inside[-1]
    weights = np.zeros(size + 1, dtype=np.int32)
    for row in range(len(rows)):
        above = np.int64(0)
        for block in range(starts.shape[1]):
            start = starts[rows[row], block]
            end = start + lengths[block]
            first = _before(start, words, counts)
            above -= upto[first]
            weights[np.uint64(inside[first])] += 1
            if end > n:
                end -= n
                above += upto[-1]
                weights[0] += 1
            last = _before(end, words, counts)
            above += upto[last]
            weights[np.uint64(inside[last])] -= 1
        weight = 0
        for slot in range(size):
            weight += weights[slot]
            weights[slot] = weight
        for band in range(2):
            passed = above >> 32 if band else above & 0xFFFFFFFF
            step = _walk(weights, slots[band], needed[row, band] - passed)
            if step >= 0:
                result[row, band] = step
        weights[:] = 0


@compiled_part
def _walk(weights: Slots, slots: Slots, place: int) -> int:
    """Return which value of a band stands at `place` from its top, -1 if none; `weights` say how often each unit occurs."""
    if place <= 0:
        return -1
    step, passed, size = 0, 0, len(slots)
    while step + _STRIDE <= size and slots[step + _STRIDE - 1] >= 0:
        ahead = 0
        for index in range(step, step + _STRIDE):
            ahead += weights[np.uint64(slots[index])]
        if passed + ahead >= place:
            break
        passed += ahead
        step += _STRIDE
    while step < size and slots[step] >= 0:
        passed += weights[slots[step]]
        if passed >= place:
            return step
        step += 1
    return -1
