"""The replay loop, compiled. `replay.execution.engine` says what it does; `replay.execution.twin` does the same in plain Python.

Imported only when a replay runs, for importing the compiler takes longer than most commands. No fast-math: the order of
floating-point operations is that of the source, so that the twin's results are equal bit by bit.

Compiled code is kept on disk and found again by this file's time stamp and the argument types. So arguments are arrays and plain
tuples, and one of the types names the content of all files that hold a part of the loop: one changed elsewhere would meet stale
machine code.
"""

from __future__ import annotations

from typing import Any

from replay.compiled import borrowed, compiled, compiled_part
from replay.execution.loop_arrays import CHUNKED, FCFS, RESERVE, SJF, STATIC
from replay.execution.loop_blocks import keep_full_blocks, release_blocks, take_blocks
from replay.execution.loop_prices import decode_seconds, prefill_seconds
from replay.execution.loop_queue import batch_starts_at
from replay.execution.loop_schedule import blocks_for, schedule
from replay.execution.step_costs import Counts, Floats, Records

FINISHED, RECORD_FULL, STUCK = 0, 1, 2
"""Results of `run_steps`."""


@compiled
def run_steps(sequences: Records, memory: Counts, states: Records, all_limits: Records, costs: tuple[Any, ...], record: Records) -> int:
    """Return FINISHED, or RECORD_FULL (drain the record and call again), or STUCK (nothing can run: a broken law).

    The arguments are SEQUENCE, the memory, STATE [1], LIMITS [1], the fields of CostArrays, and STEP. Arrays leave their tuple
    once, before the loop: every time costs an atomic reference count, and so does every array that is handed on.
    """
    sequences, memory, record = borrowed(sequences), borrowed(memory), borrowed(record)
    token_rows, sequence_s, decode, context_knots, prefill, token_knots, keys_knots = costs
    token_rows, sequence_s, decode, prefill = borrowed(token_rows), borrowed(sequence_s), borrowed(decode), borrowed(prefill)
    context_knots, token_knots, keys_knots = borrowed(context_knots), borrowed(token_knots), borrowed(keys_knots)
    state, limits = states[0], all_limits[0]
    while True:
        if state.in_flight == 0 and state.running == 0 and state.preempted == 0 and state.admitted == state.arrived:
            if state.arrived == len(sequences):
                return FINISHED
            state.clock_s = max(state.clock_s, sequences[state.arrived].arrival_s)
        if state.steps == len(record):
            return RECORD_FULL
        state.arrived = _arrived(sequences, state)
        step = record[state.steps]
        schedule(sequences, memory, state, limits, step)
        if step.sequences > 0:
            row = token_rows[step.tokens + (limits.max_batched_tokens + 1 if step.prefill_tokens > 0 else 0)]
            step.captured_tokens, step.host_s = row.captured_tokens, row.host_s
            step.device_s = row.device_s + sequence_s[step.sequences]
            if step.decode_sequences > 0:
                step.device_s += decode_seconds(step, decode, context_knots)
            if step.prefill_tokens > 0:
                step.device_s += prefill_seconds(step, prefill, token_knots, keys_knots)
            _start(state, step)
            if state.in_flight < limits.steps_in_flight:
                continue
        elif state.in_flight == 0:
            wakes_s = _wakes_at(sequences, memory, state, limits)
            if wakes_s <= state.clock_s:
                return STUCK
            state.clock_s = wakes_s
            continue
        _finish_oldest(sequences, memory, state, limits)
        if state.quiet >= limits.steps_in_flight:
            row, seats_s = token_rows[state.running], sequence_s[state.running]
            _jump(sequences, memory, state, limits, record, row, seats_s, decode, context_knots)


@compiled_part
def _arrived(sequences: Records, state: Records) -> int:
    """Return how many requests have arrived by the clock."""
    arrived: int = state.arrived
    while arrived < len(sequences) and sequences[arrived].arrival_s <= state.clock_s:
        arrived += 1
    return arrived


@compiled_part
def _start(state: Records, step: Records) -> None:
    """Put a step behind those in flight."""
    step.scheduled_s = state.clock_s
    step.start_s = max(state.clock_s, state.busy_until_s)
    step.end_s = state.busy_until_s = step.start_s + max(step.device_s, step.host_s)
    if state.in_flight == 0:
        state.oldest_end_s, state.oldest_emitting = step.end_s, step.output_tokens
    else:
        state.newest_emitting = step.output_tokens
    state.in_flight += 1
    state.steps += 1


@compiled_part
def _wakes_at(sequences: Records, memory: Counts, state: Records, limits: Records) -> float:
    """Return when a server that lets requests wait for company looks at them again: at the next arrival, or when time is up."""
    starts_s: float = batch_starts_at(sequences, memory, state, limits)
    if state.arrived == len(sequences):
        return starts_s
    return float(min(starts_s, sequences[state.arrived].arrival_s))


@compiled_part
def _finish_oldest(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """End the oldest step in flight: emit its tokens, release what is finished, close the gaps between seats."""
    end_s, finished = state.oldest_end_s, 0
    emitting = limits.emitting_at + state.oldest * limits.max_running
    for place in range(emitting, emitting + state.oldest_emitting):
        sequence = sequences[memory[place]]
        emitted = sequence.emitted_tokens + 1
        sequence.emitted_tokens = emitted
        if emitted == 1:
            sequence.first_token_s = end_s
        else:
            sequence.worst_itl_s = max(sequence.worst_itl_s, end_s - sequence.last_token_s)
        sequence.last_token_s = end_s
        if sequence.prompt_tokens + emitted == sequence.total_tokens:
            finished += 1
            release_blocks(sequence, state, limits, memory)
            if sequence.computed_tokens == 0:  # it was preempted while its last token was in flight
                _leave_preempted(memory, state, limits, memory[place])
    state.clock_s = end_s
    state.oldest = (state.oldest + 1) % limits.steps_in_flight
    state.in_flight -= 1
    state.oldest_end_s, state.oldest_emitting = state.busy_until_s, state.newest_emitting
    if finished > 0:
        state.quiet = 0
        _close_gaps(sequences, memory, state, limits)


@compiled_part
def _leave_preempted(memory: Counts, state: Records, limits: Records, index: int) -> None:
    """Take a sequence out of the stack of preempted ones."""
    state.preempted -= 1
    place = limits.preempted_at + state.preempted
    above = memory[place]
    while above != index:
        place -= 1
        above, memory[place] = memory[place], above


@compiled_part
def _close_gaps(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Take finished sequences off their seats."""
    kept = limits.seats_at
    for place in range(limits.seats_at, limits.seats_at + state.running):
        sequence = sequences[memory[place]]
        if sequence.prompt_tokens + sequence.emitted_tokens < sequence.total_tokens:
            memory[kept] = memory[place]
            kept += 1
    state.running = kept - limits.seats_at


@compiled_part
def _jump(
    sequences: Records,
    memory: Counts,
    state: Records,
    limits: Records,
    record: Records,
    row: Records,
    sequence_s: float,
    decode: Records,
    knots: Floats,
) -> None:
    """Repeat a step in which every running sequence decoded, for as long as nothing else can happen, exactly as stepping would.

    That is until a sequence finishes or reaches the window, blocks run out, or a request arrives that could be admitted: one that
    has to wait behind others cannot, for seats, budget and free blocks do not grow; but in a queue that is not first come first
    served it may stand before them, and where order depends on time or cache a jump needs an empty queue. Only the steps' costs are
    computed one by one. Steps in flight have just been such steps, and each step of the jump ends the oldest of them.
    """
    running = state.running
    closed = running == limits.max_running or limits.scheduler == STATIC
    closed = closed or (limits.scheduler == CHUNKED and running == limits.max_batched_tokens)
    waits = state.preempted + state.arrived - state.admitted > 0
    if waits and not closed and limits.queue > SJF:
        return
    ignores_arrivals = closed or (waits and limits.queue == FCFS)
    steps, growing = _quiet_steps(sequences, memory, state, limits)
    steps = min(steps, len(record) - state.steps)
    context, longest_s, done, fresh_at = record[state.steps - 1].decode_context_tokens, 0.0, 0, limits.fresh_at
    while done < steps:
        arrived = _arrived(sequences, state)
        fresh = memory[fresh_at]
        if (arrived > state.arrived and not ignores_arrivals) or fresh > state.free_blocks:
            break
        state.arrived = arrived
        if fresh > 0:
            _take_fresh_blocks(sequences, memory, state, limits, fresh, done)
        fresh_at = fresh_at + 1 if fresh_at + 1 < limits.fresh_at + limits.block_tokens else limits.fresh_at
        step = record[state.steps]
        context += growing
        step.prefill_tokens = step.prefill_pairs = step.recomputed_tokens = step.prefix_hit_tokens = step.preemptions = 0
        step.tokens = step.sequences = step.decode_sequences = step.running = step.output_tokens = running
        step.decode_context_tokens = context
        step.waiting = state.preempted + state.arrived - state.admitted
        step.kv_blocks = limits.pool_blocks - state.free_blocks
        step.captured_tokens, step.host_s = row.captured_tokens, row.host_s
        step.device_s = row.device_s + sequence_s
        step.device_s += decode_seconds(step, decode, knots)
        step.scheduled_s, step.start_s = state.clock_s, state.busy_until_s
        step.end_s = state.busy_until_s + max(step.device_s, step.host_s)
        oldest_end_s = step.end_s if limits.steps_in_flight == 1 else state.busy_until_s
        longest_s = max(longest_s, oldest_end_s - state.clock_s)
        state.clock_s, state.busy_until_s = oldest_end_s, step.end_s
        state.steps += 1
        done += 1
    if done > 0:
        state.oldest_end_s = state.busy_until_s
        _book_jump(sequences, memory, state, limits, done, longest_s)


@compiled_part
def _quiet_steps(sequences: Records, memory: Counts, state: Records, limits: Records) -> tuple[int, int]:
    """Return the steps until a running sequence's last token or the window is reached, and those whose context grows until then.

    The part `fresh` of the memory [block tokens] receives the blocks taken in each of the following steps; it repeats.
    """
    steps, growing, block, reserved = 1 << 62, 0, limits.block_tokens, limits.kv_policy == RESERVE
    memory[limits.fresh_at : limits.fresh_at + block] = 0
    for place in range(limits.seats_at, limits.seats_at + state.running):
        sequence = sequences[memory[place]]
        steps = min(steps, sequence.total_tokens - sequence.known_tokens - 1)
        memory[limits.fresh_at + (block - sequence.computed_tokens % block) % block] += not reserved
        if sequence.computed_tokens < limits.window_tokens:
            growing += 1
            steps = min(steps, limits.window_tokens - sequence.computed_tokens)
    return steps, growing


@compiled_part
def _take_fresh_blocks(sequences: Records, memory: Counts, state: Records, limits: Records, count: int, done: int) -> None:
    """Take the blocks that a step of a jump needs after `done` others: one by one where each has an identity, else counted."""
    if not limits.prefix_cache:
        state.free_blocks -= count
        return
    for place in range(limits.seats_at, limits.seats_at + state.running):
        sequence = sequences[memory[place]]
        if (sequence.computed_tokens + done) % limits.block_tokens == 0:
            take_blocks(sequence, 1, state, limits, memory)


@compiled_part
def _book_jump(sequences: Records, memory: Counts, state: Records, limits: Records, steps: int, longest_s: float) -> None:
    """Book the tokens of all steps of a jump; `longest_s` is the longest gap between two of them."""
    for place in range(limits.seats_at, limits.seats_at + state.running):
        index = memory[place]
        sequence = sequences[index]
        sequence.computed_tokens += steps
        sequence.known_tokens += steps
        sequence.emitted_tokens += steps
        sequence.blocks = max(sequence.blocks, blocks_for(sequence.computed_tokens, limits))
        if limits.prefix_cache:
            keep_full_blocks(sequence, index, sequence.computed_tokens - steps, limits, memory)
        sequence.last_token_s = state.clock_s
        sequence.worst_itl_s = max(sequence.worst_itl_s, longest_s)
