"""MLPerf LoadGen: ``mlperf_log_summary.txt`` (``key : value``) and ``mlperf_log_detail.txt`` (``:::MLLOG {json}``), nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from replay.errors import TraceError
from replay.ingress.measured.content import Content, parse
from replay.ingress.measured.measured_run import MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import rate, seconds, summary_run, tokens

_MARK = b":::MLLOG"
_SUMMARY = re.compile(r"(\d+\.\d+) percentile (latency|first token latency|time to output token) \(ns\)")
_DETAIL = re.compile(r"result_(first_token_|time_per_output_token_|)(\d+\.\d+)_percentile_(?:latency_)?ns")
_METRICS = {
    "latency": "e2e_s", "first token latency": "ttft_s", "time to output token": "tpot_s",
    "": "e2e_s", "first_token_": "ttft_s", "time_per_output_token_": "tpot_s",
}  # fmt: skip
_FOR_DETAIL = {
    "Scenario": "effective_scenario", "target_qps": "effective_target_qps", "Result is": "result_validity", "version": "loadgen_version",
    "count": "result_query_count",
}  # fmt: skip
_LARGEST_NS = 2**63 - 1


def read_mlperf(content: Content) -> list[MeasuredRun]:
    """Return the run of a summary or detail log: percentiles without queries.

    Raises:
        TraceError: a line of a detail log is no JSON, or the log has no percentile.
    """
    is_detail, figures = False, {}
    for place, line in content.lines():
        if line.startswith(_MARK):
            is_detail = True
            record = parse(line.removeprefix(_MARK).strip(), place)
            figures[record.get("key")] = record.get("value")
        elif b":" in line:
            key, _, value = line.decode("utf-8", errors="replace").partition(":")
            figures[key.strip()] = value.strip()
    reported = tuple(_reported(figures, content.where))
    if not reported:
        got = "a log without a latency percentile"
        raise TraceError(content.where, got, "the log of a performance run", "give mlperf_log_summary.txt or mlperf_log_detail.txt")
    return [summary_run(_facts(content, figures, is_detail), reported)]


def _facts(content: Content, figures: dict[str, Any], is_detail: bool) -> MeasuredFacts:
    def said(name: str) -> Any:
        return figures.get(_FOR_DETAIL[name] if is_detail else name)

    scenario, validity = said("Scenario"), said("Result is")
    target = said("target_qps")
    return MeasuredFacts(
        format="MLPerf LoadGen log",
        file_name=content.file_name,
        digest=content.digest,
        tool="mlperf-loadgen",
        tool_version=said("version"),
        units="nanoseconds",
        arrivals="scheduled",
        identity="none",
        offered_rate_per_s=rate(target, content.where, "target_qps") if scenario == "Server" else None,
        dataset=scenario,
        expected_count=tokens(said("count"), content.where, "result_query_count"),
        is_valid=None if validity is None else validity == "VALID",
    )


def _reported(figures: dict[str, Any], place: str) -> Iterator[ReportedFigure]:
    for key, value in figures.items():
        match = _SUMMARY.fullmatch(str(key)) or _DETAIL.fullmatch(str(key))
        if match is None:
            continue
        name, percent = (match[2], match[1]) if match.re is _SUMMARY else (match[1], match[2])
        if not str(value).isdecimal() or int(value) > _LARGEST_NS:
            raise TraceError(place, f"{key} is {value!r}", "whole nanoseconds", "correct the log, or run it again")
        value_s = seconds(int(value), place, str(key), 1e9)
        assert value_s is not None
        yield ReportedFigure(metric=_METRICS[name], percentile=float(percent), value_s=value_s)
