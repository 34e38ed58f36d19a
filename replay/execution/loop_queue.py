"""Order of the waiting queue, compiled: who is admitted next, and whether a batch may start.

The part `waiting` of the memory holds at `admitted` to `arrived` the requests that wait, in the order in which they are admitted; where
the shortest prompt goes first, it begins with a binary heap of them instead. Preempted sequences stand before all of them.
"""

from __future__ import annotations

from replay.compiled import compiled_part
from replay.execution.loop_arrays import HRRN, LONGEST_PREFIX, ORDERED_REQUESTS, SJF
from replay.execution.loop_blocks import find_prefix
from replay.execution.step_costs import Counts, Records


@compiled_part
def order_queue(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Bring the waiting queue into the order in which this step admits."""
    if limits.queue == SJF:
        while state.heaped < state.arrived:
            _push(sequences, memory, state.heaped, state.heaped - state.admitted, limits.waiting_at)
            state.heaped += 1
    elif limits.queue in (LONGEST_PREFIX, HRRN) and state.arrived - state.admitted <= ORDERED_REQUESTS:
        _sort(sequences, memory, state, limits)


@compiled_part
def next_waiting(memory: Counts, state: Records, limits: Records) -> int:
    """Return the sequence that is admitted next; there must be one, and the queue in order."""
    return int(memory[limits.waiting_at + (0 if limits.queue == SJF else state.admitted)])


@compiled_part
def leave_queue(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Take the next one out of the queue."""
    state.admitted += 1
    if limits.queue == SJF:
        _pop(sequences, memory, state.heaped - state.admitted, limits.waiting_at)


@compiled_part
def batch_starts_at(sequences: Records, memory: Counts, state: Records, limits: Records) -> float:
    """Return when a batch may start: at once if it is full, else when the request that waits longest has waited long enough.

    It is full with as many requests as may run, or prompts of as many tokens as one step may have.
    """
    count = state.arrived - state.admitted
    if state.preempted > 0 or count >= limits.max_running:
        return float(state.clock_s)
    first = limits.waiting_at + (0 if limits.queue == SJF else state.admitted)
    tokens, oldest = 0, state.arrived
    for place in range(first, first + count):
        tokens += sequences[memory[place]].prompt_tokens
        oldest = min(oldest, memory[place])
    if count == 0 or tokens >= limits.max_batched_tokens:
        return float(state.clock_s)
    return float(sequences[oldest].arrival_s + limits.max_delay_s)


@compiled_part
def _sort(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Sort by falling score; equal ones keep the order of the step before (insertion: the queue is nearly in order)."""
    first = limits.waiting_at + state.admitted
    for place in range(first, limits.waiting_at + state.arrived):
        index = memory[place]
        score = _score(sequences[index], memory, state, limits)
        sequences[index].score = score
        gap = place
        while gap > first and sequences[memory[gap - 1]].score < score:
            memory[gap] = memory[gap - 1]
            gap -= 1
        memory[gap] = index


@compiled_part
def _score(sequence: Records, memory: Counts, state: Records, limits: Records) -> float:
    """Return the cached tokens of a prompt, or the time it has waited for each token that is left to compute."""
    hit = find_prefix(sequence, limits, memory)[0] * limits.block_tokens
    if limits.queue == LONGEST_PREFIX:
        return float(hit)
    return float((state.clock_s - sequence.arrival_s) / (sequence.known_tokens - hit))


@compiled_part
def _shorter(sequences: Records, index: int, other: int) -> bool:
    """Return whether a prompt is shorter than another one, or as long and came before."""
    tokens, other_tokens = sequences[index].prompt_tokens, sequences[other].prompt_tokens
    return bool(tokens < other_tokens or (tokens == other_tokens and index < other))


@compiled_part
def _push(sequences: Records, memory: Counts, index: int, count: int, heap: int) -> None:
    """Let a request into a heap of `count`, which starts at the place `heap`."""
    place = count
    while place > 0:
        above = (place - 1) // 2
        if not _shorter(sequences, index, memory[heap + above]):
            break
        memory[heap + place] = memory[heap + above]
        place = above
    memory[heap + place] = index


@compiled_part
def _pop(sequences: Records, memory: Counts, count: int, heap: int) -> None:
    """Take the first one out of a heap, in which `count` are left."""
    index, place = memory[heap + count], 0
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and _shorter(sequences, memory[heap + below + 1], memory[heap + below]):
            below += 1
        if not _shorter(sequences, memory[heap + below], index):
            break
        memory[heap + place] = memory[heap + below]
        place = below
    memory[heap + place] = index
