"""Small measured runs for tests of the gate, and the gate on them without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gates.measured_gate import MeasuredResult, gate_measured
from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import MeasuredArm, MeasuredRequest
from replay.ingress.measured.measured_run import COMPLETED, MeasuredFacts, MeasuredRun
from replay.ingress.measured.rows import Row, Rows, summary_run

P95 = '[blocking]\nttft_s = { p95 = "3 %" }\n'
FACTS = {
    "format": "table", "file_name": "load.jsonl", "digest": "sha256:" + "12" * 32, "tool": "table", "units": "seconds",
    "arrivals": "scheduled",
    "identity": "ids", "model": "m-8b", "hardware": "h100", "is_synthetic": False,
}  # fmt: skip


def measured_run_of(
    latency_s: Sequence[float] | np.ndarray,
    *,
    ids: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    gap_s: float = 0.1,
    **facts: Any,
) -> MeasuredRun:
    """Return a run whose TTFT is `latency_s` [requests]; TPOT is a tenth of it, with 11 tokens each, so that E2E is twice the TTFT."""
    rows, given = Rows(), columns or {}
    for index, value in enumerate(np.asarray(latency_s, dtype=float).tolist()):
        fields: dict[str, Any] = {
            "request_id": f"r{index}" if ids is None else ids[index],
            "status": COMPLETED,
            "arrival_s": index * gap_s,
            "sent_s": index * gap_s,
            "prompt_tokens": 1000,
            "output_tokens": 11,
            "queue_s": value / 2,
            "ttft_s": value,
            "tpot_s": value / 10,
            "itl_s": value / 5,
            "e2e_s": 2 * value,
            "prefix_hit_tokens": 0,
        }
        rows.add(Row(**{**fields, **{name: values[index] for name, values in given.items()}}))
    return rows.to_run(MeasuredFacts(**{**FACTS, **facts}))


def summary_of(**facts: Any) -> MeasuredRun:
    """Return a run that holds no requests."""
    return summary_run(MeasuredFacts(**{**FACTS, **facts}), ())


def gate_runs(
    baseline: Sequence[MeasuredRun] | MeasuredRun, candidate: Sequence[MeasuredRun] | MeasuredRun, text: str = P95, **request: Any
) -> MeasuredResult:
    """Return the gate's result on runs."""
    arms = [
        MeasuredArm(label=name, runs=tuple((f"{name}.jsonl", run) for run in ([arm] if isinstance(arm, MeasuredRun) else arm)))
        for name, arm in (("baseline", baseline), ("candidate", candidate))
    ]
    asked = MeasuredRequest(
        baseline=arms[0],
        read_candidate=lambda: arms[1],
        policy=parse_policy(text, "policy.toml"),
        policy_name="policy.toml",
        owners=Owners(),
        owners_name=None,
        owners_digest=None,
        **{"seed": 1, **request},
    )
    return gate_measured(asked, lambda _: None)


def codes(result: MeasuredResult) -> list[str]:
    """Return the codes of the worst cell's reasons."""
    return [reason["code"] for reason in result.verdict.worst.reasons]
