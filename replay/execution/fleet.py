"""The replay of several replicas, and of requests that clients send in other ways than each at its own arrival."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.errors import InvariantError
from replay.execution.admission import FITS, rejections
from replay.execution.cache_arrays import PrefixCache, new_cache
from replay.execution.cost_arrays import flatten
from replay.execution.fleet_arrays import ENTRY, FLEET, FleetArrays, make_room, new_pending
from replay.execution.loop_arrays import SEQUENCE, STEP, LoopArrays, StepColumns, drain_gaps, new_arrays
from replay.execution.power_arrays import PoweredColumns, new_power, replicated
from replay.execution.replica import RECORD_STEPS, check_arrivals, requests_table, steps_table
from replay.execution.step_costs import Counts, Records
from replay.execution.tables import TOKEN_GAPS_SCHEMA, Replay
from replay.ingress.trace import Trace
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES, StepTable

SEQUENCES_HELD = 4096
"""Sequences that a replica has room for at first; finished ones make room, and where that is not enough the room doubles."""


def replay_fleet(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> Replay:
    """Return what would have happened on `table.limits.replicas_count` equal replicas, each as `replay.execution.engine` says.

    - A request goes to one replica, when it is sent, and stays there. `round_robin`: to each in turn. `least_loaded`: to the one
      with the fewest requests that were sent to it and have not ended, of several the first one (Envoy's LEAST_REQUEST over all
      hosts). `power_of_two`: to the less loaded of two drawn at random (Mitzenmacher, IEEE TPDS 2001), with the same draws in
      every replay. `prefix_aware`, after the cache-aware policy of SGLang's router: to the one with most of its prompt in the
      cache, if that is more than 0.3 of it and no replica has more than 64 and 1.5 times the requests of another; else to the least
      loaded. That router guesses what is cached from what it sent before; here it knows.
    - Without a load of the trace, a request is sent at its arrival. With `concurrency`, when one of so many clients is free, in the
      order of arrivals; its latencies count from its arrival or, where the trace has none (closed loop), from its sending.
    - With `sessions`, a request of a session is due when the one before it in the session has ended, `think_s` later, and not
      before its own arrival; its latencies count from then. One that can never fit is left out of its session.
    - A client is free again `think_s` after the end of its request.
    - At one time, requests are sent first, in the order in which they are due, then in the trace's; then replicas go on, in their
      order.

    Raises:
        TraceError: the trace has no requests, or nothing says when they are sent; see `replay.execution.engine.replay`.
        SpecError, InvariantError: see there.
    """
    check_arrivals(trace)
    fits = rejections(trace.requests, table) == FITS
    arrays = fleet_arrays(trace, fits, trace.provenance.load or Load(), ROUTING_NAMES.index(table.limits.routing))
    return serve(trace, table, fits, arrays, kernel_factors)


def serve(
    trace: Trace, table: StepTable, fits: npt.NDArray[np.bool_], arrays: FleetArrays, kernel_factors: Mapping[str, float] | None
) -> Replay:
    """Return the replay of those of a trace's requests that `fits` names, which `arrays` hold; the others are `never_fits`."""
    requests, rows = trace.requests, np.flatnonzero(fits)
    cache = new_cache(trace, arrays.pending["total_tokens"][rows], table)
    replicas = Replicas(table, kernel_factors, cache, len(rows), stops_at_finish=bool(arrays.fleet["waits"][0]))
    served = np.zeros(requests.num_rows, dtype=SEQUENCE)
    if len(rows):
        replicas.run(arrays)
    for finished in replicas.take_finished():
        served[finished["row"]] = finished
    table_of_requests = requests_table(requests, fits, served, replica=arrays.pending["replica"], arrival_s=arrays.pending["due_s"])
    return Replay(requests=table_of_requests, steps=replicas.take_steps(), token_gaps=replicas.take_token_gaps())


def fleet_arrays(trace: Trace, fits: npt.NDArray[np.bool_], load: Load, routing: int) -> FleetArrays:
    """Return a trace's requests, none of them sent yet; those that can never fit are never due."""
    requests = trace.requests
    arrival_s = requests["arrival_s"].to_numpy() if trace.has_arrivals else np.zeros(requests.num_rows)
    prompt, output = (requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    pending = new_pending(np.arange(requests.num_rows), arrival_s, prompt, output, requests["priority"].fill_null(0).to_numpy())
    rows = np.flatnonzero(fits)
    rows = rows[np.argsort(arrival_s[rows], kind="stable")]
    follows = np.zeros(requests.num_rows, dtype=bool)
    if load.sessions:
        _chain(pending, follows, rows, requests["session_id"])
    fleet = new_fleet(load, routing)
    fleet["closed"] = not trace.has_arrivals
    return FleetArrays(
        pending=pending,
        roots=rows[~follows[rows]],
        ready=np.zeros(len(rows), dtype=ENTRY),
        clients=np.zeros(load.concurrency or 0, dtype=ENTRY),
        links=np.zeros(0),
        fleet=fleet,
    )


def new_fleet(load: Load, routing: int) -> Records:
    """Return FLEET [1] before anything was sent."""
    fleet = np.zeros(1, dtype=FLEET)
    clients = load.concurrency or 0
    fleet["think_s"], fleet["routing"], fleet["clients"], fleet["limited"] = load.think_s, routing, clients, clients > 0
    fleet["waits"] = clients > 0 or load.sessions
    return fleet


def _chain(pending: Records, follows: np.ndarray, rows: Counts, session_ids: pa.ChunkedArray) -> None:
    """Let the requests of each session, in the order of `rows`, wait for one another."""
    codes = session_ids.combine_chunks().dictionary_encode()
    sessions = codes.indices.fill_null(-1).to_numpy()[rows]
    named = rows[sessions >= 0]
    named = named[np.argsort(sessions[sessions >= 0], kind="stable")]
    same = np.diff(codes.indices.fill_null(-1).to_numpy()[named]) == 0
    pending["next_row"][named[:-1][same]] = named[1:][same]
    follows[named[1:][same]] = True


class Replicas:
    """Equal replicas in the middle of a replay: the arrays of `run_steps`, one row for each replica."""

    def __init__(
        self,
        table: StepTable,
        kernel_factors: Mapping[str, float] | None,
        cache: PrefixCache,
        requests_count: int,
        *,
        stops_at_finish: bool,
    ) -> None:
        count = table.limits.replicas_count
        self._costs, power = tuple(flatten(table, kernel_factors)), new_power(table, kernel_factors, RECORD_STEPS)
        self._power = power and replicated(power, count)
        held = min(SEQUENCES_HELD, max(1, requests_count))
        one = new_arrays(held + 1, table, cache)
        one.state["given"], one.state["next_s"], one.limits["stops_at_finish"] = 0, np.inf, stops_at_finish
        self._sizes = part_sizes(one)
        self._sequences = np.zeros((count, held + 1), dtype=SEQUENCE)
        self._memory, self._gaps = np.tile(one.memory, (count, 1)), np.tile(one.gaps, (count, 1))
        self._ends_s = np.tile(one.ends_s, (count, 1))
        self._token_gaps, self._states, self._limits = np.tile(one.token_gaps, (count, 1)), np.tile(one.state, count), one.limits
        self._records = np.zeros((count, RECORD_STEPS), dtype=STEP)
        self._records["replica"] = np.arange(count)[:, None]
        self._requests_count = requests_count
        self._steps, self._powered = self._new_columns()
        self._recorded_gaps: list[Records] = []
        self._finished: list[Records] = []

    @classmethod
    def without_cache(cls, table: StepTable) -> Replicas:
        """Return replicas for any number of requests, which find nothing in a prefix cache."""
        return cls(table, None, PrefixCache(parts={}, limits={}), SEQUENCES_HELD, stops_at_finish=False)

    def run(self, arrays: FleetArrays) -> None:
        """Serve all requests, or all that are known so far.

        Raises:
            InvariantError: requests wait, and nothing can run.
        """
        from replay.execution import loop, loop_fleet

        while True:
            outcome = loop_fleet.run_fleet(
                *arrays, self._sequences, self._memory, self._gaps, self._token_gaps, self._ends_s, self._states, self._limits,
                self._costs, self._records, self._power and tuple(self._power),
            )  # fmt: skip
            replica = int(arrays.fleet["replica"][0])
            if outcome == loop.RECORD_FULL:
                self._drain(replica)
            elif outcome == loop_fleet.NEEDS_ROOM:
                self._make_room(replica)
                if self._states["given"][replica] > (self._sequences.shape[1] - 1) // 2:
                    self._double()
            elif outcome == loop.STUCK:
                clock_s = self._states["clock_s"][replica]
                raise InvariantError(
                    f"the replay of replica {replica} stopped at {clock_s} s with requests waiting and nothing that can run"
                )
            else:
                break
        for replica in range(len(self._states)):
            self._drain(replica)
            self._make_room(replica)

    def take_finished(self) -> list[Records]:
        """Return SEQUENCE of what has finished since this was asked last."""
        finished, self._finished = self._finished, []
        return finished

    def take_steps(self) -> pa.Table:
        """Return STEPS_SCHEMA of all replicas since this was asked last."""
        parts = [steps.columns() | powered.columns() for steps, powered in zip(self._steps, self._powered, strict=True)]
        self._steps, self._powered = self._new_columns()
        if len(parts) == 1:
            return steps_table(parts[0])
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(columns["start_s"], kind="stable")
        return steps_table({name: column[order] for name, column in columns.items()})

    def take_token_gaps(self) -> pa.Table:
        """Return TOKEN_GAPS_SCHEMA of all replicas since this was asked last."""
        joined = np.concatenate([self._token_gaps[0, :0], *self._recorded_gaps])
        self._recorded_gaps = []
        return pa.table({name: np.ascontiguousarray(joined[name]) for name in TOKEN_GAPS_SCHEMA.names}, schema=TOKEN_GAPS_SCHEMA)

    def _new_columns(self) -> tuple[list[StepColumns], list[PoweredColumns]]:
        count = len(self._states)
        records = [None] * count if self._power is None else self._power.record
        return [StepColumns() for _ in range(count)], [PoweredColumns(record) for record in records]

    def _of(self, replica: int) -> LoopArrays:
        return LoopArrays(
            memory=self._memory[replica],
            gaps=self._gaps[replica],
            token_gaps=self._token_gaps[replica],
            ends_s=self._ends_s[replica],
            state=self._states[replica : replica + 1],
            limits=self._limits,
        )

    def _drain(self, replica: int) -> None:
        arrays = self._of(replica)
        self._powered[replica].drain(arrays.state)
        self._steps[replica].drain(self._records[replica], arrays.state, self._requests_count // len(self._states))
        self._recorded_gaps.append(drain_gaps(arrays))

    def _make_room(self, replica: int) -> None:
        finished = make_room(self._sequences[replica], self._of(replica), self._sizes)
        self._finished.append(finished)

    def _double(self) -> None:
        """Give every replica room for twice as many sequences."""
        held = self._sequences.shape[1] - 1
        self._sequences = np.pad(self._sequences, ((0, 0), (0, held)))
        for part in ("preempted_at", "waiting_at"):
            end = int(self._limits[part][0]) + self._sizes[part]
            more = np.arange(self._sizes[part], self._sizes[part] + held)
            self._memory = np.insert(self._memory, [end] * held, more, axis=1)
            self._sizes[part] += held
            for other in self._sizes:
                if self._limits[other][0] >= end:
                    self._limits[other] += held


def part_sizes(arrays: LoopArrays) -> dict[str, int]:
    """Return the length of each part of a replica's memory, by the name of the limit that says where it starts."""
    starts = {name: int(arrays.limits[name][0]) for name in arrays.limits.dtype.names if name.endswith("_at")}
    ends = sorted([*starts.values(), len(arrays.memory)])
    return {name: next((end for end in ends if end > start), start) - start for name, start in starts.items()}
