"""Composition of one step, compiled: which sequences compute how many tokens, and who has to give way."""

from __future__ import annotations

from replay.compiled import compiled_part, inlined_part
from replay.execution.loop_arrays import BLOCK, CHUNKED, FCFS, PREFILL_FIRST, PRIORITY, RESERVE, STATIC, WHOLE_PROMPT
from replay.execution.loop_blocks import blocks_for, find_prefix, keep_full_blocks, kept_tokens, take_blocks, use_prefix
from replay.execution.loop_preempt import awaits_token, make_way, preempt
from replay.execution.loop_queue import (
    batch_seats,
    batch_starts_at,
    bring_back,
    leave_preempted,
    leave_queue,
    next_waiting,
    order_queue,
    pass_over,
)
from replay.execution.loop_steady import advance_steady, become_steady
from replay.execution.step_costs import Counts, Records


@inlined_part
def schedule(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, step: Records) -> None:
    """Choose the step's chunks, by the rule of the scheduler.

    What is chosen counts as computed from here on; the sequences that get a token when the step ends are listed in the memory
    (`emitting`), or steady. A schedule without sequences is no step: its preemptions count with those of the next one.
    """
    step.prefill_tokens = step.prefill_pairs = step.recomputed_tokens = step.prefix_hit_tokens = step.output_tokens = 0
    step.sequences = step.decode_sequences = step.decode_context_tokens = 0
    step.preemptions = state.unrecorded_preemptions
    state.implied, state.newest_is_round = 0, 0
    budget: int = limits.max_batched_tokens
    admits_first = limits.scheduler == PREFILL_FIRST or (limits.scheduler == STATIC and state.running == 0)
    if not admits_first:
        budget = _continue_running(sequences, memory, gaps, state, limits, step)
    preempts = step.preemptions > state.unrecorded_preemptions
    if (admits_first or (limits.scheduler == CHUNKED and not preempts)) and _could_admit(state, limits, budget):
        _admit_waiting(sequences, memory, state, limits, step, budget)
    if admits_first and step.sequences == 0:
        _continue_running(sequences, memory, gaps, state, limits, step)
    if limits.prefix_cache and step.prefill_tokens > 0:
        state.blocked_budget = -1  # the head of the queue may now find its beginning
    step.tokens = step.decode_sequences + step.prefill_tokens
    step.running = state.running
    step.waiting = state.preempted + state.arrived - state.admitted
    step.kv_blocks = limits.pool_blocks - state.free_blocks
    step.swapped_blocks = state.swapped_blocks
    state.newest_listed = step.output_tokens
    step.output_tokens += state.implied
    if step.sequences == 0:
        state.unrecorded_preemptions = step.preemptions
        state.rounds -= state.newest_is_round
    else:
        state.unrecorded_preemptions = state.swapped_blocks = 0


@inlined_part
def _could_admit(state: Records, limits: Records, budget: int) -> bool:
    """Return whether anybody waits for whom there may be budget, a seat and blocks.

    Who stood at the head of a first come, first served queue and lacked blocks lacks them until some are returned.
    """
    waits = state.preempted > 0 or state.admitted < state.arrived
    blocked = limits.queue == FCFS and state.blocked_budget == budget
    return bool(waits and not blocked and budget > 0 and state.running < limits.max_running)


@compiled_part
def newest_place(state: Records, limits: Records) -> int:
    """Return the place of the step that is composed now among those in flight."""
    place = state.oldest + state.in_flight
    return int(place if place < limits.steps_in_flight else place - limits.steps_in_flight)


@compiled_part
def emitting_at(state: Records, limits: Records) -> int:
    """Return the place in the memory where the step that is composed now lists the sequences that get a token."""
    return int(limits.emitting_at + newest_place(state, limits) * limits.max_running)


@inlined_part
def _continue_running(sequences: Records, memory: Counts, gaps: Records, state: Records, limits: Records, step: Records) -> int:
    """Schedule running sequences, preempting some where blocks run out; return the budget that is left."""
    held = make_way(sequences, memory, gaps, state, limits, step) if limits.queue == PRIORITY else 0
    budget: int = advance_steady(sequences, memory, gaps, state, limits, step, limits.max_batched_tokens)
    state.newest_is_round = 1
    listed, emitting = step.output_tokens, emitting_at(state, limits)
    position, decodes, decode_context, prefills = state.front, step.decode_sequences, step.decode_context_tokens, 0
    while position < state.running - held and budget > 0:
        index = memory[limits.seats_at + position]
        sequence = sequences[index]
        before, known = sequence.computed_tokens, sequence.known_tokens
        if known == sequence.total_tokens:  # its last token is in flight
            state.front += position == state.front
            position += 1
            continue
        if awaits_token(sequence, limits):
            position += 1
            continue
        chunk = min(known - before, budget)
        after = before + chunk
        if after > sequence.blocks * limits.block_tokens:
            needed = blocks_for(after, limits) - sequence.blocks
            while needed > state.free_blocks and state.running > position:
                preempt(sequences, memory, state, limits, state.running - 1)
                step.preemptions += 1
            if state.running == position:  # the sequence itself was the newest
                break
            take_blocks(sequence, needed, state, limits, memory)
        sequence.computed_tokens = after
        if after == known:
            sequence.known_tokens = known + 1
            memory[emitting + listed] = index
            listed += 1
        if limits.prefix_cache:
            keep_full_blocks(sequence, before, limits, memory)
        if before >= sequence.prefill_until:
            decodes += 1
            decode_context += min(after, limits.window_tokens)
            if position == state.front and not limits.awaits_tokens:
                state.front += 1
                if known + 1 < sequence.total_tokens:
                    become_steady(sequence, memory, state, limits)
        else:
            prefills += 1
            _count_prefill(step, sequence, before, limits.window_tokens)
        budget -= chunk
        position += 1
    step.sequences, step.output_tokens = decodes + prefills, listed
    step.decode_sequences, step.decode_context_tokens = decodes, decode_context
    return budget


@compiled_part
def _admit_waiting(sequences: Records, memory: Counts, state: Records, limits: Records, step: Records, budget: int) -> None:
    """Admit from the head of the queue while budget, seats and blocks last; who does not fit blocks those behind it, or is passed over."""
    order_queue(sequences, memory, state, limits)
    seats = limits.max_running
    if limits.scheduler == STATIC:
        if batch_starts_at(sequences, memory, state, limits) > state.clock_s:
            return
        seats = batch_seats(sequences, memory, state, limits)
    passed_preempted, passed = 0, 0
    while budget > 0 and state.running < seats:
        resumed = state.preempted > passed_preempted
        if not resumed and state.admitted + passed == state.arrived:
            break
        above = limits.preempted_at + state.preempted - 1 - passed_preempted
        index = memory[above] if resumed else next_waiting(memory, state, limits, passed)
        cached, before, chunk, taken, wanted = _needs(sequences[index], memory, limits, budget)
        awaits = awaits_token(sequences[index], limits)
        lacks_blocks = not awaits and wanted > state.free_blocks - limits.watermark_blocks
        if awaits or lacks_blocks or (limits.scheduler != CHUNKED and before + chunk < sequences[index].known_tokens):
            if limits.unfit == BLOCK:
                if lacks_blocks:
                    state.blocked_budget = budget
                break
            if resumed:
                passed_preempted += 1
            else:
                pass_over(sequences, memory, state, limits, passed)
                passed += 1
            continue
        if resumed:
            leave_preempted(sequences, memory, state, limits, index)
        else:
            leave_queue(sequences, memory, state, limits, passed)
        _let_run(sequences[index], index, memory, state, limits, step, cached, chunk, taken)
        budget -= chunk
    if passed > 0:
        bring_back(sequences, memory, state, limits, passed)


@inlined_part
def _needs(sequence: Records, memory: Counts, limits: Records, budget: int) -> tuple[int, int, int, int, int]:
    """Return what a waiting sequence would start with: cached blocks, tokens computed already, tokens to compute, blocks to take; and
    the blocks that must be free.
    """
    cached, cached_free = find_prefix(sequence, limits, memory)
    before = cached * limits.block_tokens + kept_tokens(sequence, limits)
    chunk = min(sequence.known_tokens - before, budget)
    taken = blocks_for(before + chunk if limits.kv_policy != RESERVE else sequence.total_tokens - 1, limits) - cached
    wanted = taken if limits.kv_policy != WHOLE_PROMPT else blocks_for(sequence.known_tokens, limits) - cached
    return cached, before, chunk, taken, wanted + cached_free


@inlined_part
def _let_run(
    sequence: Records, index: int, memory: Counts, state: Records, limits: Records, step: Records, cached: int, chunk: int, taken: int
) -> None:
    """Give a sequence that has left the queue a seat and blocks, and let it compute its first tokens."""
    if sequence.preemptions == 0:
        sequence.first_scheduled_s = state.clock_s
    if limits.prefix_cache:
        use_prefix(sequence, cached, state, limits, memory)
    take_blocks(sequence, taken, state, limits, memory)
    kept = kept_tokens(sequence, limits)
    before = cached * limits.block_tokens + kept
    saved = max(0, before - sequence.reached_tokens)
    sequence.prefix_hit_tokens += saved
    step.prefix_hit_tokens += saved
    if kept == 0:
        sequence.prefill_until = sequence.known_tokens
    elif sequence.preemptions > 0:
        state.swapped_blocks += blocks_for(kept, limits)
    sequence.computed_tokens = before + chunk
    if before < sequence.prefill_until:
        _count_prefill(step, sequence, before, limits.window_tokens)
    else:
        step.decode_sequences += 1
        step.decode_context_tokens += min(before + chunk, limits.window_tokens)
    if sequence.computed_tokens == sequence.known_tokens:
        sequence.known_tokens += 1
        memory[emitting_at(state, limits) + step.output_tokens] = index
        step.output_tokens += 1
    if limits.prefix_cache:
        keep_full_blocks(sequence, before, limits, memory)
    memory[limits.seats_at + state.running] = index
    state.running += 1
    step.sequences += 1


@compiled_part
def _count_prefill(step: Records, sequence: Records, before: int, window: int) -> None:
    """Add a prompt chunk, which a sequence that had computed `before` tokens has just computed, to the step's counts.

    Token number k attends to min(k, window) keys.
    """
    after = sequence.computed_tokens
    rising_from, rising_to = min(before, window), min(after, window)
    rising = (rising_to * (rising_to + 1) - rising_from * (rising_from + 1)) // 2
    step.prefill_tokens += after - before
    step.prefill_pairs += rising + window * (after - before - (rising_to - rising_from))
    step.recomputed_tokens += max(0, min(after, sequence.reached_tokens) - before)
