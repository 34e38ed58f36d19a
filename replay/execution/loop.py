"""The replay loop, compiled. `replay.execution.engine` says what it does; `replay.execution.twin` does the same in plain Python.

Imported only when a replay runs, for importing the compiler takes longer than most commands. No fast-math: the order of
floating-point operations is that of the source, so that the twin's results are equal bit by bit.

Compiled code is kept on disk and found again by this file's time stamp and the argument types. So constants it uses are defined
here, and arguments are arrays and plain tuples: a changed constant or class elsewhere would meet stale machine code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.compiled import compiled
from replay.execution.step_costs import Counts, Floats, Records

FINISHED, RECORD_FULL, STUCK = 0, 1, 2
"""Results of `run_steps`."""


@compiled
def run_steps(sequences: Records, queues: tuple[Any, ...], costs: tuple[Any, ...], record: Records) -> int:
    """Return FINISHED, or RECORD_FULL (drain the record and call again), or STUCK (nothing can run: a broken law).

    `queues` are the fields of Queues, `costs` those of CostArrays, `record` is STEP. Arrays leave their tuples once, before
    the loop: every time costs an atomic reference count.
    """
    token_rows, sequence_s, decode, context_knots, prefill, token_knots, keys_knots = costs
    seats, preempted, states, limit_records, fresh_blocks = queues
    state, limits = states[0], limit_records[0]
    requests = len(sequences)
    while True:
        idle = state.running == 0 and state.preempted == 0 and state.admitted == state.arrived
        if idle and state.arrived == requests:
            return FINISHED
        if state.steps == len(record):
            return RECORD_FULL
        if idle:
            state.clock_s = max(state.clock_s, sequences[state.arrived].arrival_s)
        while state.arrived < requests and sequences[state.arrived].arrival_s <= state.clock_s:
            state.arrived += 1
        step = record[state.steps]
        _schedule(sequences, seats, preempted, state, limits, step)
        if step.sequences == 0:
            return STUCK
        row = token_rows[step.tokens + (limits.max_batched_tokens + 1 if step.prefill_tokens > 0 else 0)]
        step.captured_tokens, step.host_s = row.captured_tokens, row.host_s
        step.device_s = row.device_s + sequence_s[step.sequences]
        if step.decode_sequences > 0:
            step.device_s += _decode_seconds(step, decode, context_knots)
        if step.prefill_tokens > 0:
            step.device_s += _prefill_seconds(step, prefill, token_knots, keys_knots)
        step.start_s = state.clock_s
        step.end_s = state.clock_s + max(step.device_s, step.host_s)
        running = state.running
        _finish(sequences, seats, state, step)
        state.clock_s = step.end_s
        state.steps += 1
        if step.decode_sequences == running and step.tokens == running and state.running == running and step.preemptions == 0:
            _jump(sequences, seats, state, limits, record, fresh_blocks, row, sequence_s[running], decode, context_knots)


@compiled
def _jump(
    sequences: Records,
    seats: Records,
    state: Records,
    limits: Records,
    record: Records,
    fresh_blocks: Counts,
    row: Records,
    sequence_s: float,
    decode: Records,
    knots: Floats,
) -> None:
    """Repeat a step in which every running sequence decoded, for as long as nothing else can happen, exactly as stepping would.

    That is until a sequence finishes or reaches the window, blocks run out, or a request arrives that could be admitted: one that
    has to wait behind others cannot, for seats, budget and free blocks do not grow. Only the steps' costs are computed one by one.
    """
    running, block = state.running, limits.block_tokens
    steps, growing = _quiet_steps(sequences, seats, state, limits, fresh_blocks)
    last = record[state.steps - 1]
    context, longest_s, done = last.decode_context_tokens, 0.0, 0
    waits = state.preempted + state.arrived - state.admitted > 0
    requests, offset = len(sequences), 0
    steps = min(steps, len(record) - state.steps)
    while done < steps:
        arrived = state.arrived
        while arrived < requests and sequences[arrived].arrival_s <= state.clock_s:
            arrived += 1
        if (arrived > state.arrived and not waits) or fresh_blocks[offset] > state.free_blocks:
            break
        state.arrived = arrived
        state.free_blocks -= fresh_blocks[offset]
        offset = offset + 1 if offset + 1 < block else 0
        step = record[state.steps]
        context += growing
        step.prefill_tokens = step.prefill_pairs = step.recomputed_tokens = step.preemptions = 0
        step.tokens = step.sequences = step.decode_sequences = step.running = step.output_tokens = running
        step.decode_context_tokens = context
        step.waiting = state.preempted + state.arrived - state.admitted
        step.kv_blocks = limits.pool_blocks - state.free_blocks
        step.captured_tokens, step.host_s = row.captured_tokens, row.host_s
        step.device_s = row.device_s + sequence_s
        step.device_s += _decode_seconds(step, decode, knots)
        step.start_s = state.clock_s
        step.end_s = state.clock_s + max(step.device_s, step.host_s)
        longest_s = max(longest_s, step.end_s - state.clock_s)
        state.clock_s = step.end_s
        state.steps += 1
        done += 1
    if done > 0:
        _book_jump(sequences, seats, state, block, done, longest_s)


@compiled
def _quiet_steps(sequences: Records, seats: Records, state: Records, limits: Records, fresh_blocks: Counts) -> tuple[int, int]:
    """Return the steps until a running sequence finishes or reaches the window, and those whose context grows until then.

    `fresh_blocks` [block tokens] receives the blocks taken in each of the following steps; it repeats.
    """
    steps, growing, block = 1 << 62, 0, limits.block_tokens
    fresh_blocks[:] = 0
    for position in range(state.running):
        sequence = sequences[seats[position].sequence]
        steps = min(steps, sequence.total_tokens - sequence.known_tokens - 1)
        fresh_blocks[(block - sequence.computed_tokens % block) % block] += 1
        if sequence.computed_tokens < limits.window_tokens:
            growing += 1
            steps = min(steps, limits.window_tokens - sequence.computed_tokens)
    return steps, growing


@compiled
def _book_jump(sequences: Records, seats: Records, state: Records, block: int, steps: int, longest_s: float) -> None:
    """Book the tokens of all steps of a jump, of which the longest took `longest_s`."""
    for position in range(state.running):
        sequence = sequences[seats[position].sequence]
        sequence.computed_tokens += steps
        sequence.known_tokens += steps
        sequence.blocks = (sequence.computed_tokens + block - 1) // block
        sequence.last_token_s = state.clock_s
        sequence.worst_itl_s = max(sequence.worst_itl_s, longest_s)


@compiled
def _schedule(sequences: Records, seats: Records, preempted: Counts, state: Records, limits: Records, step: Records) -> None:
    """Choose the step's chunks: running sequences in order of admission, then waiting ones unless something was preempted."""
    step.prefill_tokens = step.prefill_pairs = step.recomputed_tokens = 0
    budget = _continue_running(sequences, seats, preempted, state, limits, step)
    if step.preemptions == 0:
        _admit_waiting(sequences, seats, preempted, state, limits, step, budget)
    step.tokens = step.decode_sequences + step.prefill_tokens
    step.running = state.running
    step.waiting = state.preempted + state.arrived - state.admitted
    step.kv_blocks = limits.pool_blocks - state.free_blocks


@compiled
def _continue_running(sequences: Records, seats: Records, preempted: Counts, state: Records, limits: Records, step: Records) -> int:
    """Schedule running sequences, preempting the newest where blocks run out; return the budget that is left."""
    budget: int = limits.max_batched_tokens
    position, decodes, decode_context, preemptions = 0, 0, 0, 0
    while position < state.running and budget > 0:
        seat = seats[position]
        sequence = sequences[seat.sequence]
        before = sequence.computed_tokens
        chunk = min(sequence.known_tokens - before, budget)
        if before + chunk > sequence.blocks * limits.block_tokens:
            needed = (before + chunk + limits.block_tokens - 1) // limits.block_tokens - sequence.blocks
            while needed > state.free_blocks and state.running > position:
                _preempt_newest(sequences, seats, preempted, state)
                preemptions += 1
            if state.running == position:  # the sequence itself was the newest
                break
            state.free_blocks -= needed
            sequence.blocks += needed
        if before >= sequence.prefill_until:
            decodes += 1
            decode_context += min(before + 1, limits.window_tokens)
        else:
            _count_prefill(step, sequence, chunk, limits.window_tokens)
        seat.chunk_tokens = chunk
        budget -= chunk
        position += 1
    step.sequences, step.decode_sequences, step.decode_context_tokens, step.preemptions = position, decodes, decode_context, preemptions
    return budget


@compiled
def _admit_waiting(
    sequences: Records, seats: Records, preempted: Counts, state: Records, limits: Records, step: Records, budget: int
) -> None:
    """Admit from the head of the queue while budget, seats and blocks last; the head blocks those behind it."""
    while budget > 0 and state.running < limits.max_running:
        resumed = state.preempted > 0
        if not resumed and state.admitted == state.arrived:
            break
        index = preempted[state.preempted - 1] if resumed else state.admitted
        sequence = sequences[index]
        chunk = min(sequence.known_tokens, budget)
        needed = (chunk + limits.block_tokens - 1) // limits.block_tokens
        if needed > state.free_blocks:
            break
        if resumed:
            state.preempted -= 1
        else:
            state.admitted += 1
            sequence.first_scheduled_s = state.clock_s
        state.free_blocks -= needed
        sequence.blocks = needed
        sequence.prefill_until = sequence.known_tokens
        _count_prefill(step, sequence, chunk, limits.window_tokens)
        seat = seats[state.running]
        seat.sequence, seat.chunk_tokens = index, chunk
        state.running += 1
        step.sequences += 1
        budget -= chunk


@compiled
def _preempt_newest(sequences: Records, seats: Records, preempted: Counts, state: Records) -> None:
    """Take the newest running sequence's blocks and put it in front of the queue with nothing computed."""
    state.running -= 1
    index = seats[state.running].sequence
    sequence = sequences[index]
    state.free_blocks += sequence.blocks
    sequence.blocks = 0
    sequence.reached_tokens = max(sequence.reached_tokens, sequence.computed_tokens)
    sequence.computed_tokens = 0
    sequence.preemptions += 1
    preempted[state.preempted] = index
    state.preempted += 1


@compiled
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


@compiled
def _finish(sequences: Records, seats: Records, state: Records, step: Records) -> None:
    """Book the step's tokens at its end: emit, release finished sequences, close the gaps between seats."""
    end_s, kept, emitted = step.end_s, 0, 0
    for position in range(step.sequences):
        seat = seats[position]
        sequence = sequences[seat.sequence]
        sequence.computed_tokens += seat.chunk_tokens
        if sequence.computed_tokens == sequence.known_tokens:
            emitted += 1
            if sequence.known_tokens == sequence.prompt_tokens:
                sequence.first_token_s = end_s
            else:
                sequence.worst_itl_s = max(sequence.worst_itl_s, end_s - sequence.last_token_s)
            sequence.last_token_s = end_s
            sequence.known_tokens += 1
            if sequence.known_tokens == sequence.total_tokens:
                state.free_blocks += sequence.blocks
                sequence.blocks = 0
                continue
        seats[kept].sequence = seat.sequence
        kept += 1
    for position in range(step.sequences, state.running):
        seats[kept].sequence = seats[position].sequence
        kept += 1
    state.running = kept
    step.output_tokens = emitted


@compiled
def _decode_seconds(step: Records, decode: Records, knots: Floats) -> float:
    """Seconds of decode attention: terms interpolated between the knots around the mean context, then joined."""
    low, high, share = _cell(knots, step.decode_context_tokens / step.decode_sequences)
    first = step.decode_sequences * len(knots)
    total_s = 0.0
    for kernel in range(len(decode)):
        start, end = decode[kernel, first + low], decode[kernel, first + high]
        total_s += start.weight * _join(
            max(_between(start.launch_s, end.launch_s, share), 0.0),
            max(_between(start.compute_s, end.compute_s, share), 0.0),
            max(_between(start.memory_s, end.memory_s, share), 0.0),
            max(_between(start.sync_s, end.sync_s, share), 0.0),
            start.exponent,
        )
    return total_s


@compiled
def _prefill_seconds(step: Records, prefill: Records, token_knots: Floats, keys_knots: Floats) -> float:
    """Seconds of prefill attention: terms interpolated in tokens and in the mean keys of a query, then joined."""
    few, many, token_share = _cell(token_knots, float(step.prefill_tokens))
    low, high, keys_share = _cell(keys_knots, step.prefill_pairs / step.prefill_tokens)
    first, second = few * len(keys_knots), many * len(keys_knots)
    total_s = 0.0
    for kernel in range(len(prefill)):
        a, b, c, d = (
            prefill[kernel, first + low],
            prefill[kernel, first + high],
            prefill[kernel, second + low],
            prefill[kernel, second + high],
        )
        total_s += a.weight * _join(
            _corner(a.launch_s, b.launch_s, c.launch_s, d.launch_s, keys_share, token_share),
            _corner(a.compute_s, b.compute_s, c.compute_s, d.compute_s, keys_share, token_share),
            _corner(a.memory_s, b.memory_s, c.memory_s, d.memory_s, keys_share, token_share),
            _corner(a.sync_s, b.sync_s, c.sync_s, d.sync_s, keys_share, token_share),
            a.exponent,
        )
    return total_s


@compiled
def _cell(knots: Floats, value: float) -> tuple[int, int, float]:
    """Return the knots around a value and its place between them; the last interval also serves what lies beyond it."""
    low, beyond = 0, max(len(knots) - 1, 1)
    while beyond - low > 1:
        middle = (low + beyond) // 2
        if knots[middle] <= value:
            low = middle
        else:
            beyond = middle
    high = min(low + 1, len(knots) - 1)
    return low, high, max(value - knots[low], 0.0) / (knots[high] - knots[low] if high > low else 1.0)


@compiled
def _between(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


@compiled
def _corner(few_low: float, few_high: float, many_low: float, many_high: float, keys_share: float, token_share: float) -> float:
    few, many = few_low + (few_high - few_low) * keys_share, many_low + (many_high - many_low) * keys_share
    return max(few + (many - few) * token_share, 0.0)


@compiled
def sum_rows(axis: Records) -> Floats:
    """Return the seconds of all kernels of an axis (TERM [kernels, rows]) for each row [rows]."""
    kernels, rows = axis.shape
    total_s = np.zeros(rows)
    for kernel in range(kernels):
        for row in range(rows):
            term = axis[kernel, row]
            total_s[row] += term.weight * _join(term.launch_s, term.compute_s, term.memory_s, term.sync_s, term.exponent)
    return total_s


@compiled
def _join(launch_s: float, compute_s: float, memory_s: float, sync_s: float, exponent: float) -> float:
    """The rule of `replay.tiling.step_table`, written so that small times raised to large powers do not vanish."""
    larger, smaller = max(launch_s + compute_s, launch_s + memory_s), min(launch_s + compute_s, launch_s + memory_s)
    if np.isinf(exponent) or larger == 0.0:
        return larger + sync_s
    return float(larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent) + sync_s)
