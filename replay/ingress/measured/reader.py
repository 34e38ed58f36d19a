"""The door: a result file, or a folder with one, -> `MeasuredRun`s. The content decides the format, never the file's name."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.errors import TraceError
from replay.ingress.measured import aiperf, guidellm, inference_perf, llmperf, mlperf, table, vllm_bench, vllm_requests
from replay.ingress.measured.content import Content, open_content
from replay.ingress.measured.measured_run import STEPS_SCHEMA, MeasuredRun
from replay.provenance import digest_bytes

FORMATS = (
    "vLLM bench serve, SGLang bench_serving, AIPerf profile export, GuideLLM, inference-perf, llmperf, MLPerf LoadGen, vLLM request log, "
    "AIBrix regression CSV, or a table with " + table.WANTED
)
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, csv.Error)
"""What reading a file raises whose fields are not those of the format that it begins like; readers check what a tool may leave out."""
STEPS_FILE, MAPPING_FILE = "steps.parquet", "mapping.toml"
Reader = Callable[[Content], list[MeasuredRun]]

_OBJECTS: tuple[tuple[Callable[[dict[str, Any]], bool], Reader], ...] = (
    (vllm_bench.is_vllm_bench, vllm_bench.read_vllm_bench),
    (aiperf.is_aiperf_record, aiperf.read_aiperf),
    (aiperf.is_aiperf_summary, aiperf.read_aiperf_summary),
    (guidellm.is_guidellm, guidellm.read_guidellm),
    (inference_perf.is_stage_report, inference_perf.read_stage_report),
    (vllm_requests.is_vllm_request, vllm_requests.read_vllm_requests),
    (table.is_table, table.read_table),
)
_LISTS: tuple[tuple[Callable[[list[Any]], bool], Reader], ...] = (
    (llmperf.is_llmperf, llmperf.read_llmperf),
    (inference_perf.is_request_report, inference_perf.read_request_report),
)


def read_measured(path: Path) -> list[MeasuredRun]:
    """Return the runs in a result file, or in a folder with one and optionally ``steps.parquet``; a file may hold several runs.

    Raises:
        TraceError: it is of no known format, or a value cannot be used.
    """
    if path.is_dir():
        return _read_folder(path)
    content = open_content(path)
    reader = _reader(content)
    try:
        return reader(content)
    except MALFORMED as error:
        raise _malformed(content, error) from error


def _malformed(content: Content, error: Exception) -> TraceError:
    """Return the sentence about a field that is missing or of another type than its format has there."""
    got = f"a field is missing ({error})" if isinstance(error, KeyError) else f"a field of another type than its format has there ({error})"
    return TraceError(content.where, got[:200], "the tool's own result file, whole", "export the result again")


def is_result(path: Path) -> bool:
    """Return whether a file looks like a result: its encoding and, of JSON and CSV, its keys or columns say so."""
    try:
        content = open_content(path)
        if content.encoding == "csv":
            names = table.column_names(content)
            return set(names) >= table.AIBRIX or table.is_table(names)
        return content.encoding in ("parquet", "mlperf") or _reader(content) is not None
    except (TraceError, *MALFORMED):
        return False


def _read_folder(folder: Path) -> list[MeasuredRun]:
    """Return the runs of a folder's one result; a summary by the same tool beside it adds the facts that the requests' file lacks."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (STEPS_FILE, MAPPING_FILE))
    results = [read_measured(path) for path in (files if len(files) == 1 else filter(is_result, files))]
    detailed = [runs for runs in results if not all(run.is_summary for run in runs)]
    chosen = detailed if detailed else results
    if len(chosen) != 1:
        got = f"a folder with {len(chosen)} files that could be results"
        raise TraceError(str(folder), got, f"one result file, with {STEPS_FILE} and {MAPPING_FILE} at most", "name the file itself")
    summaries = [run for runs in results if runs is not chosen[0] for run in runs]
    return [_with_steps(_completed_by(run, summaries), folder, len(chosen[0])) for run in chosen[0]]


def _completed_by(run: MeasuredRun, summaries: list[MeasuredRun]) -> MeasuredRun:
    if len(summaries) != 1 or summaries[0].facts.tool != run.facts.tool:
        return run
    told = {name: getattr(summaries[0].facts, name) for name in run.facts.__slots__ if getattr(run.facts, name) is None}
    return replace(run, facts=replace(run.facts, **told))


def _with_steps(run: MeasuredRun, folder: Path, runs_count: int) -> MeasuredRun:
    steps = folder / STEPS_FILE
    if not steps.is_file():
        return run
    if runs_count != 1:
        got = f"{STEPS_FILE} beside a file of {runs_count} runs"
        raise TraceError(str(folder), got, "the steps of one run", "put each run into a folder of its own")
    told = f"{STEPS_FILE} {digest_bytes(steps.read_bytes())}"
    return replace(run, steps=_steps(steps), facts=replace(run.facts, notes=(*run.facts.notes, told)))


def _reader(content: Content) -> Reader:
    match content.encoding:
        case "mlperf":
            return mlperf.read_mlperf
        case "parquet" | "csv":
            return _tabular(content)
        case "json":
            document = content.document()
            if isinstance(document, list):
                found = next((reader for fits, reader in _LISTS if fits(document)), None)
            else:
                found = _of_object(document)
        case _:
            first = next((record for _, record in content.records()), {})
            found = _of_object(first)
    if found is None:
        raise TraceError(content.where, "its format is not recognised", FORMATS, "give the tool's own result file, or write such a table")
    return found


def _of_object(record: Any) -> Reader | None:
    return next((reader for fits, reader in _OBJECTS if isinstance(record, dict) and fits(record)), None)


def _tabular(content: Content) -> Reader:
    try:
        names = table.column_names(content)
    except csv.Error as error:
        raise TraceError(content.where, f"its first line is no header ({error})", FORMATS, "give a result file") from error
    if set(names) >= table.AIBRIX:
        return table.read_aibrix
    if not table.is_table(names):
        raise TraceError(content.where, f"no column is a latency: {', '.join(names)[:120]}", table.WANTED, "name the columns so")
    return table.read_table


def _steps(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    names = ", ".join(STEPS_SCHEMA.names)
    try:
        found = pq.read_table(path)
        steps = found.select(STEPS_SCHEMA.names).cast(STEPS_SCHEMA)
    except KeyError as error:
        raise TraceError(str(path), f"it lacks a column ({error})", names, "write the steps with these columns") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(str(path), f"it cannot be read as steps ({error})", names, "write the steps with these columns") from error
    starts, ends = (steps[name].to_numpy() for name in ("start_s", "end_s"))
    if not bool(((ends >= starts) & (abs(ends) < float("inf"))).all()):
        raise TraceError(str(path), "a step that ends before it starts, or NaN", "start_s <= end_s, finite", "correct the rows")
    return steps
