"""Request logs of a vLLM engine with its stamps, and the meta file beside them: two clocks that are never mixed."""

from __future__ import annotations

import json
from pathlib import Path

from replay.errors import SpecError, TraceError
from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, MeasuredFacts, MeasuredRun
from replay.ingress.measured.rows import Row, Rows, seconds, time_per_token, tokens

REQUIRED = frozenset({"request_id", "input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts"})
_STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def is_vllm_request(record: Record) -> bool:
    """Return whether an object is a row of such a log."""
    return set(record) >= REQUIRED


def read_vllm_requests(content: Content) -> list[MeasuredRun]:
    """Return the run; latencies count from `queued_ts`, when the engine got the request.

    The rows' `arrival_time` is another clock (epoch); it is the sending, as the client's schedule is not in the log.

    Raises:
        TraceError: a stamp is missing, no number, or before the one it has to follow.
    """
    rows = Rows()
    for place, record in content.records():
        rows.add(_row(record, place))
    meta = _meta(content.path)
    engine, started = meta.get("engine_kwargs") or {}, meta.get("started_at")
    cache = meta.get("kv_cache") or {}
    facts = MeasuredFacts(
        format="vLLM request log",
        file_name=content.file_name,
        digest=content.digest,
        tool="vllm",
        tool_version=meta.get("vllm_version"),
        units="seconds",
        arrivals="sent",
        identity="ids",
        model=meta.get("model"),
        hardware=(meta.get("hardware") or {}).get("device_name"),
        dataset=meta.get("dataset_hash"),
        started_at=started,
        prefix_cache=cache.get("enable_prefix_caching"),
        expected_count=tokens(meta.get("num_requests"), content.where, "num_requests"),
        settings=tuple((key, json.dumps(value)) for key, value in engine.items()),
    )
    return [rows.to_run(facts)]


def _row(record: Record, place: str) -> Row:
    missing = sorted(REQUIRED - set(record))
    if missing:
        raise TraceError(place, f"the row has no {missing[0]!r}", "the keys " + ", ".join(sorted(REQUIRED)), "add it or remove the row")
    queued, scheduled, first, last = (seconds(record.get(name), place, name) for name in _STAMPS)
    output = tokens(record["output_toks"], place, "output_toks")
    arrival = seconds(record.get("arrival_time"), place, "arrival_time")
    if queued is None or first is None or last is None:
        return Row(request_id=str(record["request_id"]), status=FAILED, arrival_s=arrival, output_tokens=output)
    if not queued <= first <= last or (scheduled is not None and not queued <= scheduled <= first):
        got = "its stamps are out of order"
        raise TraceError(place, got, "queued <= scheduled <= first token <= last token", "correct the row or remove it")
    return Row(
        request_id=str(record["request_id"]),
        status=COMPLETED,
        arrival_s=queued if arrival is None else arrival,
        prompt_tokens=tokens(record["input_toks"], place, "input_toks"),
        output_tokens=output,
        queue_s=None if scheduled is None else scheduled - queued,
        ttft_s=first - queued,
        tpot_s=time_per_token(last - queued, first - queued, output),
        e2e_s=last - queued,
    )


def _meta(path: Path) -> Record:
    """Return the meta file beside a log (``x_meta.json`` or ``x.meta.json`` of ``x_requests.jsonl``), or nothing where there is none."""
    from replay.documents import read_json_object

    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    for suffix in ("_requests", ".requests"):
        beside = path.with_name(f"{stem.removesuffix(suffix)}{suffix[0]}meta.json")
        if stem.endswith(suffix) and beside.is_file():
            try:
                return read_json_object(beside, "the meta file of a request log")
            except SpecError as error:
                raise TraceError(error.where, error.got, error.want, error.fix) from error
    return {}
