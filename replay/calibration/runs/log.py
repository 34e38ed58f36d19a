"""A server's per-request log as a trace to replay and the times to be predicted, both on one clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from replay.calibration.runs.server import Server, meta_path, read_server
from replay.errors import TraceError
from replay.ingress.clock import NS_PER_S
from replay.ingress.normalize import normalize
from replay.ingress.records import Line, read_lines
from replay.ingress.source import TraceSource, open_source
from replay.ingress.trace import Trace, build_trace
from replay.ingress.vllm_log import VllmLogReader
from replay.names import safe_name
from replay.specs.run_calibration import LogOrigin

STAMPS = ("queued_ts", "first_token_ts", "last_token_ts")
FEWEST_REQUESTS = 20
"""Below, halves of a log hold too few requests for seven numbers and a p95."""

OBSERVED_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("first_token_s", pa.float64(), nullable=False),  # end of the step that computed it, without detokenisation or network
        pa.field("last_token_s", pa.float64(), nullable=False),
    ]
)
"""One row per request of the trace, in its order; all times from the first arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One run of one server."""

    trace: Trace
    observed: pa.Table
    """OBSERVED_SCHEMA."""
    server: Server
    origin: LogOrigin
    notes: tuple[str, ...]
    """What log and meta file leave open, and what was assumed."""


def read_run_log(path: Path, *, meta: Path | None = None, prefixes: Trace | None = None) -> RunLog:
    """Return the run in a vLLM request log (JSON Lines, gzipped or not) and its meta file (`meta_path` where none is given).

    `arrival_time` is epoch, the stamps are a monotonic clock: the clocks are aligned by the smallest queued - arrival, as if the
    fastest request had been queued at once. `prefixes` is a trace of the same requests whose prefix blocks say which prompts begin
    alike, as the log does not.

    Raises:
        TraceError: the log is no such log, a stamp is missing or out of order, an id repeats, there are fewer than FEWEST_REQUESTS,
            or `prefixes` are of other requests.
        SpecError: see `replay.calibration.runs.server.read_server`.
    """
    source = open_source(path)
    reader = VllmLogReader()
    if source.encoding != "json_lines":
        raise TraceError(source.where, "it is no JSON Lines file", f"a {reader.label}", "give the server's per-request log")
    trace = normalize(reader.read(source), source, safe_name(path.name.removesuffix(".gz").removesuffix(".jsonl")))
    if trace.requests.num_rows < FEWEST_REQUESTS:
        got = f"{trace.requests.num_rows} completed requests"
        raise TraceError(source.where, got, f"at least {FEWEST_REQUESTS}", "record a longer run")
    observed = _observed(source, trace)
    longest = pc.max(pc.add(trace.requests["prompt_tokens"], trace.requests["output_tokens"])).as_py()
    server = read_server(meta or meta_path(path), longest_request_tokens=longest)
    origin = LogOrigin(
        file_name=source.file_name,
        digest=source.digest,
        requests_count=trace.requests.num_rows,
        model=server.model,
        server=server.software,
        hardware=server.hardware,
    )
    left_out = tuple(f"{rows} rows set aside: {reason}" for reason, rows in trace.provenance.set_aside)
    trace, unknown = (trace, _PREFIXES_UNKNOWN) if prefixes is None else (_with_prefixes(trace, prefixes), ())
    return RunLog(trace=trace, observed=observed, server=server, origin=origin, notes=(*left_out, *server.notes, *unknown))


_PREFIXES_UNKNOWN = ("prompts are not in the log: none is taken to begin like another, so that steps may hold fewer prompts than they did",)


def _observed(source: TraceSource, trace: Trace) -> pa.Table:
    """Return the observed times of the trace's requests."""
    rows = {str(line.record["request_id"]): _stamps(line) for line in read_lines(source) if line.record.get("output_toks")}
    arrivals, queued, firsts, lasts = zip(*(rows[name] for name in trace.requests["request_id"].to_pylist()), strict=True)
    offset = min(late - early for early, late in zip(arrivals, queued, strict=True)) + min(arrivals)
    return pa.table(
        {
            **{name: trace.requests[name] for name in ("request_id", "arrival_s", "output_tokens")},
            "first_token_s": [(stamp - offset) / NS_PER_S for stamp in firsts],
            "last_token_s": [(stamp - offset) / NS_PER_S for stamp in lasts],
        },
        schema=OBSERVED_SCHEMA,
    )


def _stamps(line: Line) -> tuple[int, int, int, int]:
    """Return arrival, queued, first and last token of a row in nanoseconds of their clocks.

    Raises:
        TraceError: a stamp is missing, no number, or not after the one before it.
    """
    line.require(STAMPS)
    for name in STAMPS:
        if type(line.record[name]) not in (int, Decimal):
            raise line.bad(name, "seconds of the engine's clock")
    queued, first, last = (round(line.record[name] * NS_PER_S) for name in STAMPS)
    if first <= queued:
        raise line.bad("first_token_ts", f"a time after queued_ts, {line.record['queued_ts']}")
    if last < first or (last == first and line.record["output_toks"] > 1):
        raise line.bad("last_token_ts", f"a time after first_token_ts, {line.record['first_token_ts']}")
    return round(line.record["arrival_time"] * NS_PER_S), queued, first, last


def _with_prefixes(trace: Trace, prefixes: Trace) -> Trace:
    """Return the trace with the prefix blocks that another one has for the same requests."""
    given = {row["request_id"]: row for row in prefixes.requests.select(["request_id", "prompt_tokens", "prefix_blocks"]).to_pylist()}
    blocks = []
    for row in trace.requests.select(["request_id", "prompt_tokens"]).to_pylist():
        other = given.get(row["request_id"])
        if other is None or other["prompt_tokens"] != row["prompt_tokens"]:
            got = f"no request {row['request_id']!r} of {row['prompt_tokens']} prompt tokens"
            raise TraceError(prefixes.name, got, "prefix blocks of the same requests", "give the workload that the log was recorded with")
        blocks.append(other["prefix_blocks"])
    place = trace.requests.schema.get_field_index("prefix_blocks")
    requests = trace.requests.set_column(place, trace.requests.schema.field(place), pa.array(blocks, pa.list_(pa.int64())))
    provenance = replace(trace.provenance, prefix_block_tokens=prefixes.provenance.prefix_block_tokens)
    return build_trace(name=trace.name, requests=requests, provenance=provenance)
