"""How the requests of a trace are sent, where not as recorded: by clients that wait, or at another rate."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from replay.errors import SpecError, TraceError
from replay.ingress.normalize import require_positive
from replay.ingress.parsed import LARGEST_S
from replay.ingress.trace import Trace, build_trace
from replay.provenance import Load, TraceKind

MOST_CLIENTS, LONGEST_THINK_S = 1 << 20, 86_400.0
"""As in the schema `trace-provenance.v1`."""


def with_load(trace: Trace, load: Load) -> Trace:
    """Return a trace whose requests are sent as `load` says.

    Raises:
        TraceError: there are no sessions, or nothing says when the first requests are sent.
        SpecError: a number of `load` is out of its range.
    """
    if load.concurrency is None and not load.sessions:
        raise SpecError("load", "neither a concurrency nor sessions", "one of them", "give one")
    if load.concurrency is not None and not 1 <= load.concurrency <= MOST_CLIENTS:
        raise SpecError("concurrency", f"the value {load.concurrency}", f"a whole number from 1 to {MOST_CLIENTS}", "correct it")
    if not 0.0 <= load.think_s <= LONGEST_THINK_S:
        raise SpecError("think_s", f"the value {load.think_s!r}", f"a number from 0 to {LONGEST_THINK_S:g}", "correct it")
    if load.sessions and trace.requests["session_id"].null_count == trace.requests.num_rows:
        raise TraceError(trace.name, "no request has a session_id", "the session of each request that has one", "leave sessions out")
    if load.concurrency is None and not trace.has_arrivals:
        raise TraceError(trace.name, "its requests have no arrival times", "arrivals, or a concurrency", "give a concurrency")
    was = trace.provenance
    said = f"sent by clients: {load.concurrency or 'any number'} requests at once, think time {load.think_s!r} s"
    note = said + (", a session's next request after the answer to the last one" if load.sessions else "")
    provenance = replace(was, load=load, notes=(*was.notes, note))
    return build_trace(name=trace.name, requests=trace.requests, provenance=provenance, expert_load=trace.expert_load)


def scaled_trace(trace: Trace, *, rate_ratio: float) -> Trace:
    """Return a trace whose requests arrive `rate_ratio` times as fast: arrivals divided by it; a recorded one becomes `reconstructed`.

    Raises:
        TraceError: the trace has no arrivals.
        SpecError: the ratio is not a finite positive number, or the trace would become too long.
    """
    require_positive("rate_ratio", rate_ratio)
    if not trace.has_arrivals:
        raise TraceError(trace.name, "its requests have no arrival times", "arrivals to scale", "generate them (import --rate)")
    if trace.span_s / rate_ratio > LARGEST_S:
        raise SpecError("rate_ratio", f"the value {rate_ratio}", f"a trace of at most {LARGEST_S} s", "raise it")
    arrival_s = trace.requests["arrival_s"].to_numpy() / rate_ratio
    was = trace.provenance
    kind: TraceKind = "synthetic" if was.kind == "synthetic" else "reconstructed"
    provenance = replace(was, kind=kind, notes=(*was.notes, f"arrivals scaled: {rate_ratio!r} times the rate"))
    requests = trace.requests.set_column(1, "arrival_s", pa.array(arrival_s))
    return build_trace(name=trace.name, requests=requests, provenance=provenance, expert_load=trace.expert_load)
