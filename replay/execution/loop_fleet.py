"""Requests on their way to replicas, compiled: when each is sent, and to which replica.

`replay.execution.fleet` says what happens; `replay.execution.twin_fleet` does the same in plain Python. Each replica runs the loop of
`replay.execution.loop` on arrays of its own, up to the next time at which something reaches it from outside. Where clients
wait for answers, what any replica finishes may send a request to any other: they then take turns, the earliest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.compiled import compiled, compiled_part
from replay.execution.fleet_arrays import LEAST_LOADED, POWER_OF_TWO, ROUND_ROBIN
from replay.execution.loop import FINISHED, RECORD_FULL, STUCK, run_steps
from replay.execution.loop_arrays import WAITING
from replay.execution.loop_blocks import find_prefix
from replay.execution.loop_heap import pop, push
from replay.execution.step_costs import Counts, Floats, Records

NEEDS_ROOM, NEEDS_REQUESTS = 4, 5
"""Results of `run_fleet` beside those of `run_steps`."""
BALANCE_REQUESTS, BALANCE_RATIO, PREFIX_RATIO = 64, 1.5, 0.3
"""SGLang router 0.1's defaults: the difference and the ratio of loads from which balance goes first, and the share of a prompt that
must be cached somewhere for it to go there."""


@compiled
def run_fleet(
    pending: Records,
    roots: Counts,
    ready: Records,
    clients: Records,
    links: Floats,
    fleets: Records,
    sequences: Records,
    memory: Counts,
    gaps: Records,
    token_gaps: Records,
    ends_s: Floats,
    states: Records,
    limits: Records,
    costs: tuple[Any, ...],
    records: Records,
    powered: tuple[Any, ...] | None,
) -> int:
    """Return FINISHED, or why it stopped: RECORD_FULL or STUCK (as `run_steps`) or NEEDS_ROOM, all of the replica that `fleets` names,
    or NEEDS_REQUESTS.

    The first six arguments are those of `FleetArrays`; the others are those of `run_steps`, with one row for each replica, of `powered`
    for what `replay.execution.power_arrays.replicated` says.
    """
    fleet = fleets[0]
    while True:
        row, at_s = _next_request(pending, roots, ready, clients, fleet)
        if fleet.waits:
            replica = _earliest(states)
            if states[replica].next_s < at_s:
                until_s = min(at_s, _others_go_on_at(states, replica))
                until_s = max(until_s, np.nextafter(states[replica].next_s, np.inf))
                outcome = _advance(replica, until_s, sequences, memory, gaps, token_gaps, ends_s, states, limits, costs, records, powered)
                if outcome in (RECORD_FULL, STUCK):
                    fleet.replica = replica
                    return outcome
                _hear_answers(pending, ready, clients, fleet, sequences[replica], memory[replica], states[replica], limits[0])
                continue
            if at_s == np.inf:
                return FINISHED
        elif row < 0 and fleet.more:
            return NEEDS_REQUESTS
        elif row < 0 or fleet.routing != ROUND_ROBIN:
            for replica in range(len(states)):
                if states[replica].next_s < at_s:
                    outcome = _advance(replica, at_s, sequences, memory, gaps, token_gaps, ends_s, states, limits, costs, records, powered)
                    if outcome in (RECORD_FULL, STUCK):
                        fleet.replica = replica
                        return outcome
            if row < 0:
                return FINISHED
        replica, random = _route(pending[row - fleet.first_row], fleet, sequences, memory, states, limits[0])
        if states[replica].given == sequences.shape[1] - 1:
            fleet.replica = replica
            if states[replica].next_s < at_s:
                outcome = _advance(replica, at_s, sequences, memory, gaps, token_gaps, ends_s, states, limits, costs, records, powered)
                if outcome in (RECORD_FULL, STUCK):
                    return outcome
            return NEEDS_ROOM
        fleet.random, fleet.turn = random, replica + 1
        _leave(row, ready, clients, fleet, at_s)
        request = pending[row - fleet.first_row]
        request.sent_s, request.replica = at_s, replica
        if fleet.closed:
            request.due_s = at_s
        arrives_s = at_s if len(links) == 0 else _received_at(request, links, len(states), at_s)
        _write(sequences[replica][states[replica].given], request, row, arrives_s)
        _arrive(states[replica], arrives_s)


@compiled_part
def _advance(
    replica: int,
    until_s: float,
    sequences: Records,
    memory: Counts,
    gaps: Records,
    token_gaps: Records,
    ends_s: Floats,
    states: Records,
    limits: Records,
    costs: tuple[Any, ...],
    records: Records,
    powered: tuple[Any, ...] | None,
) -> int:
    """Run one replica; the first two of `powered` have a row for each replica, the others are shared."""
    own = None
    if powered is not None:
        of_replica = (powered[0][replica : replica + 1], powered[1][replica])
        own = of_replica + powered[2:]  # unpacking does not compile
    return int(
        run_steps(
            sequences[replica], memory[replica], gaps[replica], token_gaps[replica], ends_s[replica], states[replica : replica + 1],
            limits, costs, records[replica], own, until_s,
        )
    )  # fmt: skip


@compiled_part
def _earliest(states: Records) -> int:
    """Return the replica that goes on first; of several the first one."""
    first = 0
    for replica in range(1, len(states)):
        if states[replica].next_s < states[first].next_s:
            first = replica
    return first


@compiled_part
def _others_go_on_at(states: Records, but: int) -> float:
    """Return when the first of all other replicas goes on."""
    next_s = np.inf
    for replica in range(len(states)):
        if replica != but:
            next_s = min(next_s, states[replica].next_s)
    return next_s


@compiled_part
def _next_request(pending: Records, roots: Counts, ready: Records, clients: Records, fleet: Records) -> tuple[int, float]:
    """Return the row of the request that is sent next, or -1, and when; infinity while it waits for a client."""
    row, due_s = -1, np.inf
    if fleet.next < len(roots):
        row = roots[fleet.next]
        due_s = pending[row - fleet.first_row].due_s
    if fleet.ready > 0 and (ready[0].at_s < due_s or (ready[0].at_s == due_s and ready[0].row < row)):
        row, due_s = ready[0].row, ready[0].at_s
    if row < 0 or not fleet.limited:
        return row, due_s
    return row, max(due_s, clients[0].at_s) if fleet.clients > 0 else np.inf


@compiled_part
def _leave(row: int, ready: Records, clients: Records, fleet: Records, at_s: float) -> None:
    """Take the request that is sent next from those that wait for it, and a client that sends it."""
    if fleet.ready > 0 and ready[0].row == row:
        fleet.ready -= 1
        pop(ready, fleet.ready)
    else:
        fleet.next += 1
    if fleet.limited:
        fleet.clients -= 1
        pop(clients, fleet.clients)


@compiled_part
def _received_at(request: Records, links: Floats, replicas: int, at_s: float) -> float:
    """Return when what was computed of a request elsewhere has been sent: after all that came before on either link."""
    sender = replicas + request.sender
    links[request.replica] = links[sender] = max(at_s, links[request.replica], links[sender]) + request.send_s
    return float(links[sender])


@compiled_part
def _write(sequence: Records, request: Records, row: int, at_s: float) -> None:
    """Write a sequence of which nothing has been computed over one that is done."""
    sequence.row, sequence.arrival_s = row, at_s
    sequence.prompt_tokens = sequence.known_tokens = request.prompt_tokens
    sequence.total_tokens, sequence.priority = request.total_tokens, request.priority
    sequence.round = -1
    sequence.reached_tokens = request.received_tokens
    sequence.computed_tokens = sequence.emitted_tokens = sequence.prefill_until = 0
    sequence.prefix_hit_tokens = sequence.blocks = sequence.slot = sequence.preemptions = 0
    sequence.first_scheduled_s = sequence.first_token_s = sequence.last_token_s = sequence.worst_itl_s = sequence.score = 0.0


@compiled_part
def _arrive(state: Records, at_s: float) -> None:
    """Let the next sequence arrive at a replica; one that waits for company, or has nothing to do, then looks at it."""
    state.given += 1
    state.outstanding += 1
    if state.next_s == np.inf or state.phase == WAITING:
        state.next_s = min(state.next_s, at_s)


@compiled_part
def _hear_answers(
    pending: Records, ready: Records, clients: Records, fleet: Records, sequences: Records, memory: Counts, state: Records, limits: Records
) -> None:
    """Let clients think about what a replica has just finished, and sessions go on."""
    at_s = state.clock_s + fleet.think_s
    for place in range(limits.finished_at, limits.finished_at + state.finished):
        if fleet.limited:
            push(clients, fleet.clients, at_s, 0)
            fleet.clients += 1
        following = pending[sequences[memory[place]].row].next_row
        if following >= 0:
            pending[following].due_s = max(pending[following].due_s, at_s)
            push(ready, fleet.ready, pending[following].due_s, following)
            fleet.ready += 1
    state.finished = 0


@compiled_part
def _route(request: Records, fleet: Records, sequences: Records, memory: Counts, states: Records, limits: Records) -> tuple[int, int]:
    """Return the replica of a request, and what the generator of random numbers holds after it."""
    count, random = len(states), fleet.random
    if fleet.routing == ROUND_ROBIN:
        return fleet.turn % count, random
    if fleet.routing == LEAST_LOADED or count == 1:
        return _least_loaded(states), random
    if fleet.routing == POWER_OF_TWO:
        one = _mixed(random + 1) % count
        other = (one + 1 + _mixed(random + 2) % (count - 1)) % count
        better = states[other].outstanding < states[one].outstanding
        return (other if better else one), random + 2
    return _most_cached(request, fleet, sequences, memory, states, limits), random


@compiled_part
def _least_loaded(states: Records) -> int:
    """Return the replica with the fewest requests under way; of several the first one."""
    least = 0
    for replica in range(1, len(states)):
        if states[replica].outstanding < states[least].outstanding:
            least = replica
    return least


@compiled_part
def _most_cached(request: Records, fleet: Records, sequences: Records, memory: Counts, states: Records, limits: Records) -> int:
    """Return the replica that has most of a prompt in its cache, or the least loaded one: where loads are far apart, or it is little."""
    least, most = _least_loaded(states), 0
    for replica in range(len(states)):
        most = max(most, states[replica].outstanding)
    if most - states[least].outstanding > BALANCE_REQUESTS and most > BALANCE_RATIO * states[least].outstanding:
        return least
    best, best_tokens = least, 0
    for replica in range(len(states)):
        sequence = sequences[replica][states[replica].given]
        _write(sequence, request, request.row, 0.0)
        tokens = find_prefix(sequence, limits, memory[replica])[0] * limits.block_tokens
        fewer = states[replica].outstanding < states[best].outstanding
        if tokens > best_tokens or (tokens == best_tokens and fewer):
            best, best_tokens = replica, tokens
    return best if best_tokens > PREFIX_RATIO * request.prompt_tokens else least


@compiled_part
def _mixed(number: int) -> int:
    """Return 62 pseudo-random bits for a number: the output function of SplitMix64 (Steele et al., OOPSLA 2014)."""
    bits = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((bits ^ (bits >> np.uint64(31))) >> np.uint64(2))  # type: ignore[return-value]
