"""Steady sequences, compiled: decoding ones that are advanced together, by counting, and written down one by one only when they change.

A *round* is a step in which running sequences go on. A steady sequence computes one token in every round, so that its record, booked up
to its `round`, says the rest: what it has computed, when it will need a block, be done, or see no more keys than the window. So a
round costs the same however many sequences decode. The seats before `front` are those of steady sequences and of such as have their
last token in flight. Where not all of them can go on (no budget, no blocks), all are settled and looked at one by one. Where sequences
wait for their tokens (several steps in a pipeline), none is steady.

Gaps between the ends of rounds are kept on a stack, on which each is longer than all later ones: the longest since some round
is the lowest one on the stack that came later.
"""

from __future__ import annotations

from replay.compiled import compiled_part, inlined_part
from replay.execution.loop_arrays import FLIGHT_PLACES, IMPLIED, LISTED, NEVER, RESERVE
from replay.execution.loop_blocks import keep_full_blocks, take_blocks
from replay.execution.step_costs import Counts, Records


@inlined_part
def advance_steady(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, step: Records, budget: int) -> int:
    """Let all steady sequences compute a token in the round that begins, and return the budget that is left.

    Where not all can, settle them and let none. `implied` counts those that get a token without being listed.
    """
    this_round = state.rounds + 1
    fresh = memory[limits.fresh_at + this_round % limits.block_tokens]
    if state.steady > budget or fresh > state.free_blocks:
        settle_all(sequences, memory, gaps, state, limits)
    advanced: int = state.steady
    if advanced > 0:
        if fresh > 0:
            _take_fresh(sequences, memory, state, limits, this_round, fresh)
        step.decode_sequences, step.decode_context_tokens = advanced, state.steady_context
        if this_round >= state.next_window_round:
            _look_ahead(sequences, memory, state, limits, this_round)
        if this_round >= state.next_last_round:
            _promise_last_tokens(sequences, memory, gaps, state, limits, step, this_round)
        state.steady_context += state.growing
    state.rounds, state.implied = this_round, state.steady
    return budget - advanced


@compiled_part
def become_steady(sequence: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Let a sequence that decoded in this round, and will again, be steady from the next one on."""
    sequence.round = state.rounds
    state.steady += 1
    context = sequence.computed_tokens + 1
    state.steady_context += min(context, limits.window_tokens)
    if context < limits.window_tokens:
        state.growing += 1
        state.next_window_round = min(state.next_window_round, _window_round(sequence, limits))
    state.next_last_round = min(state.next_last_round, _last_round(sequence))
    if limits.kv_policy != RESERVE:
        memory[limits.fresh_at + _fresh_round(sequence) % limits.block_tokens] += 1


@compiled_part
def settle_all(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records) -> None:
    """Write down how far all steady sequences have come; none is steady any more."""
    for place in range(limits.seats_at, limits.seats_at + state.front):
        if sequences[memory[place]].round >= 0:
            _settle(sequences, memory[place], memory, gaps, state, limits)
    state.front = state.growing = state.steady_context = 0
    state.next_window_round = state.next_last_round = NEVER


@inlined_part
def end_round(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, end_s: float) -> None:
    """Note that the oldest round in flight has ended, and with it the gap since the one before it."""
    gap_s = end_s - state.round_end_s
    state.ended_rounds += 1
    state.round_end_s = end_s
    if state.steady == 0:
        state.gaps = 0
        return
    while state.gaps > 0 and gaps[state.gaps - 1].gap_s <= gap_s:
        state.gaps -= 1
    gaps[state.gaps].round, gaps[state.gaps].gap_s = state.ended_rounds, gap_s
    state.gaps += 1
    if state.gaps == len(gaps):
        settle_all(sequences, memory, gaps, state, limits)
        state.gaps = 0


@compiled_part
def _settle(sequences: Records, index: int, memory: Counts, gaps: Records, state: Records, limits: Records) -> None:
    """Write down how far one steady sequence has come. A round in flight lists it among those that get a token."""
    sequence = sequences[index]
    if limits.kv_policy != RESERVE:
        memory[limits.fresh_at + _fresh_round(sequence) % limits.block_tokens] -= 1
    before, booked = sequence.computed_tokens, sequence.round
    sequence.computed_tokens += state.rounds - booked
    sequence.known_tokens += state.rounds - booked
    sequence.blocks = max(sequence.blocks, (sequence.computed_tokens + limits.block_tokens - 1) // limits.block_tokens)
    if limits.prefix_cache:
        keep_full_blocks(sequence, before, limits, memory)
    ended = state.ended_rounds - booked
    if ended > 0:
        sequence.emitted_tokens += ended
        sequence.last_token_s = state.round_end_s
        sequence.worst_itl_s = max(sequence.worst_itl_s, _longest_gap(gaps, state.gaps, booked))
    if state.rounds > max(state.ended_rounds, booked):
        flight = limits.flights_at + state.oldest * FLIGHT_PLACES
        memory[limits.emitting_at + state.oldest * limits.max_running + memory[flight + LISTED]] = index
        memory[flight + LISTED] += 1
        memory[flight + IMPLIED] -= 1
    sequence.round = -1
    state.steady -= 1


@compiled_part
def _promise_last_tokens(
    sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, step: Records, this_round: int
) -> None:
    """Settle the sequences whose last token comes out of this round, and list them; the others stay steady."""
    listed = limits.emitting_at + (state.oldest + state.in_flight) % limits.steps_in_flight * limits.max_running
    state.next_last_round = NEVER
    for place in range(limits.seats_at, limits.seats_at + state.front):
        index = memory[place]
        sequence = sequences[index]
        if sequence.round < 0:
            continue
        last_round = _last_round(sequence)
        if last_round > this_round:
            state.next_last_round = min(state.next_last_round, last_round)
            continue
        state.growing -= _window_round(sequence, limits) > this_round
        _settle(sequences, index, memory, gaps, state, limits)
        sequence.computed_tokens += 1
        sequence.known_tokens += 1
        state.steady_context -= min(sequence.computed_tokens, limits.window_tokens)
        sequence.blocks = max(sequence.blocks, (sequence.computed_tokens + limits.block_tokens - 1) // limits.block_tokens)
        if limits.prefix_cache:
            keep_full_blocks(sequence, sequence.computed_tokens - 1, limits, memory)
        memory[listed + step.output_tokens] = index
        step.output_tokens += 1


@compiled_part
def _look_ahead(sequences: Records, memory: Counts, state: Records, limits: Records, this_round: int) -> None:
    """Count the steady sequences that will see more keys in the next round, and find when the first of them will not."""
    state.growing, state.next_window_round = 0, NEVER
    for place in range(limits.seats_at, limits.seats_at + state.front):
        sequence = sequences[memory[place]]
        if sequence.round >= 0 and _window_round(sequence, limits) > this_round:
            state.growing += 1
            state.next_window_round = min(state.next_window_round, _window_round(sequence, limits))


@compiled_part
def _take_fresh(sequences: Records, memory: Counts, state: Records, limits: Records, this_round: int, count: int) -> None:
    """Take the blocks that steady sequences need in this round: one by one where blocks have an identity, else counted."""
    if not limits.prefix_cache:
        state.free_blocks -= count
        return
    for place in range(limits.seats_at, limits.seats_at + state.front):
        sequence = sequences[memory[place]]
        if sequence.round >= 0 and (this_round - _fresh_round(sequence)) % limits.block_tokens == 0:
            take_blocks(sequence, 1, state, limits, memory)


@compiled_part
def _last_round(sequence: Records) -> int:
    """Return the round out of which a steady sequence's last token comes."""
    return int(sequence.round + sequence.total_tokens - sequence.known_tokens)


@compiled_part
def _window_round(sequence: Records, limits: Records) -> int:
    """Return the first round in which a steady sequence sees as many keys as the window has."""
    return int(sequence.round + limits.window_tokens - sequence.computed_tokens)


@compiled_part
def _fresh_round(sequence: Records) -> int:
    """Return a round in which a steady sequence begins a block; it does so every `block_tokens` rounds."""
    return int(sequence.round + 1 - sequence.computed_tokens)


@compiled_part
def _longest_gap(gaps: Records, count: int, since: int) -> float:
    """Return the longest gap that ended after the round `since`; there must be one."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if gaps[middle].round > since:
            high = middle
        else:
            low = middle + 1
    return float(gaps[low].gap_s)
