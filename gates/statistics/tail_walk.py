"""Loops over the blocks and tails of resamples, compiled; imported only where claims are judged: importing the compiler takes long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import Counts
from replay.compiled import compiled, inlined_part

Slots = NDArray[np.int32]

WORDS = 8
"""Of 64 bits, counted together: a line of the processor's cache."""


@compiled
def count_above(blocks: tuple[Slots, Slots, int], units: Slots, lanes: Slots, adds: Counts, result: Counts) -> None:
    """Add to `result` [replicates, WORDS] what the units that each resample's blocks hold add to it.

    `blocks` are their starts, ascending, whose they are, and their length. `units` [2 x marked + 1] ascend: those that count, the same
    with n added, for blocks that pass the end, and one beyond all blocks; each adds what `adds` [lanes, WORDS] says of its lane
    [2 x marked]. One sweep over the starts: what a block holds differs from what the one before held by what came and went in between.
    """
    starts, owners, length = blocks
    held = np.zeros(WORDS, dtype=np.int64)
    came, went, first = 0, 0, 0
    while first < len(starts):
        start = starts[first]
        while units[came] < start + length:
            lane = lanes[came]
            for word in range(WORDS):
                held[word] += adds[lane, word]
            came += 1
        while units[went] < start:
            lane = lanes[went]
            for word in range(WORDS):
                held[word] -= adds[lane, word]
            went += 1
        same_to = min(units[came] - length, units[went])
        last = first + 1
        while last < len(starts) and starts[last] <= same_to:
            last += 1
        _add_to_owners(owners, first, last, held, result)
        first = last


@inlined_part
def _add_to_owners(owners: Slots, first: int, last: int, held: Counts, result: Counts) -> None:
    """Add `held` [WORDS] to the rows of the owners from `first` to before `last`; written out, so that it stays in registers."""
    held_0, held_1, held_2, held_3 = held[0], held[1], held[2], held[3]
    held_4, held_5, held_6, held_7 = held[4], held[5], held[6], held[7]
    for entry in range(first, last):
        row = np.uint64(owners[entry])  # unsigned: no look at whether it counts from the end
        result[row, 0] += held_0
        result[row, 1] += held_1
        result[row, 2] += held_2
        result[row, 3] += held_3
        result[row, 4] += held_4
        result[row, 5] += held_5
        result[row, 6] += held_6
        result[row, 7] += held_7


@compiled
def bucket_blocks(starts: Slots, length: int, n: int, heads: Slots, entries: Slots) -> None:
    """Write each resample's starts [replicates, blocks] by buckets of `length` units: the blocks that hold a unit are in two of them.

    Bucket j + 1 has the starts in [j, j + 1) x length, bucket 0 those of the last `length` units less n. `heads` [replicates, buckets + 1],
    which has to be 0, gets where each bucket begins in `entries` [replicates, at most 2 x blocks].
    """
    for replicate in range(starts.shape[0]):
        head = heads[replicate]
        for start in starts[replicate]:
            head[np.uint32(start) // np.uint32(length) + 2] += 1
            if start >= n - length:
                head[1] += 1
        for bucket in range(1, len(head)):
            head[bucket] += head[bucket - 1]
        for start in starts[replicate]:
            bucket = int(np.uint32(start) // np.uint32(length)) + 1
            entries[replicate, head[bucket]] = start
            head[bucket] += 1
            if start >= n - length:
                entries[replicate, head[0]] = start - n
                head[0] += 1
        for bucket in range(len(head) - 1, 0, -1):
            head[bucket] = head[bucket - 1]
        head[0] = 0


@inlined_part
def _times_held(unit: int, length: int, first: int, last: int, entries: Slots) -> int:
    """Return how many of the blocks of `length` units that start at `entries[first:last]` hold a unit."""
    times = 0
    for place in range(first, last):
        times += int(np.uint32(unit - entries[place]) < np.uint32(length))
    return times


@inlined_part
def _above(cut: int, replicate: int, words: Counts) -> int:
    """Return how many units above a cut a resample holds: two cuts to a word."""
    word = int(words[cut // (2 * WORDS), replicate, cut % WORDS])
    return word >> 32 if cut // WORDS % 2 else word & 0xFFFFFFFF


@compiled
def walk_tail(
    rows: tuple[int, int],
    blocks: tuple[Slots, Slots, int],
    cut_blocks: tuple[Slots, int],
    n: int,
    tail: Slots,
    cuts: tuple[Counts, Counts],
    needed: Counts,
    result: Counts,
) -> None:
    """Write into `result` [replicates, percents] which value of the tail stands at the place `needed` [replicates, percents] from the top,
    for the resamples from `rows[0]` to before `rows[1]`.

    `blocks` are `heads` and `entries` of `bucket_blocks` and the length; `cut_blocks` [replicates, 0 or 1] the last block's start where
    it is shorter, and its length. `tail` [kept] are the units of the largest values, from the largest down; `cuts` are places in it
    [cuts], ascending, and how many units above each a resample holds [groups, replicates, WORDS], as `_above` reads them: the walk goes
    down from the cut before the place or up from the one after, whichever is nearer. Where the place is 0 or beyond the tail, `result`
    keeps what it holds.
    """
    heads, entries, length = blocks
    cut_starts, cut_length = cut_blocks
    count = len(cuts[0])
    for replicate in range(rows[0], rows[1]):
        for column in range(needed.shape[1]):
            place = needed[replicate, column]
            cut, index, passed, behind = 0, 0, 0, 0
            while cut < count:
                behind = _above(cut, replicate, cuts[1])
                if behind >= place:
                    break
                index, passed = cuts[0][cut], behind
                cut += 1
            upwards = cut < count and behind - place < place - passed
            if upwards:
                index, passed = cuts[0][cut] - 1, behind
            while place > 0 and index < len(tail):
                unit = tail[index]
                bucket = np.uint32(unit) // np.uint32(length)
                times = _times_held(unit, length, heads[replicate, bucket], heads[replicate, bucket + 2], entries[replicate])
                for last in range(cut_starts.shape[1]):
                    times += (unit - cut_starts[replicate, last]) % n < cut_length
                passed += -times if upwards else times
                if passed < place if upwards else passed >= place:
                    result[replicate, column] = index
                    break
                index += -1 if upwards else 1
