"""Loops over the blocks and the tail of many resamples, compiled; imported only where claims are judged, for importing the compiler
takes long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import Counts
from replay.compiled import compiled, compiled_part, inlined_part

Slots = NDArray[np.int32]


@compiled
def sort_blocks(starts: Slots, places: Slots, ordered: Slots, owners: Slots) -> None:
    """Write the blocks [replicates, blocks] in the order of their starts: `ordered` and `owners` [replicates x blocks], whose they are.

    `places` [n + 1] has to be 0.
    """
    replicates, blocks = starts.shape
    for replicate in range(replicates):
        for block in range(blocks):
            places[starts[replicate, block] + 1] += 1
    for unit in range(1, len(places)):
        places[unit] += places[unit - 1]
    for replicate in range(replicates):
        for block in range(blocks):
            start = starts[replicate, block]
            ordered[places[start]] = start
            owners[places[start]] = replicate
            places[start] += 1


@compiled
def add_counts(ordered: Slots, owners: Slots, length: int, units: Slots, words: Slots, weights: Counts, result: Counts) -> None:
    """Add to `result` [replicates, 8] what the units that the blocks of `length` units hold weigh in each word.

    The blocks as `sort_blocks` leaves them. `units` [2 x marked] are those that count, ascending, and once more with n added, for the
    blocks that pass the end; `words` and `weights` [2 x marked] say where and what each adds. One sweep over the starts: what a block
    holds differs from what the block before held by the units that came and went in between.
    """
    held = np.zeros(8, dtype=np.int64)
    came, went, first = 0, 0, 0
    while first < len(ordered):
        start = ordered[first]
        while came < len(units) and units[came] < start + length:
            held[words[came]] += weights[came]
            came += 1
        while units[went] < start:
            held[words[went]] -= weights[went]
            went += 1
        same_to = units[went]
        if came < len(units):
            same_to = min(same_to, units[came] - length)
        last = first + 1
        while last < len(ordered) and ordered[last] <= same_to:
            last += 1
        _add_to_owners(owners[first:last], held, result)
        first = last


@compiled_part
def _add_to_owners(owners: Slots, held: Counts, result: Counts) -> None:
    """Add `held` [8] to the row of each owner; written out, so that it stays in registers."""
    held_0, held_1, held_2, held_3 = held[0], held[1], held[2], held[3]
    held_4, held_5, held_6, held_7 = held[4], held[5], held[6], held[7]
    for owner in owners:
        row = np.uint64(owner)  # unsigned: no look at whether it counts from the end
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
    """Write each resample's starts [replicates, blocks] by buckets of `length` units, so that the blocks that hold a unit are found at once.

    Bucket j + 1 has the starts in [j, j + 1) x length, bucket 0 those of the last `length` units less n. `heads` [replicates, buckets + 1],
    which has to be 0, gets where each bucket begins in `entries` [replicates, at most 2 x blocks].
    """
    for replicate in range(starts.shape[0]):
        head = heads[replicate]
        for start in starts[replicate]:
            head[start // length + 2] += 1
            if start >= n - length:
                head[1] += 1
        for bucket in range(1, len(head)):
            head[bucket] += head[bucket - 1]
        for start in starts[replicate]:
            bucket = start // length + 1
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
        times += np.uint32(unit - entries[place]) < np.uint32(length)
    return times


@compiled
def walk_tail(
    rows: tuple[int, int],
    blocks: tuple[Slots, Slots, int],
    cut_blocks: tuple[Slots, int],
    n: int,
    tail: Slots,
    cuts: tuple[Slots, Slots],
    needed: Counts,
    result: Counts,
) -> None:
    """Write into `result` [replicates, percents] which value of the tail stands at the place `needed` [replicates, percents] from the top,
    for the resamples from `rows[0]` to before `rows[1]`.

    `blocks` are `heads` and `entries` of `bucket_blocks` and the length; `cut_blocks` [replicates, 0 or 1] the last block's start where it is
    shorter, and its length. `tail` [kept] are the units of the largest values, from the largest down; `cuts` are places in it [cuts],
    ascending, and how many units above each a resample holds [replicates, cuts]: the walk goes down from the cut before the place or up from
    the one after, whichever is nearer. Where the place is 0 or beyond the tail, `result` keeps what it holds.
    """
    heads, entries, length = blocks
    cut_starts, cut_length = cut_blocks
    for replicate in range(rows[0], rows[1]):
        above = cuts[1][replicate]
        for column in range(needed.shape[1]):
            place = needed[replicate, column]
            cut = 0
            while cut < len(above) and above[cut] < place:
                cut += 1
            index, passed = (cuts[0][cut - 1], above[cut - 1]) if cut > 0 else (0, 0)
            upwards = cut < len(above) and above[cut] - place < place - passed
            if upwards:
                index, passed = cuts[0][cut] - 1, above[cut]
            while place > 0 and index < len(tail):
                unit = tail[index]
                bucket = unit // length
                times = _times_held(unit, length, heads[replicate, bucket], heads[replicate, bucket + 2], entries[replicate])
                for last in range(cut_starts.shape[1]):
                    times += (unit - cut_starts[replicate, last]) % n < cut_length
                passed += -times if upwards else times
                if passed < place if upwards else passed >= place:
                    result[replicate, column] = index
                    break
                index += -1 if upwards else 1
