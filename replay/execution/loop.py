"""The replay loop, compiled. `replay.execution.engine` says what it does; `replay.execution.twin` does the same in plain Python.

Imported only when a replay runs, for importing the compiler takes longer than most commands. No fast-math: the order of
floating-point operations is that of the source, so that the twin's results are equal bit by bit.

Compiled code is kept on disk and found again by this file's time stamp and the argument types. So arguments are arrays and plain
tuples, constants stand in the files that use them, and one of the types names the content of those files: a constant, class or
part changed elsewhere would meet stale machine code.
"""

from __future__ import annotations

from typing import Any

from replay.compiled import compiled, compiled_part
from replay.execution.loop_arrays import CHUNKED, FCFS, RESERVE, SJF, STATIC
from replay.execution.loop_blocks import keep_full_blocks, release_blocks, take_blocks
from replay.execution.loop_prices import decode_seconds, prefill_seconds
from replay.execution.loop_queue import batch_starts_at
from replay.execution.loop_schedule import schedule
from replay.execution.step_costs import Counts, Floats, Records

FINISHED, RECORD_FULL, STUCK = 0, 1, 2
"""Results of `run_steps`."""


@compiled
def run_steps(sequences: Records, queues: tuple[Any, ...], cache: tuple[Any, ...], costs: tuple[Any, ...], record: Records) -> int:
    """Return FINISHED, or RECORD_FULL (drain the record and call again), or STUCK (nothing can run: a broken law).

    `queues` are the fields of Queues, `cache` those of CacheArrays, `costs` those of CostArrays, `record` is STEP. What every step
    needs leaves its tuple once, before the loop: every time costs an atomic reference count.
    """
    token_rows, sequence_s, decode, context_knots, prefill, token_knots, keys_knots = costs
    seats, preempted, waiting, scores, emitting, in_flight, states, limit_records, fresh_blocks = queues
    state, limits = states[0], limit_records[0]
    while True:
        if state.in_flight == 0 and state.running == 0 and state.preempted == 0 and state.admitted == state.arrived:
            if state.arrived == len(sequences):
                return FINISHED
            state.clock_s = max(state.clock_s, sequences[state.arrived].arrival_s)
        if state.steps == len(record):
            return RECORD_FULL
        state.arrived = _arrived(sequences, state)
        step = record[state.steps]
        slot = (state.oldest + state.in_flight) % limits.steps_in_flight
        schedule(sequences, seats, preempted, waiting, scores, emitting, slot, state, limits, step, cache)
        if step.sequences > 0:
            row = token_rows[step.tokens + (limits.max_batched_tokens + 1 if step.prefill_tokens > 0 else 0)]
            step.captured_tokens, step.host_s = row.captured_tokens, row.host_s
            step.device_s = row.device_s + sequence_s[step.sequences]
            if step.decode_sequences > 0:
                step.device_s += decode_seconds(step, decode, context_knots)
            if step.prefill_tokens > 0:
                step.device_s += prefill_seconds(step, prefill, token_knots, keys_knots)
            step.scheduled_s = state.clock_s
            step.start_s = max(state.clock_s, state.busy_until_s)
            step.end_s = state.busy_until_s = step.start_s + max(step.device_s, step.host_s)
            flight = in_flight[slot]
            flight.end_s, flight.emitting = step.end_s, step.output_tokens
            state.in_flight += 1
            state.steps += 1
            if state.in_flight < limits.steps_in_flight:
                continue
        elif state.in_flight == 0:
            wakes_s = _wakes_at(sequences, waiting, state, limits)
            if wakes_s <= state.clock_s:
                return STUCK
            state.clock_s = wakes_s
            continue
        _finish_oldest(sequences, seats, preempted, emitting, in_flight, state, limits, cache)
        if state.quiet >= limits.steps_in_flight:
            row, seats_s = token_rows[state.running], sequence_s[state.running]
            _jump(sequences, seats, in_flight, state, limits, cache, record, fresh_blocks, row, seats_s, decode, context_knots)


@compiled_part
def _arrived(sequences: Records, state: Records) -> int:
    """Return how many requests have arrived by the clock."""
    arrived: int = state.arrived
    while arrived < len(sequences) and sequences[arrived].arrival_s <= state.clock_s:
        arrived += 1
    return arrived


@compiled_part
def _wakes_at(sequences: Records, waiting: Counts, state: Records, limits: Records) -> float:
    """Return when a server that lets requests wait for company looks at them again: at the next arrival, or when time is up."""
    starts_s: float = batch_starts_at(sequences, waiting, state, limits)
    if state.arrived == len(sequences):
        return starts_s
    return float(min(starts_s, sequences[state.arrived].arrival_s))


@compiled_part
def _finish_oldest(
    sequences: Records,
    seats: Counts,
    preempted: Counts,
    emitting: Counts,
    in_flight: Records,
    state: Records,
    limits: Records,
    cache: tuple[Any, ...],
) -> None:
    """End the oldest step in flight: emit its tokens, release what is finished, close the gaps between seats."""
    slot, finished = state.oldest, 0
    end_s = in_flight[slot].end_s
    for place in range(in_flight[slot].emitting):
        sequence = sequences[emitting[slot, place]]
        sequence.emitted_tokens += 1
        if sequence.emitted_tokens == 1:
            sequence.first_token_s = end_s
        else:
            sequence.worst_itl_s = max(sequence.worst_itl_s, end_s - sequence.last_token_s)
        sequence.last_token_s = end_s
        if sequence.prompt_tokens + sequence.emitted_tokens == sequence.total_tokens:
            finished += 1
            release_blocks(sequence, state, limits, cache)
            if sequence.computed_tokens == 0:  # it was preempted while its last token was in flight
                _leave_preempted(preempted, state, emitting[slot, place])
    state.clock_s = end_s
    state.oldest = (slot + 1) % limits.steps_in_flight
    state.in_flight -= 1
    if finished > 0:
        state.quiet = 0
        _close_gaps(sequences, seats, state)


@compiled_part
def _leave_preempted(preempted: Counts, state: Records, index: int) -> None:
    """Take a sequence out of the stack of preempted ones."""
    state.preempted -= 1
    place = state.preempted
    above = preempted[place]
    while above != index:
        place -= 1
        above, preempted[place] = preempted[place], above


@compiled_part
def _close_gaps(sequences: Records, seats: Counts, state: Records) -> None:
    """Take finished sequences off their seats."""
    kept = 0
    for position in range(state.running):
        sequence = sequences[seats[position]]
        if sequence.prompt_tokens + sequence.emitted_tokens < sequence.total_tokens:
            seats[kept] = seats[position]
            kept += 1
    state.running = kept


@compiled_part
def _jump(
    sequences: Records,
    seats: Counts,
    in_flight: Records,
    state: Records,
    limits: Records,
    cache: tuple[Any, ...],
    record: Records,
    fresh_blocks: Counts,
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
    running, block = state.running, limits.block_tokens
    closed = running == limits.max_running or limits.scheduler == STATIC
    closed = closed or (limits.scheduler == CHUNKED and running == limits.max_batched_tokens)
    steps, growing = _quiet_steps(sequences, seats, state, limits, fresh_blocks)
    context, longest_s, done, offset = record[state.steps - 1].decode_context_tokens, 0.0, 0, 0
    waits = state.preempted + state.arrived - state.admitted > 0
    if waits and not closed and limits.queue > SJF:
        return
    ignores_arrivals = closed or (waits and limits.queue == FCFS)
    steps = min(steps, len(record) - state.steps)
    while done < steps:
        arrived = _arrived(sequences, state)
        if (arrived > state.arrived and not ignores_arrivals) or fresh_blocks[offset] > state.free_blocks:
            break
        state.arrived = arrived
        if fresh_blocks[offset] > 0:
            _take_fresh_blocks(sequences, seats, state, limits, cache, fresh_blocks[offset], done)
        offset = offset + 1 if offset + 1 < block else 0
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
        in_flight[state.oldest].end_s = state.busy_until_s
        _book_jump(sequences, seats, state, limits, cache, done, longest_s)


@compiled_part
def _quiet_steps(sequences: Records, seats: Counts, state: Records, limits: Records, fresh_blocks: Counts) -> tuple[int, int]:
    """Return the steps until a running sequence's last token or the window is reached, and those whose context grows until then.

    `fresh_blocks` [block tokens] receives the blocks taken in each of the following steps; it repeats.
    """
    steps, growing, block, reserved = 1 << 62, 0, limits.block_tokens, limits.kv_policy == RESERVE
    fresh_blocks[:] = 0
    for position in range(state.running):
        sequence = sequences[seats[position]]
        steps = min(steps, sequence.total_tokens - sequence.known_tokens - 1)
        fresh_blocks[(block - sequence.computed_tokens % block) % block] += not reserved
        if sequence.computed_tokens < limits.window_tokens:
            growing += 1
            steps = min(steps, limits.window_tokens - sequence.computed_tokens)
    return steps, growing


@compiled_part
def _take_fresh_blocks(
    sequences: Records, seats: Counts, state: Records, limits: Records, cache: tuple[Any, ...], count: int, done: int
) -> None:
    """Take the blocks that a step of a jump needs after `done` others: one by one where each has an identity, else counted."""
    if not limits.prefix_cache:
        state.free_blocks -= count
        return
    for position in range(state.running):
        sequence = sequences[seats[position]]
        if (sequence.computed_tokens + done) % limits.block_tokens == 0:
            take_blocks(sequence, 1, state, limits, cache)


@compiled_part
def _book_jump(
    sequences: Records, seats: Counts, state: Records, limits: Records, cache: tuple[Any, ...], steps: int, longest_s: float
) -> None:
    """Book the tokens of all steps of a jump; `longest_s` is the longest gap between two of them."""
    for position in range(state.running):
        sequence = sequences[seats[position]]
        sequence.computed_tokens += steps
        sequence.known_tokens += steps
        sequence.emitted_tokens += steps
        sequence.blocks = max(sequence.blocks, (sequence.computed_tokens + limits.block_tokens - 1) // limits.block_tokens)
        keep_full_blocks(sequence, seats[position], sequence.computed_tokens - steps, limits, cache)
        sequence.last_token_s = state.clock_s
        sequence.worst_itl_s = max(sequence.worst_itl_s, longest_s)
