"""llmperf: a list of requests, seconds, in the order in which they ended and without arrival times."""

from __future__ import annotations

from typing import Any

from replay.ingress.measured.content import Content, Record
from replay.ingress.measured.measured_run import COMPLETED, FAILED, MeasuredFacts, MeasuredRun
from replay.ingress.measured.rows import Row, Rows, seconds, time_per_token, tokens

_REQUIRED = {"ttft_s", "end_to_end_latency_s", "number_output_tokens", "error_code"}


def is_llmperf(records: list[Any]) -> bool:
    """Return whether a list holds the requests of a run."""
    return bool(records) and all(isinstance(one, dict) for one in records) and set(records[0]) >= _REQUIRED


def read_llmperf(content: Content) -> list[MeasuredRun]:
    """Return the run of a list of requests.

    Raises:
        TraceError: a value cannot be used.
    """
    rows = Rows()
    for index, record in enumerate(content.document()):
        rows.add(_row(record, f"{content.where}: request {index}", index))
    facts = MeasuredFacts(
        format="llmperf requests",
        file_name=content.file_name,
        digest=content.digest,
        tool="llmperf",
        units="seconds",
        arrivals="none",
        identity="none",
        notes=("the file has no arrival times: the requests are taken in the order in which they ended",),
    )
    return [rows.to_run(facts)]


def _row(record: Record, place: str, index: int) -> Row:
    ttft_s, e2e_s = (seconds(record.get(name), place, name) for name in ("ttft_s", "end_to_end_latency_s"))
    output = tokens(record.get("number_output_tokens"), place, "number_output_tokens")
    return Row(
        request_id=str(index),
        status=COMPLETED if record.get("error_code") is None else FAILED,
        prompt_tokens=tokens(record.get("number_input_tokens"), place, "number_input_tokens"),
        output_tokens=output,
        ttft_s=ttft_s,
        tpot_s=time_per_token(e2e_s, ttft_s, output),
        e2e_s=e2e_s,
    )
