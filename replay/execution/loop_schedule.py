"""Composition of one step, compiled: which sequences compute how many tokens, and who has to give way."""

from __future__ import annotations

from typing import Any

from replay.compiled import compiled_part
from replay.execution.loop_arrays import CHUNKED, PREFILL_FIRST, RESERVE, STATIC, WHOLE_PROMPT
from replay.execution.loop_blocks import find_prefix, keep_full_blocks, release_blocks, take_blocks, use_prefix
from replay.execution.loop_queue import batch_starts_at, leave_queue, next_waiting, order_queue
from replay.execution.step_costs import Counts, Floats, Records


@compiled_part
def schedule(
    sequences: Records,
    seats: Counts,
    preempted: Counts,
    waiting: Counts,
    scores: Floats,
    emitting: Counts,
    slot: int,
    state: Records,
    limits: Records,
    step: Records,
    cache: tuple[Any, ...],
) -> None:
    """Choose the step's chunks, by the rule of the scheduler.

    What is chosen counts as computed from here on; `emitting[slot]` receives the sequences that get a token when the step ends.
    A schedule without sequences is no step: its preemptions count with those of the next one.
    """
    step.prefill_tokens = step.prefill_pairs = step.recomputed_tokens = step.prefix_hit_tokens = step.output_tokens = 0
    step.sequences = step.decode_sequences = step.decode_context_tokens = 0
    step.preemptions = state.unrecorded_preemptions
    budget: int = limits.max_batched_tokens
    admits_first = limits.scheduler == PREFILL_FIRST or (limits.scheduler == STATIC and state.running == 0)
    if not admits_first:
        budget = _continue_running(sequences, seats, preempted, emitting, slot, state, limits, step, cache)
    preempts = step.preemptions > state.unrecorded_preemptions
    if admits_first or (limits.scheduler == CHUNKED and not preempts):
        _admit_waiting(sequences, seats, preempted, waiting, scores, emitting, slot, state, limits, step, cache, budget)
    if admits_first and step.sequences == 0:
        _continue_running(sequences, seats, preempted, emitting, slot, state, limits, step, cache)
        preempts = step.preemptions > state.unrecorded_preemptions
    step.tokens = step.decode_sequences + step.prefill_tokens
    step.running = state.running
    step.waiting = state.preempted + state.arrived - state.admitted
    step.kv_blocks = limits.pool_blocks - state.free_blocks
    state.unrecorded_preemptions = step.preemptions if step.sequences == 0 else 0
    quiet = step.tokens == step.decode_sequences == state.running > 0 and not preempts
    state.quiet = state.quiet + 1 if quiet else 0


@compiled_part
def _continue_running(
    sequences: Records,
    seats: Counts,
    preempted: Counts,
    emitting: Counts,
    slot: int,
    state: Records,
    limits: Records,
    step: Records,
    cache: tuple[Any, ...],
) -> int:
    """Schedule running sequences, preempting the newest where blocks run out; return the budget that is left."""
    budget: int = limits.max_batched_tokens
    position, decodes, decode_context = 0, 0, 0
    while position < state.running and budget > 0:
        index = seats[position]
        sequence = sequences[index]
        before = sequence.computed_tokens
        if sequence.known_tokens == sequence.total_tokens:  # its last token is in flight
            position += 1
            continue
        chunk = min(sequence.known_tokens - before, budget)
        if before + chunk > sequence.blocks * limits.block_tokens:
            needed = _blocks(before + chunk, limits) - sequence.blocks
            while needed > state.free_blocks and state.running > position:
                _preempt_newest(sequences, seats, preempted, state, limits, cache)
                step.preemptions += 1
            if state.running == position:  # the sequence itself was the newest
                break
            take_blocks(sequence, needed, state, limits, cache)
        if before >= sequence.prefill_until:
            decodes += 1
            decode_context += min(before + 1, limits.window_tokens)
        else:
            _count_prefill(step, sequence, chunk, limits.window_tokens)
        _compute(sequence, index, chunk, emitting, slot, limits, step, cache)
        budget -= chunk
        position += 1
    step.decode_sequences, step.decode_context_tokens = decodes, decode_context
    return budget


@compiled_part
def _admit_waiting(
    sequences: Records,
    seats: Counts,
    preempted: Counts,
    waiting: Counts,
    scores: Floats,
    emitting: Counts,
    slot: int,
    state: Records,
    limits: Records,
    step: Records,
    cache: tuple[Any, ...],
    budget: int,
) -> None:
    """Admit from the head of the queue while budget, seats and blocks last; the head blocks those behind it."""
    if budget == 0 or state.running == limits.max_running:
        return
    order_queue(sequences, waiting, scores, state, limits, cache)
    if limits.scheduler == STATIC and batch_starts_at(sequences, waiting, state, limits) > state.clock_s:
        return
    while budget > 0 and state.running < limits.max_running:
        resumed = state.preempted > 0
        if not resumed and state.admitted == state.arrived:
            break
        index = preempted[state.preempted - 1] if resumed else next_waiting(waiting, state, limits)
        sequence = sequences[index]
        cached, cached_free = find_prefix(sequence, index, limits, cache)
        before = cached * limits.block_tokens
        chunk = min(sequence.known_tokens - before, budget)
        taken = _blocks(before + chunk if limits.kv_policy != RESERVE else sequence.total_tokens - 1, limits) - cached
        wanted = taken if limits.kv_policy != WHOLE_PROMPT else _blocks(sequence.known_tokens, limits) - cached
        if wanted + cached_free > state.free_blocks - limits.watermark_blocks:
            break
        if limits.scheduler != CHUNKED and before + chunk < sequence.known_tokens:
            break
        if resumed:
            state.preempted -= 1
        else:
            leave_queue(sequences, waiting, state, limits)
            sequence.first_scheduled_s = state.clock_s
        use_prefix(sequence, index, cached, state, limits, cache)
        take_blocks(sequence, taken, state, limits, cache)
        sequence.computed_tokens = before
        saved = max(0, before - sequence.reached_tokens)
        sequence.prefix_hit_tokens += saved
        step.prefix_hit_tokens += saved
        sequence.prefill_until = sequence.known_tokens
        _count_prefill(step, sequence, chunk, limits.window_tokens)
        seats[state.running] = index
        state.running += 1
        _compute(sequence, index, chunk, emitting, slot, limits, step, cache)
        budget -= chunk


@compiled_part
def _blocks(tokens: int, limits: Records) -> int:
    """Return the blocks that hold so many tokens."""
    return int((tokens + limits.block_tokens - 1) // limits.block_tokens)


@compiled_part
def _compute(
    sequence: Records, index: int, chunk: int, emitting: Counts, slot: int, limits: Records, step: Records, cache: tuple[Any, ...]
) -> None:
    """Let the step compute a sequence's next tokens; the last known one yields a new one."""
    step.sequences += 1
    sequence.computed_tokens += chunk
    keep_full_blocks(sequence, index, sequence.computed_tokens - chunk, limits, cache)
    if sequence.computed_tokens == sequence.known_tokens:
        sequence.known_tokens += 1
        emitting[slot, step.output_tokens] = index
        step.output_tokens += 1


@compiled_part
def _preempt_newest(sequences: Records, seats: Counts, preempted: Counts, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Take the newest running sequence's blocks and put it in front of the queue with nothing computed."""
    state.running -= 1
    index = seats[state.running]
    sequence = sequences[index]
    release_blocks(sequence, state, limits, cache)
    sequence.reached_tokens = max(sequence.reached_tokens, sequence.computed_tokens)
    sequence.computed_tokens = 0
    sequence.preemptions += 1
    preempted[state.preempted] = index
    state.preempted += 1


@compiled_part
def _count_prefill(step: Records, sequence: Records, chunk: int, window: int) -> None:
    """Add the next prompt chunk of a sequence to the step's counts.

    Token number k attends to min(k, window) keys.
    """
    before = sequence.computed_tokens
    after = before + chunk
    rising_from, rising_to = min(before, window), min(after, window)
    rising = (rising_to * (rising_to + 1) - rising_from * (rising_from + 1)) // 2
    step.prefill_tokens += chunk
    step.prefill_pairs += rising + window * (chunk - (rising_to - rising_from))
    step.recomputed_tokens += max(0, min(after, sequence.reached_tokens) - before)
