"""Cache blocks of the compiled loop: counted, or with an identity each where prefixes are cached.

With the prefix cache a block is a record of `replay.execution.loop_arrays.BLOCK`. A full one has a key, by which it is found in a
hash table (open addressing, linear probing); one without references is free, but keeps its key until it is taken again. Free
blocks stand in a ring of links, longest free first, after those that were never used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.compiled import compiled_part
from replay.execution.step_costs import Counts, Records

SHARED = 1 << 62
"""Set in the keys of blocks whose content the trace knows; all others belong to one request."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio, made odd: multiplicative hashing (Knuth, The Art of Computer Programming 3, section 6.4)."""


@compiled_part
def take_blocks(sequence: Records, count: int, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Give a sequence more free blocks; there must be so many."""
    state.free_blocks -= count
    if limits.prefix_cache:
        blocks, found, tables = cache[:3]
        for place in range(sequence.blocks, sequence.blocks + count):
            tables[sequence.slot, place] = _take(blocks, found, state, limits.found_shift)
    sequence.blocks += count


@compiled_part
def release_blocks(sequence: Records, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Take all blocks from a sequence, its last one first, so that the beginning of a prompt is kept longest."""
    if limits.prefix_cache:
        blocks, _, tables, slots = cache[:4]
        for place in range(sequence.blocks - 1, -1, -1):
            index = tables[sequence.slot, place]
            blocks[index].references -= 1
            if blocks[index].references == 0:
                _append(blocks, index)
                state.free_blocks += 1
        if sequence.blocks > 0:
            slots[state.free_slots] = sequence.slot
            state.free_slots += 1
    else:
        state.free_blocks += sequence.blocks
    sequence.blocks = 0


@compiled_part
def find_prefix(sequence: Records, index: int, limits: Records, cache: tuple[Any, ...]) -> tuple[int, int]:
    """Return how many blocks of a sequence's beginning are cached, and how many of those are free.

    The last known token is always left to compute.
    """
    if not limits.prefix_cache:
        return 0, 0
    blocks, found, _, _, starts, nodes = cache
    count, free, most = 0, 0, (sequence.known_tokens - 1) // limits.block_tokens
    while count < most:
        block = _find(blocks, found, _key(sequence, index, count, limits, starts, nodes), limits.found_shift)
        if block < 0:
            break
        free += blocks[block].references == 0
        count += 1
    return count, free


@compiled_part
def use_prefix(sequence: Records, index: int, count: int, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Give a sequence without blocks a table, and in it the first cached blocks of its beginning."""
    if not limits.prefix_cache:
        return
    blocks, found, tables, slots, starts, nodes = cache
    state.free_slots -= 1
    sequence.slot = slots[state.free_slots]
    for place in range(count):
        block = _find(blocks, found, _key(sequence, index, place, limits, starts, nodes), limits.found_shift)
        if blocks[block].references == 0:
            _unlink(blocks, block)
            state.free_blocks -= 1
        blocks[block].references += 1
        tables[sequence.slot, place] = block
    sequence.blocks = count


@compiled_part
def keep_full_blocks(sequence: Records, index: int, before: int, limits: Records, cache: tuple[Any, ...]) -> None:
    """Make the blocks findable that have become full since `before` tokens of the sequence were computed."""
    if not limits.prefix_cache:
        return
    blocks, found, tables, _, starts, nodes = cache
    for place in range(before // limits.block_tokens, sequence.computed_tokens // limits.block_tokens):
        block = tables[sequence.slot, place]
        blocks[block].key = _key(sequence, index, place, limits, starts, nodes)
        slot = _home(blocks[block].key, limits.found_shift)
        while found[slot] != 0:
            slot = (slot + 1) & (len(found) - 1)
        found[slot] = block + 1


@compiled_part
def _key(sequence: Records, index: int, place: int, limits: Records, starts: Counts, nodes: Counts) -> int:
    """Return the key of a full block: its place, and what names all tokens up to its end."""
    end = (place + 1) * limits.block_tokens
    node = starts[index] + (end - 1) // limits.trace_block_tokens
    if end <= sequence.prompt_tokens and node < starts[index + 1]:
        return int(SHARED | (nodes[node] << 31) | place)
    return (index << 31) | place


@compiled_part
def _home(key: int, shift: int) -> int:
    """Return the first place to look for a key in a hash table of 2^(64 - shift) places."""
    return np.int64((np.uint64(key) * GOLDEN) >> np.uint64(shift))  # type: ignore[return-value]


@compiled_part
def _find(blocks: Records, found: Counts, key: int, shift: int) -> int:
    """Return the block that has had a key longest, or -1."""
    slot = _home(key, shift)
    while found[slot] != 0:
        if blocks[found[slot] - 1].key == key:
            return int(found[slot] - 1)
        slot = (slot + 1) & (len(found) - 1)
    return -1


@compiled_part
def _forget(blocks: Records, found: Counts, block: int, shift: int) -> None:
    """Take a block out of the hash table and close the gap, which keeps blocks of equal keys in order."""
    mask = len(found) - 1
    gap = _home(blocks[block].key, shift)
    while found[gap] != block + 1:
        gap = (gap + 1) & mask
    place = (gap + 1) & mask
    while found[place] != 0:
        home = _home(blocks[found[place] - 1].key, shift)
        if ((place - home) & mask) >= ((place - gap) & mask):
            found[gap] = found[place]
            gap = place
        place = (place + 1) & mask
    found[gap] = 0
    blocks[block].key = -1


@compiled_part
def _take(blocks: Records, found: Counts, state: Records, shift: int) -> int:
    """Return a block that was never used, else the one that has been free longest, which loses its content."""
    ring = len(blocks) - 1
    if state.used_once < ring:
        block = state.used_once
        state.used_once += 1
    else:
        block = blocks[ring].after
        _unlink(blocks, block)
        if blocks[block].key >= 0:
            _forget(blocks, found, block, shift)
    blocks[block].references = 1
    return int(block)


@compiled_part
def _append(blocks: Records, block: int) -> None:
    """Put a block at the end of the ring of free ones."""
    ring = len(blocks) - 1
    last = blocks[ring].before
    blocks[block].before, blocks[block].after = last, ring
    blocks[last].after = blocks[ring].before = block


@compiled_part
def _unlink(blocks: Records, block: int) -> None:
    """Take a block out of the ring of free ones."""
    before, after = blocks[block].before, blocks[block].after
    blocks[before].after, blocks[after].before = after, before
