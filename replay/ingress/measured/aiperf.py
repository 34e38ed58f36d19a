"""NVIDIA AIPerf: ``profile_export.jsonl`` (a record per request, each figure with its unit) and its summary JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.ingress.clock import NS_PER_S, format_ns
from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, TRUNCATED, MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import Row, Rows, rate, seconds, summary_run, time_per_token, tokens

PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_LONGEST_NS = 20  # digits of a 64-bit integer
_REPORTED = {"time_to_first_token": "ttft_s", "inter_token_latency": "tpot_s", "request_latency": "e2e_s"}


def is_aiperf_record(record: Record) -> bool:
    """Return whether an object is one request of ``profile_export.jsonl``."""
    return isinstance(record.get("metadata"), dict) and isinstance(record.get("metrics"), dict) and "request_start_ns" in record["metadata"]


def is_aiperf_summary(record: Record) -> bool:
    """Return whether an object is the summary of a run."""
    return "aiperf_version" in record or ("input_config" in record and "request_latency" in record)


def read_aiperf(content: Content) -> list[MeasuredRun]:
    """Return the run; warm-up requests are left out and counted.

    Raises:
        TraceError: a record is none of AIPerf's, or a figure has no unit that is known.
    """
    rows, warm_up_count, zero_ns, earliest_ns = Rows(), 0, None, None
    for place, record in content.records():
        if not is_aiperf_record(record):
            raise TraceError(place, "the line is no AIPerf record", "metadata with request_start_ns, and metrics", "remove the line")
        if record["metadata"].get("benchmark_phase", "profiling") != "profiling":
            warm_up_count += 1
            continue
        start_ns = _stamp(record, place)
        zero_ns = start_ns if zero_ns is None else zero_ns
        earliest_ns = start_ns if earliest_ns is None else min(start_ns, earliest_ns)
        rows.add(_row(record, place, (start_ns - zero_ns) / NS_PER_S))  # a float since 1970 would be off by 1e-7 s
    facts = MeasuredFacts(
        format="AIPerf profile export",
        file_name=content.file_name,
        digest=content.digest,
        tool="aiperf",
        units="each figure in the unit it names; stamps in nanoseconds",
        arrivals="sent",
        identity="ids",
        started_at=None if earliest_ns is None else format_ns(earliest_ns, utc=True),
        notes=(f"{warm_up_count} warm-up requests left out",) if warm_up_count else (),
    )
    run = rows.to_run(facts)
    return [replace(run, requests=_with_names(run.requests))]


def read_aiperf_summary(content: Content) -> list[MeasuredRun]:
    """Return the run of ``profile_export_aiperf.json``: percentiles without requests."""
    ((place, document),) = content.records()
    reported = [
        ReportedFigure(metric=metric, percentile=float(key[1:]), value_s=value)
        for name, metric in _REPORTED.items()
        for key, written in document.get(name, {}).items()
        if key[:1] == "p" and key[1:].isdigit() and (value := _figure(document, place, name, written)) is not None
    ]
    config = document.get("input_config", {})
    models = config.get("models", {}).get("items", [{}])
    datasets = config.get("datasets", [])
    count = tokens(_average(document, "request_count"), place, "request_count")
    return [
        summary_run(
            MeasuredFacts(
                format="AIPerf summary",
                file_name=content.file_name,
                digest=content.digest,
                tool="aiperf",
                tool_version=document.get("aiperf_version"),
                units="each figure in the unit it names",
                arrivals="none",
                identity="none",
                model=models[0].get("name") if models else None,
                is_synthetic=any(one.get("type") == "synthetic" for one in datasets) if datasets else None,
                started_at=document.get("start_time"),
                duration_s=seconds(_average(document, "benchmark_duration"), place, "benchmark_duration"),
                achieved_rate_per_s=rate(_average(document, "request_throughput"), place, "request_throughput"),
                expected_count=count,
                completed_count=count,
            ),
            reported,
        )
    ]


def _average(document: Record, name: str) -> Any:
    return document.get(name, {}).get("avg")


def _with_names(requests: pa.Table) -> pa.Table:
    """Return the requests called by their turn of a conversation and, of those that came several times, which use of it they were."""
    turns = requests["request_id"].to_pylist()
    if len(set(turns)) == len(turns):
        return requests
    seen: Counter[str] = Counter()
    names = list(turns)
    for row in pc.sort_indices(requests["arrival_s"]).to_pylist():
        seen[turns[row]] += 1
        if seen[turns[row]] > 1:
            names[row] = f"{turns[row]}#{seen[turns[row]]}"
    return requests.set_column(0, requests.schema.field(0), pa.array(names, pa.string()))


def _row(record: Record, place: str, arrival_s: float) -> Row:
    metadata, metrics = record["metadata"], record["metrics"]
    cancelled = bool(metadata.get("was_cancelled"))
    failed = record.get("error") is not None or "request_latency" not in metrics
    chunks = _value(metrics, "inter_chunk_latency")
    gaps = [_figure(metrics, place, "inter_chunk_latency", gap) for gap in chunks] if isinstance(chunks, list) else []
    e2e_s, ttft_s = (_figure(metrics, place, key, _value(metrics, key)) for key in ("request_latency", "time_to_first_token"))
    output = tokens(_value(metrics, "output_sequence_length"), place, "output_sequence_length")
    known = [gap for gap in gaps if gap is not None]
    return Row(
        request_id=f"{metadata.get('conversation_id') or metadata.get('session_num')}/{metadata.get('turn_index', 0)}",
        status=TRUNCATED if cancelled else FAILED if failed else COMPLETED,
        arrival_s=arrival_s,
        sent_s=arrival_s,
        prompt_tokens=tokens(_value(metrics, "input_sequence_length"), place, "input_sequence_length"),
        output_tokens=output,
        ttft_s=ttft_s,
        tpot_s=time_per_token(e2e_s, ttft_s, output),
        itl_s=max(known, default=None),
        e2e_s=e2e_s,
        gaps_s=known,
    )


def _value(metrics: Record, name: str) -> Any:
    figure = metrics.get(name)
    return figure.get("value") if isinstance(figure, dict) else None


def _figure(metrics: Record, place: str, name: str, value: Any) -> float | None:
    """Return a figure in seconds by the unit that stands beside it."""
    if value is None:
        return None
    unit = metrics[name].get("unit")
    if unit not in PER_SECOND:
        raise TraceError(place, f"{name} has the unit {unit!r}", "one of " + ", ".join(PER_SECOND), "name the unit")
    return seconds(value, place, name, PER_SECOND[unit])


def _stamp(record: Record, place: str) -> int:
    """Return when a request was sent, in nanoseconds since 1970, exactly: a whole number, or the text of one."""
    value = record["metadata"]["request_start_ns"]
    if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_NS:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(place, f"request_start_ns is {value!r}", "whole nanoseconds", "correct the value or remove the row")
    return value
