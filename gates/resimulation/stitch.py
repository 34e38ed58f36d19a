"""Resampled traffic: blocks of (gap, request) of a recorded trace, joined to one continuous trace of as many requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gates.statistics.blocks import BlockDraw, Counts, Floats
from replay.ingress.trace import TRACE_SCHEMA, Trace
from replay.provenance import digest_document


def can_stitch(trace: Trace) -> bool:
    """Return whether blocks of a trace can follow one another in any order: sessions cannot, their turns wait for each other."""
    load = trace.provenance.load
    return trace.requests.num_rows > 0 and (load is None or not load.sessions)


def stitched(trace: Trace, draw: BlockDraw, replicate: int) -> Trace:
    """Return the trace that one replicate of `draw` (over the trace's requests) stands for.

    A request keeps its gap to the one before it, so that bursts and lengths stay together and the server is never restarted between
    blocks; the first request has the mean gap, for nothing comes before it. Prefix blocks stay: a request that is drawn twice finds more of
    them cached, which holds for both arms. Ids are places in the replicate; the digest is of the trace's and the blocks, not of the rows.
    """
    rows = drawn_rows(draw, replicate)
    requests = trace.requests.take(pa.array(rows))
    requests = _with_column(requests, "request_id", pa.array(np.arange(len(rows))).cast(pa.string()))
    if trace.has_arrivals:
        arrival_s = joined_arrivals(trace.requests["arrival_s"].to_numpy(), rows)
        requests = _with_column(requests, "arrival_s", pa.array(arrival_s))
    digest = digest_document([trace.digest, draw.starts[replicate].tolist(), draw.lengths.tolist()])
    return replace(trace, requests=requests, digest=digest)


def _with_column(requests: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return requests.set_column(requests.column_names.index(name), TRACE_SCHEMA.field(name), values)


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
