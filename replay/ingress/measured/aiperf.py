"""NVIDIA AIPerf: ``profile_export.jsonl`` (a record per request, each figure with its unit) and its summary JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from replay.errors import TraceError
from replay.ingress.clock import NS_PER_S, format_ns
from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, TRUNCATED, MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import Row, Rows, rate, seconds, summary_run, time_per_token, tokens

PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
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
    kept: list[tuple[str, Record]] = []
    warm_up_count = 0
    for place, record in content.records():
        if not is_aiperf_record(record):
            raise TraceError(place, "the line is no AIPerf record", "metadata with request_start_ns, and metrics", "remove the line")
        if record["metadata"].get("benchmark_phase", "profiling") == "profiling":
            kept.append((place, record))
        else:
            warm_up_count += 1
    kept.sort(key=lambda item: _stamp(item[1], item[0], "request_start_ns") or 0)
    zero_ns = min((_stamp(record, place, "request_start_ns") or 0 for place, record in kept), default=0)
    rows, names = Rows(), _names([record["metadata"] for _, record in kept])
    for (place, record), name in zip(kept, names, strict=True):
        rows.add(_row(record, place, name, zero_ns))
    facts = MeasuredFacts(
        format="AIPerf profile export",
        file_name=content.file_name,
        digest=content.digest,
        tool="aiperf",
        units="each figure in the unit it names; stamps in nanoseconds",
        arrivals="sent",
        identity="ids",
        started_at=format_ns(zero_ns, utc=True) if kept else None,
        notes=(f"{warm_up_count} warm-up requests left out",) if warm_up_count else (),
    )
    return [rows.to_run(facts)]


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


def _names(metadata: list[Record]) -> list[str]:
    """Return what the load calls each request: the turn of its conversation, and which use of it where it came several times."""
    turns = [f"{one.get('conversation_id') or one.get('session_num')}/{one.get('turn_index', 0)}" for one in metadata]
    seen: Counter[str] = Counter()
    names = []
    for turn in turns:
        seen[turn] += 1
        names.append(turn if seen[turn] == 1 else f"{turn}#{seen[turn]}")
    return names


def _row(record: Record, place: str, name: str, zero_ns: int) -> Row:
    metadata, metrics = record["metadata"], record["metrics"]
    cancelled = bool(metadata.get("was_cancelled"))
    failed = record.get("error") is not None or "request_latency" not in metrics
    chunks = _value(metrics, "inter_chunk_latency")
    gaps = [_figure(metrics, place, "inter_chunk_latency", gap) for gap in chunks] if isinstance(chunks, list) else []
    e2e_s, ttft_s = (_figure(metrics, place, key, _value(metrics, key)) for key in ("request_latency", "time_to_first_token"))
    output = tokens(_value(metrics, "output_sequence_length"), place, "output_sequence_length")
    start_ns = _stamp(record, place, "request_start_ns") or 0
    known = [gap for gap in gaps if gap is not None]
    return Row(
        request_id=name,
        status=TRUNCATED if cancelled else FAILED if failed else COMPLETED,
        arrival_s=(start_ns - zero_ns) / NS_PER_S,
        sent_s=(start_ns - zero_ns) / NS_PER_S,
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


def _stamp(record: Record, place: str, name: str) -> int | None:
    """Return a stamp in nanoseconds since 1970, exactly: a whole number, or the text of one."""
    value = record["metadata"].get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise TraceError(place, f"{name} is {value!r}", "whole nanoseconds", "correct the value or remove the row")
    return value
