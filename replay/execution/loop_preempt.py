"""Who gives way where cache blocks run out, compiled."""

from __future__ import annotations

from replay.compiled import compiled_part
from replay.execution.loop_arrays import SWAP
from replay.execution.loop_blocks import blocks_for, release_blocks
from replay.execution.loop_queue import join_preempted
from replay.execution.loop_steady import settle_all
from replay.execution.step_costs import Counts, Records


@compiled_part
def preempt(sequences: Records, memory: Counts, state: Records, limits: Records, position: int) -> None:
    """Take the blocks of the running sequence on a seat, which is not steady, and put it back into the queue."""
    index = memory[limits.seats_at + position]
    sequence = sequences[index]
    state.running -= 1
    for place in range(limits.seats_at + position, limits.seats_at + state.running):
        memory[place] = memory[place + 1]
    if limits.preemption == SWAP:
        state.swapped_blocks += sequence.blocks
    release_blocks(sequence, state, limits, memory)
    sequence.reached_tokens = max(sequence.reached_tokens, sequence.computed_tokens)
    sequence.computed_tokens = 0
    sequence.preemptions += 1
    join_preempted(sequences, memory, state, limits, index)


@compiled_part
def make_way(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, step: Records) -> int:
    """Preempt by priority until the running sequences have blocks for the round that begins; return how many of the last seats sit it out.

    Goes through the seats as the round will, on paper: whoever is preempted has not computed anything in it.
    """
    if not _may_lack_blocks(sequences, memory, state, limits):
        return 0
    settle_all(sequences, memory, gaps, state, limits)
    position, claimed, budget = 0, 0, limits.max_batched_tokens
    while position < state.running and budget > 0:
        sequence = sequences[memory[limits.seats_at + position]]
        chunk = min(_left(sequence, limits), budget)
        needed = _needed(sequence, chunk, limits)
        if claimed + needed <= state.free_blocks:
            claimed += needed
            budget -= chunk
            position += 1
            continue
        worst = _worst(sequences, memory, state, limits)
        if worst < position:  # it was to compute all that it knows, or the budget would be spent
            other = sequences[memory[limits.seats_at + worst]]
            claimed -= _needed(other, _left(other, limits), limits)
            budget += _left(other, limits)
        preempt(sequences, memory, state, limits, worst)
        step.preemptions += 1
        if worst == position and budget < limits.max_batched_tokens:
            return int(state.running - position)
        position -= worst < position
    return 0


@compiled_part
def _may_lack_blocks(sequences: Records, memory: Counts, state: Records, limits: Records) -> bool:
    """Return whether the running sequences could want more blocks in the round that begins than are free."""
    wanted = memory[limits.fresh_at + (state.rounds + 1) % limits.block_tokens]
    for place in range(limits.seats_at + state.front, limits.seats_at + state.running):
        sequence = sequences[memory[place]]
        wanted += _needed(sequence, min(_left(sequence, limits), limits.max_batched_tokens), limits)
    return bool(wanted > state.free_blocks)


@compiled_part
def awaits_token(sequence: Records, limits: Records) -> bool:
    """Return whether a sequence has to wait for its next token, which is in flight, before it computes more."""
    return bool(limits.awaits_tokens and sequence.known_tokens > sequence.prompt_tokens + sequence.emitted_tokens)


@compiled_part
def _left(sequence: Records, limits: Records) -> int:
    """Return the tokens that a running sequence could compute now: none once its last one, or one that it awaits, is in flight."""
    if sequence.known_tokens == sequence.total_tokens or awaits_token(sequence, limits):
        return 0
    return int(sequence.known_tokens - sequence.computed_tokens)


@compiled_part
def _needed(sequence: Records, tokens: int, limits: Records) -> int:
    """Return the blocks that a sequence lacks for its next tokens."""
    return int(max(0, blocks_for(sequence.computed_tokens + tokens, limits) - sequence.blocks))


@compiled_part
def _worst(sequences: Records, memory: Counts, state: Records, limits: Records) -> int:
    """Return the seat of the running sequence of the largest priority, of several the one that came last."""
    worst = 0
    for position in range(1, state.running):
        index, other = memory[limits.seats_at + position], memory[limits.seats_at + worst]
        priority, most = sequences[index].priority, sequences[other].priority
        if priority > most or (priority == most and index > other):
            worst = position
    return worst
