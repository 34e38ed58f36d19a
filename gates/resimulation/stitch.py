"""Resampled traffic: blocks of (gap, request) of a recorded trace, joined to one continuous trace of as many requests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gates.statistics.blocks import BlockDraw, Counts, Floats
from replay.ingress.trace import Trace, build_trace


def can_stitch(trace: Trace) -> bool:
    """Return whether blocks of a trace can follow one another in any order: sessions cannot, their turns wait for each other."""
    load = trace.provenance.load
    return trace.requests.num_rows > 0 and (load is None or not load.sessions)


def stitched(trace: Trace, draw: BlockDraw, replicate: int) -> Trace:
    """Return the trace that one replicate of `draw` (over the trace's requests) stands for.

    A request keeps its gap to the one before it, so that bursts and lengths stay together and the server is never restarted between
    blocks; the first request has the mean gap, for nothing comes before it. Prefix blocks stay: a request that is drawn twice finds more of
    them cached, which holds for both arms. Prefix of the ids: the place in the replicate.
    """
    rows = drawn_rows(draw, replicate)
    requests = trace.requests.take(pa.array(rows))
    ids = pa.array([str(place) for place in range(len(rows))], pa.string())
    requests = requests.set_column(requests.column_names.index("request_id"), "request_id", ids)
    if trace.has_arrivals:
        arrival_s = joined_arrivals(trace.requests["arrival_s"].to_numpy(), rows)
        requests = requests.set_column(requests.column_names.index("arrival_s"), "arrival_s", pa.array(arrival_s))
    return build_trace(name=trace.name, requests=requests, provenance=trace.provenance, expert_load=trace.expert_load)


def joined_arrivals(arrival_s: Floats, rows: Counts) -> Floats:
    """Return when drawn `rows` [n] of arrivals [n] (ascending) arrive, from 0 on: each as long after the one before it as it was."""
    span_s = float(arrival_s[-1] - arrival_s[0])
    gaps_s = np.diff(arrival_s, prepend=arrival_s[0] - span_s / max(1, len(arrival_s) - 1))[rows]
    joined: Floats = np.cumsum(gaps_s) - gaps_s[0]
    return joined


def drawn_rows(draw: BlockDraw, replicate: int) -> Counts:
    """Return [n] the units of a replicate, in their order."""
    starts = np.repeat(draw.starts[replicate], draw.lengths)
    firsts = np.repeat(np.cumsum(draw.lengths) - draw.lengths, draw.lengths)
    return (starts + np.arange(draw.n) - firsts) % draw.n
