"""Order of the waiting queue, compiled: who is admitted next, and whether a batch may start.

`waiting[admitted:arrived]` are the requests that wait, in the order in which they are admitted; `waiting` is a binary heap of the
first `heaped - admitted` places instead where the shortest prompt goes first. Preempted sequences stand before all of them.
"""

from __future__ import annotations

from typing import Any

from replay.compiled import compiled_part
from replay.execution.loop_arrays import HRRN, LONGEST_PREFIX, ORDERED_REQUESTS, SJF
from replay.execution.loop_blocks import find_prefix
from replay.execution.step_costs import Counts, Floats, Records


@compiled_part
def order_queue(sequences: Records, waiting: Counts, scores: Floats, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Bring the waiting queue into the order in which this step admits."""
    if limits.queue == SJF:
        while state.heaped < state.arrived:
            waiting[state.heaped - state.admitted] = state.heaped
            state.heaped += 1
            _sift_up(sequences, waiting, state.heaped - state.admitted - 1)
    elif limits.queue in (LONGEST_PREFIX, HRRN) and state.arrived - state.admitted <= ORDERED_REQUESTS:
        _sort(sequences, waiting, scores, state, limits, cache)


@compiled_part
def next_waiting(waiting: Counts, state: Records, limits: Records) -> int:
    """Return the sequence that is admitted next; there must be one, and the queue in order."""
    return int(waiting[0] if limits.queue == SJF else waiting[state.admitted])


@compiled_part
def leave_queue(sequences: Records, waiting: Counts, state: Records, limits: Records) -> None:
    """Take the next one out of the queue."""
    state.admitted += 1
    if limits.queue == SJF:
        count = state.heaped - state.admitted
        waiting[0] = waiting[count]
        _sift_down(sequences, waiting, count)


@compiled_part
def batch_starts_at(sequences: Records, waiting: Counts, state: Records, limits: Records) -> float:
    """Return when a batch may start: at once if it is full, else when the request that waits longest has waited long enough.

    It is full with as many requests as may run, or prompts of as many tokens as one step may have.
    """
    count = state.arrived - state.admitted
    if state.preempted > 0 or count >= limits.max_running:
        return state.clock_s  # type: ignore[no-any-return]
    first = 0 if limits.queue == SJF else state.admitted
    tokens, oldest = 0, state.arrived
    for place in range(first, first + count):
        tokens += sequences[waiting[place]].prompt_tokens
        oldest = min(oldest, waiting[place])
    if count == 0 or tokens >= limits.max_batched_tokens:
        return state.clock_s  # type: ignore[no-any-return]
    return sequences[oldest].arrival_s + limits.max_delay_s  # type: ignore[no-any-return]


@compiled_part
def _sort(sequences: Records, waiting: Counts, scores: Floats, state: Records, limits: Records, cache: tuple[Any, ...]) -> None:
    """Sort by falling score; equal ones keep the order of the step before (insertion: the queue is nearly in order)."""
    first = state.admitted
    for place in range(first, state.arrived):
        index = waiting[place]
        score = _score(sequences[index], index, state, limits, cache)
        gap = place
        while gap > first and scores[gap - 1 - first] < score:
            waiting[gap], scores[gap - first] = waiting[gap - 1], scores[gap - 1 - first]
            gap -= 1
        waiting[gap], scores[gap - first] = index, score


@compiled_part
def _score(sequence: Records, index: int, state: Records, limits: Records, cache: tuple[Any, ...]) -> float:
    """Return the cached tokens of a prompt, or the time it has waited for each token that is left to compute."""
    hit = find_prefix(sequence, index, limits, cache)[0] * limits.block_tokens
    if limits.queue == LONGEST_PREFIX:
        return float(hit)
    return (state.clock_s - sequence.arrival_s) / (sequence.known_tokens - hit)  # type: ignore[no-any-return]


@compiled_part
def _shorter(sequences: Records, index: int, other: int) -> bool:
    """Return whether a prompt is shorter than another one, or as long and came before."""
    tokens, other_tokens = sequences[index].prompt_tokens, sequences[other].prompt_tokens
    return bool(tokens < other_tokens or (tokens == other_tokens and index < other))


@compiled_part
def _sift_up(sequences: Records, heap: Counts, place: int) -> None:
    """Let the last one of a heap rise to its place."""
    index = heap[place]
    while place > 0:
        above = (place - 1) // 2
        if not _shorter(sequences, index, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = index


@compiled_part
def _sift_down(sequences: Records, heap: Counts, count: int) -> None:
    """Let the first one of a heap of `count` sink to its place."""
    index, place = heap[0], 0
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and _shorter(sequences, heap[below + 1], heap[below]):
            below += 1
        if not _shorter(sequences, heap[below], index):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = index
