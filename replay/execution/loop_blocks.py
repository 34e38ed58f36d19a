"""Cache blocks of the compiled loop: counted, or with an identity each where prefixes are cached.

With the prefix cache a block has four places at the beginning of the memory (see `replay.execution.loop_arrays`): its key, by which a full
one is found in a hash table (open addressing, linear probing), the number of sequences that use it, and its neighbours in the ring of
free blocks, longest free first. A free block keeps its key until it is taken again. Blocks that were never used are taken first.
"""

from __future__ import annotations

import numpy as np

from replay.compiled import compiled_part
from replay.execution.loop_arrays import SWAP
from replay.execution.step_costs import Counts, Records

KEY, USERS, BEFORE, AFTER, PLACES = 0, 1, 2, 3, 4
SHARED = 1 << 62
"""Set in the keys of blocks whose content the trace knows; all others belong to one request."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio, made odd: multiplicative hashing (Knuth, The Art of Computer Programming 3, section 6.4)."""


@compiled_part
def blocks_for(tokens: int, limits: Records) -> int:
    """Return the blocks that hold so many tokens."""
    return int((tokens + limits.block_tokens - 1) // limits.block_tokens)


@compiled_part
def kept_tokens(sequence: Records, limits: Records) -> int:
    """Return the tokens that one that waits need not compute again: swapped, or received with it where it was never preempted."""
    return int(sequence.reached_tokens if limits.preemption == SWAP or sequence.preemptions == 0 else 0)


@compiled_part
def take_blocks(sequence: Records, count: int, state: Records, limits: Records, memory: Counts) -> None:
    """Give a sequence more free blocks; there must be so many."""
    if limits.prefix_cache:
        table = limits.tables_at + sequence.slot * limits.table_blocks
        for place in range(sequence.blocks, sequence.blocks + count):
            memory[table + place] = _take(state, limits, memory)
    state.free_blocks -= count
    sequence.blocks += count


@compiled_part
def release_blocks(sequence: Records, state: Records, limits: Records, memory: Counts) -> None:
    """Take all blocks from a sequence, its last one first, so that the beginning of a prompt is kept longest."""
    state.blocked_budget = -1
    if limits.prefix_cache:
        table = limits.tables_at + sequence.slot * limits.table_blocks
        for place in range(sequence.blocks - 1, -1, -1):
            block = memory[table + place]
            memory[PLACES * block + USERS] -= 1
            if memory[PLACES * block + USERS] == 0:
                _append(block, limits, memory)
                state.free_blocks += 1
        if sequence.blocks > 0:
            memory[limits.slots_at + state.free_slots] = sequence.slot
            state.free_slots += 1
    else:
        state.free_blocks += sequence.blocks
    sequence.blocks = 0


@compiled_part
def find_prefix(sequence: Records, limits: Records, memory: Counts) -> tuple[int, int]:
    """Return how many blocks of a sequence's beginning are cached, and how many of those are free.

    The last known token is always left to compute.
    """
    count, free = 0, 0
    if limits.prefix_cache:
        most = (sequence.known_tokens - 1) // limits.block_tokens
        while count < most:
            block = _find(_key(sequence, count, limits, memory), limits, memory)
            if block < 0:
                break
            free += memory[PLACES * block + USERS] == 0
            count += 1
    return count, free


@compiled_part
def use_prefix(sequence: Records, count: int, state: Records, limits: Records, memory: Counts) -> None:
    """Give a sequence without blocks a table, and in it the first cached blocks of its beginning."""
    state.free_slots -= 1
    sequence.slot = memory[limits.slots_at + state.free_slots]
    table = limits.tables_at + sequence.slot * limits.table_blocks
    for place in range(count):
        block = _find(_key(sequence, place, limits, memory), limits, memory)
        if memory[PLACES * block + USERS] == 0:
            _unlink(block, memory)
            state.free_blocks -= 1
        memory[PLACES * block + USERS] += 1
        memory[table + place] = block
    sequence.blocks = count


@compiled_part
def keep_full_blocks(sequence: Records, before: int, limits: Records, memory: Counts) -> None:
    """Make the blocks findable that have become full since `before` tokens of the sequence were computed."""
    table = limits.tables_at + sequence.slot * limits.table_blocks
    for place in range(before // limits.block_tokens, sequence.computed_tokens // limits.block_tokens):
        block = memory[table + place]
        key = _key(sequence, place, limits, memory)
        slot = _home(key, limits.found_shift)
        while memory[limits.found_at + slot] != 0:
            slot = (slot + 1) & limits.found_mask
        memory[limits.found_at + slot] = block + 1
        memory[PLACES * block + KEY] = key


@compiled_part
def _key(sequence: Records, place: int, limits: Records, memory: Counts) -> int:
    """Return the key of a full block: its place, and what names all tokens up to its end."""
    end = (place + 1) * limits.block_tokens
    node = memory[limits.starts_at + sequence.row] + (end - 1) // limits.trace_block_tokens
    if end <= sequence.prompt_tokens and node < memory[limits.starts_at + sequence.row + 1]:
        return int(SHARED | (memory[limits.nodes_at + node] << 31) | place)
    return int((sequence.row << 31) | place)


@compiled_part
def _home(key: int, shift: int) -> int:
    """Return the first place to look for a key in a hash table of 2^(64 - shift) places."""
    return np.int64((np.uint64(key) * GOLDEN) >> np.uint64(shift))  # type: ignore[return-value]


@compiled_part
def _find(key: int, limits: Records, memory: Counts) -> int:
    """Return the block that has had a key longest, or -1."""
    slot = _home(key, limits.found_shift)
    while memory[limits.found_at + slot] != 0:
        block = memory[limits.found_at + slot] - 1
        if memory[PLACES * block + KEY] == key:
            return int(block)
        slot = (slot + 1) & limits.found_mask
    return -1


@compiled_part
def _forget(block: int, limits: Records, memory: Counts) -> None:
    """Take a block out of the hash table and close the gap, which keeps blocks of equal keys in order."""
    found, mask = limits.found_at, limits.found_mask
    gap = _home(memory[PLACES * block + KEY], limits.found_shift)
    while memory[found + gap] != block + 1:
        gap = (gap + 1) & mask
    place = (gap + 1) & mask
    while memory[found + place] != 0:
        home = _home(memory[PLACES * (memory[found + place] - 1) + KEY], limits.found_shift)
        if ((place - home) & mask) >= ((place - gap) & mask):
            memory[found + gap] = memory[found + place]
            gap = place
        place = (place + 1) & mask
    memory[found + gap] = 0
    memory[PLACES * block + KEY] = -1


@compiled_part
def _take(state: Records, limits: Records, memory: Counts) -> int:
    """Return a block that was never used, else the one that has been free longest, which loses its content."""
    if state.used_once < limits.ring:
        block = state.used_once
        state.used_once += 1
    else:
        block = memory[PLACES * limits.ring + AFTER]
        _unlink(block, memory)
        if memory[PLACES * block + KEY] >= 0:
            _forget(block, limits, memory)
    memory[PLACES * block + USERS] = 1
    return int(block)


@compiled_part
def _append(block: int, limits: Records, memory: Counts) -> None:
    """Put a block at the end of the ring of free ones."""
    last = memory[PLACES * limits.ring + BEFORE]
    memory[PLACES * block + BEFORE], memory[PLACES * block + AFTER] = last, limits.ring
    memory[PLACES * last + AFTER] = memory[PLACES * limits.ring + BEFORE] = block


@compiled_part
def _unlink(block: int, memory: Counts) -> None:
    """Take a block out of the ring of free ones."""
    before, after = memory[PLACES * block + BEFORE], memory[PLACES * block + AFTER]
    memory[PLACES * before + AFTER], memory[PLACES * after + BEFORE] = after, before
