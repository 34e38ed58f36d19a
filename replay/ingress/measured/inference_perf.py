"""inference-perf (kubernetes-sigs): stage and summary reports with percentiles in seconds, and per-request reports."""

from __future__ import annotations

import itertools
from typing import Any

from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import Row, Rows, rate, seconds, summary_run, time_per_token, tokens

_REPORTED = {"time_to_first_token": "ttft_s", "time_per_output_token": "tpot_s", "request_latency": "e2e_s"}
_REQUEST = ("scheduled_time", "start_time", "end_time")


def is_stage_report(record: Record) -> bool:
    """Return whether an object is the report of a stage or of all stages."""
    return "load_summary" in record and "successes" in record


def is_request_report(records: list[Any]) -> bool:
    """Return whether a list is the report of each request."""
    return bool(records) and all(isinstance(one, dict) for one in records) and set(_REQUEST) <= set(records[0])


def read_stage_report(content: Content) -> list[MeasuredRun]:
    """Return the run of a stage report: percentiles without requests."""
    ((place, document),) = content.records()
    load, successes = document["load_summary"], document["successes"]
    reported = [
        ReportedFigure(metric=metric, percentile=50.0 if key == "median" else float(key[1:]), value_s=value_s)
        for name, metric in _REPORTED.items()
        for key, value in ((successes.get("latency") or {}).get(name) or {}).items()
        if (key == "median" or key[:1] == "p") and (value_s := seconds(value, place, f"{name}.{key}")) is not None
    ]
    facts = MeasuredFacts(
        format="inference-perf stage report",
        file_name=content.file_name,
        digest=content.digest,
        tool="inference-perf",
        units="seconds",
        arrivals="scheduled",
        identity="none",
        offered_rate_per_s=rate(load.get("requested_rate"), place, "requested_rate"),
        achieved_rate_per_s=rate(load.get("achieved_rate"), place, "achieved_rate"),
        duration_s=seconds(load.get("send_duration"), place, "send_duration"),
        expected_count=tokens(load.get("count"), place, "load_summary.count"),
        completed_count=tokens(successes.get("count"), place, "successes.count"),
    )
    return [summary_run(facts, reported)]


def read_request_report(content: Content) -> list[MeasuredRun]:
    """Return a run for each stage of ``per_request_lifecycle_metrics.json``; latencies count from the scheduled time."""
    stages: dict[Any, Rows] = {}
    for index, record in enumerate(content.document()):
        rows = stages.setdefault(record.get("stage_id"), Rows())
        rows.add(_row(record, f"{content.where}: request {index}", str(len(rows))))
    return [rows.to_run(_request_facts(content, None if len(stages) == 1 else f"stage {stage}")) for stage, rows in stages.items()]


def _request_facts(content: Content, stage: str | None) -> MeasuredFacts:
    return MeasuredFacts(
        format="inference-perf request report",
        file_name=content.file_name,
        digest=content.digest,
        tool="inference-perf",
        units="seconds",
        arrivals="scheduled",
        identity="order",
        dataset=stage,
    )


def _row(record: Record, place: str, name: str) -> Row:
    info = record.get("info") or {}
    scheduled, start, end = (seconds(record.get(key), place, key) for key in _REQUEST)
    times = [moment for moment in (seconds(one, place, "output_token_times") for one in info.get("output_token_times") or ()) if moment]
    output = tokens(info.get("output_tokens", len(times) or None), place, "output_tokens")
    gaps = [max(0.0, late - early) for early, late in itertools.pairwise(times)]
    ttft_s = None if not times or scheduled is None else max(0.0, times[0] - scheduled)
    e2e_s = None if end is None or scheduled is None else max(0.0, end - scheduled)
    return Row(
        request_id=name,
        status=FAILED if record.get("error") else COMPLETED,
        arrival_s=scheduled,
        sent_s=start,
        prompt_tokens=tokens(info.get("input_tokens"), place, "input_tokens"),
        output_tokens=output,
        ttft_s=ttft_s,
        tpot_s=time_per_token(e2e_s, ttft_s, output),
        itl_s=max(gaps, default=None),
        e2e_s=e2e_s,
        gaps_s=gaps,
    )
