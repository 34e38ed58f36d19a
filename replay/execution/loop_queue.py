"""Order of the waiting queue, compiled: who is admitted next, and whether a batch may start.

The part `waiting` of the memory holds at `admitted` to `arrived` the requests that wait, in the order in which they are admitted; where
the shortest prompt or the smallest priority goes first, it begins with a binary heap of them instead. Preempted sequences stand before
all of them; by priority they are in the heap too. `passed` counts those that a step has passed over: they stay at the head or, taken
out of the heap, behind it.
"""

from __future__ import annotations

from replay.compiled import compiled_part, inlined_part
from replay.execution.loop_arrays import HRRN, LONGEST_PREFIX, ORDERED_REQUESTS, PRIORITY, SJF
from replay.execution.loop_blocks import find_prefix, kept_tokens
from replay.execution.step_costs import Counts, Records


@inlined_part
def _heaps(limits: Records) -> bool:
    """Return whether those that wait are in a heap."""
    return bool(limits.queue in (SJF, PRIORITY))


@compiled_part
def order_queue(sequences: Records, memory: Counts, state: Records, limits: Records) -> None:
    """Bring the waiting queue into the order in which this step admits."""
    if _heaps(limits):
        while state.heaped < state.arrived:
            _rise(sequences, memory, limits, state.heaped, state.heaped - state.admitted)
            state.heaped += 1
    elif limits.queue in (LONGEST_PREFIX, HRRN) and state.arrived - state.admitted <= ORDERED_REQUESTS:
        _sort(sequences, memory, state, limits)


@compiled_part
def next_waiting(memory: Counts, state: Records, limits: Records, passed: int) -> int:
    """Return the sequence that is admitted next; there must be one, and the queue in order."""
    return int(memory[limits.waiting_at + (0 if _heaps(limits) else state.admitted + passed)])


@compiled_part
def pass_over(sequences: Records, memory: Counts, state: Records, limits: Records, passed: int) -> None:
    """Let another one be the next."""
    if _heaps(limits):
        left = state.heaped - state.admitted - passed - 1
        index = memory[limits.waiting_at]
        _sink(sequences, memory, limits, memory[limits.waiting_at + left], 0, left)
        memory[limits.waiting_at + left] = index


@compiled_part
def leave_queue(sequences: Records, memory: Counts, state: Records, limits: Records, passed: int) -> None:
    """Take the next one out of the queue."""
    if _heaps(limits):
        left = state.heaped - state.admitted - passed - 1
        _sink(sequences, memory, limits, memory[limits.waiting_at + left], 0, left)
        memory[limits.waiting_at + left] = memory[limits.waiting_at + left + passed]
    else:
        first = limits.waiting_at + state.admitted
        for place in range(first + passed, first, -1):
            memory[place] = memory[place - 1]
    state.admitted += 1


@compiled_part
def bring_back(sequences: Records, memory: Counts, state: Records, limits: Records, passed: int) -> None:
    """Put those that were passed over where they stood."""
    if _heaps(limits):
        waiting = state.heaped - state.admitted
        for place in range(waiting - passed, waiting):
            _rise(sequences, memory, limits, memory[limits.waiting_at + place], place)


@compiled_part
def join_preempted(sequences: Records, memory: Counts, state: Records, limits: Records, index: int) -> None:
    """Put a preempted sequence in front of the queue or, by priority, where it belongs."""
    if limits.queue == PRIORITY:
        _rise(sequences, memory, limits, index, state.heaped - state.admitted)
        state.admitted -= 1
    else:
        memory[limits.preempted_at + state.preempted] = index
        state.preempted += 1


@compiled_part
def leave_preempted(sequences: Records, memory: Counts, state: Records, limits: Records, index: int) -> None:
    """Take a preempted sequence out of the queue, wherever it stands."""
    if limits.queue == PRIORITY:
        state.admitted += 1
        left, place = state.heaped - state.admitted, 0
        while memory[limits.waiting_at + place] != index:
            place += 1
        last = memory[limits.waiting_at + left]
        if place < left and place > 0 and _before(sequences, limits, last, memory[limits.waiting_at + (place - 1) // 2]):
            _rise(sequences, memory, limits, last, place)
        elif place < left:
            _sink(sequences, memory, limits, last, place, left)
    else:
        state.preempted -= 1
        place = limits.preempted_at + state.preempted
        above = memory[place]
        while above != index:
            place -= 1
            above, memory[place] = memory[place], above


@compiled_part
def batch_starts_at(sequences: Records, memory: Counts, state: Records, limits: Records) -> float:
    """Return when a batch may start: at once if it is full or has a preferred size, else when the request that waits longest has waited
    long enough.
    """
    count = state.arrived - state.admitted
    if count == 0 or state.preempted > 0 or count >= limits.max_running or preferred_size(memory, limits, count) > 0:
        return float(state.clock_s)
    full, oldest = _batch(sequences, memory, state, limits)
    return float(state.clock_s) if full else float(sequences[oldest].arrival_s + limits.max_delay_s)


@compiled_part
def batch_seats(sequences: Records, memory: Counts, state: Records, limits: Records) -> int:
    """Return how many requests a batch may have that starts now: a preferred size where one can be formed, unless it is full."""
    count = state.arrived - state.admitted
    size = preferred_size(memory, limits, count)
    if size == 0 or state.preempted > 0 or count >= limits.max_running or _batch(sequences, memory, state, limits)[0]:
        return int(limits.max_running)
    return size


@compiled_part
def preferred_size(memory: Counts, limits: Records, count: int) -> int:
    """Return the largest preferred size of a batch that so many requests can form; 0 where there is none."""
    size = 0
    for place in range(limits.preferred_at, limits.preferred_at + limits.preferred_count):
        if memory[place] <= count:
            size = memory[place]
    return int(size)


@compiled_part
def _batch(sequences: Records, memory: Counts, state: Records, limits: Records) -> tuple[bool, int]:
    """Return whether the prompts that wait fill a step, or need not wait for having been preempted; and who waits longest."""
    first = limits.waiting_at + (0 if _heaps(limits) else state.admitted)
    tokens, oldest, resumed = 0, state.arrived, False
    for place in range(first, first + state.arrived - state.admitted):
        tokens += sequences[memory[place]].prompt_tokens
        resumed = resumed or sequences[memory[place]].preemptions > 0
        oldest = min(oldest, memory[place])
    return resumed or tokens >= limits.max_batched_tokens, oldest


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
    return float((state.clock_s - sequence.arrival_s) / (sequence.known_tokens - kept_tokens(sequence, limits) - hit))


@compiled_part
def _before(sequences: Records, limits: Records, index: int, other: int) -> bool:
    """Return whether a prompt is shorter, or a priority smaller, than another one, or the same and came before."""
    if limits.queue == SJF:
        rank, other_rank = sequences[index].prompt_tokens, sequences[other].prompt_tokens
    else:
        rank, other_rank = sequences[index].priority, sequences[other].priority
    return bool(rank < other_rank or (rank == other_rank and index < other))


@compiled_part
def _rise(sequences: Records, memory: Counts, limits: Records, index: int, place: int) -> None:
    """Put a sequence at a place of the heap, or above it."""
    heap = limits.waiting_at
    while place > 0:
        above = (place - 1) // 2
        if not _before(sequences, limits, index, memory[heap + above]):
            break
        memory[heap + place] = memory[heap + above]
        place = above
    memory[heap + place] = index


@compiled_part
def _sink(sequences: Records, memory: Counts, limits: Records, index: int, place: int, count: int) -> None:
    """Put a sequence at a place of a heap of `count`, or below it."""
    heap = limits.waiting_at
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and _before(sequences, limits, memory[heap + below + 1], memory[heap + below]):
            below += 1
        if not _before(sequences, limits, memory[heap + below], index):
            break
        memory[heap + place] = memory[heap + below]
        place = below
    memory[heap + place] = index
