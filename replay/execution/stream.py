"""The replay of a trace piece by piece: what is done is handed on, so that memory holds no more than what is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.errors import SpecError, TraceError
from replay.execution.admission import FITS, rejections
from replay.execution.fleet import Replicas, new_fleet
from replay.execution.fleet_arrays import ENTRY, FleetArrays, new_pending
from replay.execution.loop_arrays import SEQUENCE
from replay.execution.replica import requests_table
from replay.execution.step_costs import Counts, Records
from replay.execution.tables import Replay
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES, StepTable

PIECE_REQUESTS = 1 << 16
"""Requests that are read at once; with their steps about 200 megabytes."""


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Requests that were read together, until all of them are done."""

    first_row: int
    requests: pa.Table
    fits: npt.NDArray[np.bool_]
    served: Records
    replica: Counts
    open_count: int

    def table(self) -> pa.Table:
        """Return REQUESTS_SCHEMA."""
        return requests_table(self.requests, self.fits, self.served, replica=self.replica)


def replay_pieces(pieces: Iterable[pa.Table], table: StepTable, load: Load | None) -> Iterator[Replay]:
    """Yield the replay of a trace in pieces: requests in the trace's order, each piece with the steps that ended since the last one.

    `pieces` have TRACE_SCHEMA, arrivals that do not decrease, and follow one another. Joined, requests and steps are those of
    `replay.execution.engine.replay`; steps of several replicas stand in the order of their starts within a piece only.

    Raises:
        SpecError: the prefix cache is on, which has to know all prompts; or prompts are computed in a pool of their own.
        TraceError: requests wait for answers, or an arrival is missing or goes back.
    """
    if table.limits.prefix_cache:
        raise SpecError("kv.prefix_cache", "true", "false, for a trace that is read in pieces", "turn it off, or read the trace whole")
    if table.limits.prefill_replicas_count:
        count = table.limits.prefill_replicas_count
        raise SpecError(
            "fleet.prefill_replicas", str(count), "0, for a trace that is read in pieces", "set it to 0, or read the trace whole"
        )
    if load is not None:
        raise TraceError("the trace", "requests that clients send (`replay trace load`)", "arrivals alone", "read the trace whole")
    waiting: deque[_Piece] = deque()
    replicas = None
    first_row, last_s = 0, 0.0
    for requests in pieces:
        if replicas is None:
            replicas = Replicas.without_cache(table)
            fleet = new_fleet(Load(), ROUTING_NAMES.index(table.limits.routing))
        last_s = _check_arrivals(requests, first_row, last_s)
        piece, arrays = _opened(requests, first_row, table)
        fleet["first_row"], fleet["next"], fleet["more"] = first_row, 0, 1
        waiting.append(piece)
        replicas.run(FleetArrays(pending=arrays[0], roots=arrays[1], ready=_NONE, clients=_NONE, links=np.zeros(0), fleet=fleet))
        piece.replica = arrays[0]["replica"]
        _close(waiting, replicas)
        first_row += requests.num_rows
        yield from _ready(waiting, replicas)
    if replicas is not None:
        fleet["more"] = 0
        replicas.run(FleetArrays(pending=arrays[0], roots=arrays[1], ready=_NONE, clients=_NONE, links=np.zeros(0), fleet=fleet))
        _close(waiting, replicas)
        yield from _ready(waiting, replicas)


_NONE = np.zeros(0, dtype=ENTRY)


def _check_arrivals(requests: pa.Table, first_row: int, last_s: float) -> float:
    """Return the last arrival of a piece; raise TraceError unless arrivals are there and do not go back."""
    arrival_s = requests["arrival_s"]
    if arrival_s.null_count:
        raise TraceError(f"row {first_row + 1} and on", "requests without arrival times", "arrival_s in every row", "import with --rate")
    values = np.concatenate([[last_s], arrival_s.to_numpy()])
    back = np.flatnonzero(np.diff(values) < 0.0)
    if len(back):
        raise TraceError(f"row {first_row + int(back[0]) + 1}", "an arrival before that of the row above", "rows by arrival", "import it")
    return float(values[-1])


def _opened(requests: pa.Table, first_row: int, table: StepTable) -> tuple[_Piece, tuple[Records, Counts]]:
    """Return a piece of which nothing was sent, its requests and the rows that fit."""
    fits = rejections(requests, table) == FITS
    arrival_s, prompt, output = (requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    rows, priority = first_row + np.arange(requests.num_rows), requests["priority"].fill_null(0).to_numpy()
    pending = new_pending(rows, arrival_s, prompt, output, priority)
    piece = _Piece(
        first_row=first_row,
        requests=requests,
        fits=fits,
        served=np.zeros(requests.num_rows, dtype=SEQUENCE),
        replica=pending["replica"],
        open_count=int(fits.sum()),
    )
    return piece, (pending, first_row + np.flatnonzero(fits))


def _close(waiting: deque[_Piece], replicas: Replicas) -> None:
    """Enter what has finished into the pieces that it belongs to."""
    firsts = np.array([piece.first_row for piece in waiting])
    for finished in replicas.take_finished():
        places = np.searchsorted(firsts, finished["row"], side="right") - 1
        for place in np.unique(places):
            piece, own = waiting[int(place)], finished[places == place]
            piece.served[own["row"] - piece.first_row] = own
            piece.open_count -= len(own)


def _ready(waiting: deque[_Piece], replicas: Replicas) -> Iterator[Replay]:
    """Yield the first pieces, while all of their requests are done, the steps so far with the first of them."""
    while waiting and waiting[0].open_count == 0:
        yield Replay(requests=waiting.popleft().table(), steps=replicas.take_steps(), token_gaps=replicas.take_token_gaps())
