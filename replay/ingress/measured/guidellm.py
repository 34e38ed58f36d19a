"""GuideLLM ``benchmarks.json`` (0.4 and later): several benchmarks a file, figures ``*_ms`` beside ``request_latency`` in seconds."""

from __future__ import annotations

from typing import Any

from replay.errors import TraceError
from replay.ingress.clock import format_ns
from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, TRUNCATED, MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import Row, Rows, rate, seconds, summary_run, time_per_token, tokens

_REPORTED = {
    "time_to_first_token_ms": ("ttft_s", 1e3),
    "inter_token_latency_ms": ("tpot_s", 1e3),  # its time_per_output_token_ms is request latency / tokens, another figure
    "request_latency": ("e2e_s", 1.0),
}
_STAMPS = ("request_start", "first_token_iteration", "last_token_iteration", "request_end")
_STATUSES = {"successful": COMPLETED, "errored": FAILED, "incomplete": TRUNCATED}


def is_guidellm(record: Record) -> bool:
    """Return whether an object is a GuideLLM report."""
    benchmarks = record.get("benchmarks")
    return isinstance(benchmarks, list) and all(isinstance(one, dict) and "metrics" in one for one in benchmarks)


def read_guidellm(content: Content) -> list[MeasuredRun]:
    """Return a run for each benchmark of the report.

    Raises:
        TraceError: the layout is that of an older version, or a value cannot be used.
    """
    ((place, document),) = content.records()
    return [_run(content, f"{place}: benchmark {index}", document, one) for index, one in enumerate(document["benchmarks"])]


def _run(content: Content, place: str, document: Record, benchmark: Record) -> MeasuredRun:
    reported = tuple(_reported(benchmark, place))
    totals = benchmark.get("scheduler_metrics", {}).get("requests_made", {})
    facts = _facts(content, place, document, benchmark, totals)
    rows = Rows()
    requests = benchmark.get("requests", {})
    if not isinstance(requests, dict):
        raise TraceError(place, "requests is no object", "the layout of GuideLLM 0.4 or later", "run it again with a newer GuideLLM")
    for name, status in _STATUSES.items():
        for index, request in enumerate(requests.get(name) or ()):
            rows.add(_row(request, f"{place}: {name} {index}", status))
    return rows.to_run(facts, reported) if len(rows) else summary_run(facts, reported)


def _facts(content: Content, place: str, document: Record, benchmark: Record, totals: Record) -> MeasuredFacts:
    config = benchmark.get("config", {})
    strategy, start = config.get("strategy", {}), benchmark.get("start_time")
    is_concurrent = strategy.get("type_") in ("concurrent", "synchronous")
    return MeasuredFacts(
        format="GuideLLM report",
        file_name=content.file_name,
        digest=content.digest,
        tool="guidellm",
        tool_version=document.get("metadata", {}).get("guidellm_version"),
        units="figures named _ms in milliseconds; request_latency and stamps in seconds",
        arrivals="sent",
        identity="none",
        model=config.get("backend", {}).get("model") if isinstance(config.get("backend"), dict) else None,
        offered_rate_per_s=rate(strategy.get("rate"), place, "rate"),
        concurrency=tokens(strategy.get("max_concurrency"), place, "max_concurrency") if is_concurrent else None,
        started_at=None if start is None else format_ns(round(start * 1e9), utc=True),
        duration_s=seconds(benchmark.get("duration"), place, "duration"),
        expected_count=tokens(totals.get("total"), place, "requests_made.total"),
        completed_count=tokens(totals.get("successful"), place, "requests_made.successful"),
    )


def _reported(benchmark: Record, place: str) -> list[ReportedFigure]:
    found = []
    for name, (metric, per_s) in _REPORTED.items():
        percentiles = benchmark["metrics"].get(name, {}).get("successful", {}).get("percentiles") or {}
        for key, value in percentiles.items():
            value_s = seconds(value, place, f"{name}.{key}", per_s)
            if value_s is not None and key[1:].isdigit():
                percent = float(key[1:]) if len(key) == 3 else float(key[1:3] + "." + key[3:]) if key != "p001" else 0.1
                found.append(ReportedFigure(metric=metric, percentile=percent, value_s=value_s))
    return found


def _row(request: Record, place: str, status: str) -> Row:
    timings = request.get("info", {}).get("timings", {})
    start, first, last, end = (seconds(timings.get(name), place, name) for name in _STAMPS)
    ttft_s, e2e_s = _between(start, first), _between(start, end if last is None else last)
    output = tokens(_count(request, "output_metrics"), place, "output tokens")
    return Row(
        request_id=str(request.get("request_id")),
        status=status,
        arrival_s=start,
        sent_s=start,
        prompt_tokens=tokens(_count(request, "input_metrics"), place, "input tokens"),
        output_tokens=output,
        ttft_s=ttft_s,
        tpot_s=time_per_token(e2e_s, ttft_s, output),
        e2e_s=e2e_s,
    )


def _count(request: Record, side: str) -> Any:
    metrics = request.get(side) or {}
    return metrics.get("total_tokens", metrics.get("text_tokens"))


def _between(early: float | None, late: float | None) -> float | None:
    return None if early is None or late is None else max(0.0, late - early)
