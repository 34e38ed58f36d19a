"""The replay loop, compiled. `replay.execution.engine` says what it does; `replay.execution.twin` does the same in plain Python.

Imported only when a replay runs, for importing the compiler takes longer than most commands. No fast-math: the order of
floating-point operations is that of the source, so that the twin's results are equal bit by bit.

Compiled code is kept on disk and found again by this file's time stamp and the argument types. So arguments are arrays and plain
tuples, and one of the types names the content of all files that hold a part of the loop: one changed elsewhere would meet stale
machine code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.compiled import borrowed, compiled, compiled_part, inlined_part
from replay.execution.loop_arrays import COMPOSING, ENDING, FLIGHT_PLACES, IMPLIED, IS_ROUND, LISTED, WAITING
from replay.execution.loop_blocks import release_blocks
from replay.execution.loop_power import borrowed_power, joined_seconds, powered_step
from replay.execution.loop_prices import decode_seconds, prefill_seconds
from replay.execution.loop_queue import batch_starts_at, leave_preempted
from replay.execution.loop_schedule import newest_place, schedule
from replay.execution.loop_steady import end_round
from replay.execution.step_costs import Counts, Floats, Records

FINISHED, RECORD_FULL, STUCK, PAUSED = 0, 1, 2, 3
"""Results of `run_steps`."""


@compiled
def run_steps(
    sequences: Records,
    memory: Counts,
    gaps: Records,
    token_gaps: Records,
    ends_s: Floats,
    states: Records,
    all_limits: Records,
    costs: tuple[Any, ...],
    record: Records,
    powered: tuple[Any, ...] | None,
    until_s: float,
) -> int:
    """Return FINISHED (of all requests given), or RECORD_FULL (drain the records and call again), or STUCK (nothing can run: a broken
    law), or PAUSED: what comes next, at `next_s` of the state, comes no sooner than `until_s` or, with `stops_at_finish`, after a finish.

    The arguments are SEQUENCE, the fields of LoopArrays, those of CostArrays, STEP, and those of PowerArrays, or None: a replay
    without power is compiled without its code. Arrays leave their tuple
    once, before the loop: every time costs an atomic reference count, and so does every array that is handed on.
    """
    sequences, memory, gaps, record = borrowed(sequences), borrowed(memory), borrowed(gaps), borrowed(record)
    token_gaps, ends_s = borrowed(token_gaps), borrowed(ends_s)
    token_rows, sequence_s, decode, context_knots, prefill, token_knots, keys_knots, stage_shares = costs
    token_rows, sequence_s, decode, prefill = borrowed(token_rows), borrowed(sequence_s), borrowed(decode), borrowed(prefill)
    context_knots, token_knots, keys_knots = borrowed(context_knots), borrowed(token_knots), borrowed(keys_knots)
    stage_shares = borrowed(stage_shares)
    if powered is not None:
        power_arrays = borrowed_power(powered)
    state, limits = states[0], all_limits[0]
    while True:
        if state.phase == ENDING:
            if state.next_s >= until_s:
                return PAUSED
            _finish_oldest(sequences, memory, gaps, token_gaps, ends_s, state, limits)
            state.phase = COMPOSING
            if state.finished > 0 and limits.stops_at_finish:
                state.next_s = state.clock_s
                return PAUSED
        if state.phase == WAITING:
            state.clock_s, state.phase = state.next_s, COMPOSING
        if state.in_flight == 0 and state.running == 0 and state.preempted == 0 and state.admitted == state.arrived:
            if state.arrived == state.given:
                state.next_s = np.inf
                return FINISHED
            state.clock_s = max(state.clock_s, sequences[state.arrived].arrival_s)
        state.next_s = state.clock_s
        if state.clock_s >= until_s:
            return PAUSED
        if state.steps == len(record) or state.token_gaps + limits.max_running >= len(token_gaps):
            return RECORD_FULL
        state.arrived = _arrived(sequences, state)
        step = record[state.steps]
        schedule(sequences, memory, gaps, state, limits, step)
        if step.sequences > 0:
            computed, tokens_s = _launch(token_rows, memory, state, limits, step)
            priced = (decode, context_knots, prefill, token_knots, keys_knots)
            if powered is not None:
                powered_step(state, limits, step, computed, ends_s[limits.steps_in_flight], priced, power_arrays)
            else:
                step.device_s = _device_seconds(step, limits, tokens_s + sequence_s[step.sequences], priced)
            _start(memory, ends_s, stage_shares, state, limits, step)
            if state.in_flight < limits.steps_in_flight:
                continue
        elif state.in_flight == 0:
            wakes_s = _wakes_at(sequences, memory, state, limits)
            if wakes_s <= state.clock_s:
                return STUCK
            state.phase, state.next_s = WAITING, wakes_s
            if wakes_s >= until_s:
                return PAUSED
            continue
        state.phase, state.next_s = ENDING, ends_s[state.oldest]


@inlined_part
def _arrived(sequences: Records, state: Records) -> int:
    """Return how many requests have arrived by the clock."""
    arrived: int = state.arrived
    while arrived < state.given and sequences[arrived].arrival_s <= state.clock_s:
        arrived += 1
    return arrived


@inlined_part
def _launch(token_rows: Records, memory: Counts, state: Records, limits: Records, step: Records) -> tuple[int, float]:
    """Let a step replay its graph, or run eagerly; return the row of its token-wise kernels and their time at the full clock."""
    phase_start = limits.max_batched_tokens + 1 if step.prefill_tokens > 0 else 0
    row = token_rows[phase_start + step.tokens]
    step.captured_tokens, step.host_s, step.compile_s = row.captured_tokens, row.host_s, 0.0
    tokens_s = row.device_s
    if limits.compile_bins > 0 and not _is_compiled(memory, state, limits, step):
        step.captured_tokens, step.host_s, tokens_s = 0, row.eager_host_s, row.eager_device_s
    return phase_start + (step.captured_tokens if step.captured_tokens > 0 else step.tokens), tokens_s


@inlined_part
def _device_seconds(step: Records, limits: Records, rows_s: float, costs: tuple[Any, ...]) -> float:
    """Return the device time of a step at the full clock, of which the token-wise and sequence-wise kernels take `rows_s`."""
    decode, context_knots, prefill, token_knots, keys_knots = costs
    device_s: float = rows_s
    if step.decode_sequences > 0:
        device_s += decode_seconds(step, decode, context_knots, 1.0)
    if step.prefill_tokens > 0:
        device_s += prefill_seconds(step, prefill, token_knots, keys_knots, 1.0)
    if step.swapped_blocks > 0:
        device_s += step.swapped_blocks * limits.block_swap_s
    return device_s


@inlined_part
def _start(memory: Counts, ends_s: Floats, stage_shares: Floats, state: Records, limits: Records, step: Records) -> None:
    """Put a step behind those in flight: it enters each stage when it and the step before it have left what they must leave."""
    left = limits.steps_in_flight
    step.scheduled_s = state.clock_s
    step.start_s = max(state.clock_s, ends_s[left])
    at_s = step.start_s + step.compile_s
    duration_s = joined_seconds(step.device_s, step.host_s, limits)
    for stage in range(limits.stages):
        at_s = max(at_s, ends_s[left + stage]) + duration_s * stage_shares[stage]
        ends_s[left + stage] = at_s
    newest = newest_place(state, limits)
    step.end_s = ends_s[newest] = at_s
    flight = limits.flights_at + newest * FLIGHT_PLACES
    memory[flight + LISTED], memory[flight + IMPLIED] = state.newest_listed, state.implied
    memory[flight + IS_ROUND] = state.newest_is_round
    state.in_flight += 1
    state.steps += 1


@compiled_part
def _is_compiled(memory: Counts, state: Records, limits: Records, step: Records) -> bool:
    """Return whether a step has the variant that it needs, if it needs one; compile it now, if there may be another one."""
    place = limits.compile_bins_at
    end = place + limits.compile_bins
    while place < end and memory[place] < step.tokens:
        place += 1
    if place == end or memory[place + limits.compile_bins] > 0:
        return True
    if state.variants == limits.compile_max_variants:
        return False
    memory[place + limits.compile_bins] = 1
    state.variants += 1
    step.compile_s = limits.compile_variant_s
    return True


@compiled_part
def _wakes_at(sequences: Records, memory: Counts, state: Records, limits: Records) -> float:
    """Return when a server that lets requests wait for company looks at them again: at the next arrival, or when time is up."""
    starts_s: float = batch_starts_at(sequences, memory, state, limits)
    if state.arrived == state.given:
        return starts_s
    return float(min(starts_s, sequences[state.arrived].arrival_s))


@inlined_part
def _finish_oldest(
    sequences: Records, memory: Counts, gaps: Records, token_gaps: Records, ends_s: Floats, state: Records, limits: Records
) -> None:
    """End the oldest step in flight: emit its tokens, release what is finished, close up on the seats."""
    end_s, finished = ends_s[state.oldest], 0
    flight = limits.flights_at + state.oldest * FLIGHT_PLACES
    common_s, common = end_s - state.round_end_s, memory[flight + IMPLIED]
    emitting = limits.emitting_at + state.oldest * limits.max_running
    for place in range(emitting, emitting + memory[flight + LISTED]):
        sequence = sequences[memory[place]]
        emitted = sequence.emitted_tokens + 1
        sequence.emitted_tokens = emitted
        if emitted == 1:
            sequence.first_token_s = end_s
        else:
            gap_s = end_s - sequence.last_token_s
            sequence.worst_itl_s = max(sequence.worst_itl_s, gap_s)
            if gap_s == common_s:
                common += 1
            else:
                _note_gap(token_gaps, state, gap_s, 1)
        sequence.last_token_s = end_s
        if sequence.prompt_tokens + emitted == sequence.total_tokens:
            memory[limits.finished_at + finished] = memory[place]
            finished += 1
            release_blocks(sequence, state, limits, memory)
            if sequence.computed_tokens == 0:  # it was preempted while its last token was in flight
                leave_preempted(sequences, memory, state, limits, memory[place])
    if common > 0:
        _note_gap(token_gaps, state, common_s, common)
    state.clock_s, state.finished = end_s, finished
    state.outstanding -= finished
    state.oldest = state.oldest + 1 if state.oldest + 1 < limits.steps_in_flight else 0
    state.in_flight -= 1
    if finished > 0:
        _close_gaps(sequences, memory, state, limits)
    if memory[flight + IS_ROUND] > 0:
        end_round(sequences, memory, gaps, state, limits, end_s)


@inlined_part
def _note_gap(token_gaps: Records, state: Records, gap_s: float, tokens: int) -> None:
    """Record a gap between consecutive tokens and how many had it."""
    row = token_gaps[state.token_gaps]
    row.gap_s, row.tokens = gap_s, tokens
    state.token_gaps += 1


@compiled_part
def _close_gaps(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Take finished sequences off their seats."""
    kept, front = limits.seats_at, state.front
    for position in range(state.running):
        index = memory[limits.seats_at + position]
        if sequences[index].prompt_tokens + sequences[index].emitted_tokens < sequences[index].total_tokens:
            memory[kept] = index
            kept += 1
        elif position < front:
            state.front -= 1
    state.running = kept - limits.seats_at
