"""vLLM ``vllm bench serve`` and SGLang ``bench_serving``: one object per run, with or without arrays over its requests.

Two units in one file: the arrays (``ttfts``, ``itls``, ``latencies``) are seconds, figures named ``*_ms`` are milliseconds, and figures
without a suffix (``median_ttft`` of the files InferenceX publishes) are seconds. Success flags are not trusted: a request
without a token carries ``ttfts[i] == 0`` and no error. Newer files say how long a request waited at a capped client (``queue_times``):
it is added, so that latencies count from the schedule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from replay.errors import TraceError
from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import FAILED, MeasuredFacts, MeasuredRun, ReportedFigure
from replay.ingress.measured.rows import Row, Rows, rate, seconds, summary_run, time_per_token, tokens

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
_METRICS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "e2e_latency": "e2e_s"}
_FIGURE = re.compile(r"(median|p\d{1,2}(?:\.\d+)?)_(" + "|".join(_METRICS) + r")(_ms)?")
_SYNTHETIC = ("random", "random-ids", "generated-shared-prefix", "prefix_repetition", "random-image", "mooncake-synthetic")
_UNITS = "arrays in seconds; figures named _ms in milliseconds, others in seconds"


def is_vllm_bench(record: Record) -> bool:
    """Return whether an object is one run of these tools."""
    named = "request_rate" in record and "completed" in record and "duration" in record
    return named and any(key in record for key in ("total_input_tokens", "total_output_tokens", *ARRAYS))


def read_vllm_bench(content: Content) -> list[MeasuredRun]:
    """Return each run of the file.

    Raises:
        TraceError: the arrays of a run differ in length, or a value cannot be used.
    """
    return [_run(content, place, record) for place, record in content.records()]


def _run(content: Content, place: str, record: Record) -> MeasuredRun:
    if not is_vllm_bench(record):
        raise TraceError(place, "the object is no benchmark run", "request_rate, completed, duration, ...", "remove it")
    reported = tuple(_reported(record, place))
    facts = _facts(content, place, record)
    if "ttfts" not in record or "output_lens" not in record:
        return summary_run(facts, reported)
    rows = Rows()
    for row in _rows(record, place):
        rows.add(row)
    return rows.to_run(facts, reported)


def _facts(content: Content, place: str, record: Record) -> MeasuredFacts:
    is_sglang = record.get("backend", "") == "sglang" or "total_output_tokens_retokenized" in record
    count = len(record["input_lens"]) if isinstance(record.get("input_lens"), list) else None
    has_times = isinstance(record.get("start_times"), list)
    dataset = record.get("dataset_name")
    completed = tokens(record.get("completed"), place, "completed")
    expected = tokens(record.get("num_prompts"), place, "num_prompts")
    return MeasuredFacts(
        format="SGLang bench_serving" if is_sglang else "vLLM bench serve",
        file_name=content.file_name,
        digest=content.digest,
        tool="sglang" if is_sglang else "vllm",
        units=_UNITS,
        arrivals="none" if not has_times else "scheduled" if isinstance(record.get("queue_times"), list) else "sent",
        identity="order" if count is not None else "none",
        model=record.get("model_id"),
        offered_rate_per_s=rate(record.get("request_rate"), place, "request_rate"),
        concurrency=tokens(record.get("max_concurrency"), place, "max_concurrency"),
        dataset=dataset,
        is_synthetic=None if dataset is None else dataset in _SYNTHETIC,
        started_at=_started_at(record.get("date")),
        duration_s=seconds(record.get("duration"), place, "duration"),
        expected_count=expected if expected is not None else completed,
        completed_count=completed,
        settings=_settings(record),
        notes=() if has_times or count is None else ("the file has no arrival times: the requests are taken in its order",),
    )


def _settings(record: Record) -> tuple[tuple[str, str], ...]:
    """Return what ``--metadata KEY=VALUE`` wrote: texts at the top that are none of the tool's own."""
    own = {"date", "backend", "endpoint_type", "model_id", "tokenizer_id", "label", "dataset_name", "request_rate"}
    return tuple((key, value) for key, value in record.items() if isinstance(value, str) and key not in own)


def _started_at(value: Any) -> str | None:
    try:
        return datetime.strptime(value, "%Y%m%d-%H%M%S").isoformat()
    except (TypeError, ValueError):
        return None


def _reported(record: Record, place: str) -> Iterator[ReportedFigure]:
    for key, value in record.items():
        match = _FIGURE.fullmatch(key)
        if match is None or value is None:
            continue
        statistic, metric, in_ms = match.groups()
        value_s = seconds(value, place, key, 1000.0 if in_ms else 1.0)
        assert value_s is not None
        yield ReportedFigure(metric=_METRICS[metric], percentile=50.0 if statistic == "median" else float(statistic[1:]), value_s=value_s)


def _rows(record: Record, place: str) -> Iterator[Row]:
    arrays = {name: record.get(name) for name in (*ARRAYS, "errors", "latencies", "start_times", "queue_times")}
    known = {name: values for name, values in arrays.items() if isinstance(values, list)}
    lacking = [name for name in ("ttfts", "output_lens") if name not in known]
    if lacking:
        raise TraceError(
            place, f"{lacking[0]} is {record.get(lacking[0])!r}"[:120], "a list with one entry per request", "save the run again"
        )
    lengths = {name: len(values) for name, values in known.items()}
    if len(set(lengths.values())) > 1:
        got = "arrays of different lengths: " + ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise TraceError(place, got, "one entry per request in each", "save the run again (the file may be cut)")
    for index in range(lengths["ttfts"]):
        yield _row({name: values[index] for name, values in known.items()}, f"{place}: request {index}", index)


def _row(given: Record, place: str, index: int) -> Row:
    gaps = [gap for gap in (seconds(value, place, "itls") for value in given.get("itls") or ()) if gap is not None]
    ttft_s, output = seconds(given["ttfts"], place, "ttfts"), tokens(given["output_lens"], place, "output_lens")
    # Several tokens can come in one chunk, so the gaps need not be as many as the tokens; they still add up to the decode time.
    e2e_s = seconds(given.get("latencies"), place, "latencies")
    if e2e_s is None and ttft_s is not None and (gaps or output == 1):
        e2e_s = ttft_s + sum(gaps)
    sent_s = seconds(given.get("start_times"), place, "start_times")
    waited_s = seconds(given.get("queue_times"), place, "queue_times") or 0.0
    return Row(
        request_id=str(index),
        status=FAILED if given.get("errors") else "completed",
        arrival_s=None if sent_s is None else sent_s - waited_s,
        sent_s=sent_s,
        prompt_tokens=tokens(given.get("input_lens"), place, "input_lens"),
        output_tokens=output,
        ttft_s=None if ttft_s is None else ttft_s + waited_s,
        tpot_s=time_per_token(e2e_s, ttft_s, output),
        itl_s=max(gaps, default=None),
        e2e_s=None if e2e_s is None else e2e_s + waited_s,
        gaps_s=gaps,
    )
