"""Gates on simulated figures through the real plan, judgement, verdict document and ledger rows; nothing is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gates.checks.drift import HistoryInput, drift_findings, history_records, with_drift
from gates.history.chain import History
from gates.history.rows import ClaimRow, VerdictRow, rows_of
from gates.judge import judge_measured
from gates.measure.measured import Measured
from gates.plan import CellSpec, make_plan
from gates.policy import parse_policy
from gates.statement import InputRecord, to_document
from gates.statistics.runs import welch
from gates.verdict import cell_verdict, combine

CLAIM = 'replicates = 200\n[blocking]\nttft_s = { p99 = "3 %" }\n'
CELL = CellSpec(trace="chat", trace_digest="sha256:" + "ab" * 32, hardware="h100-sxm", model="tiny", layer_types=())


def mapping(number: int) -> str:
    """Return the identity of a made-up mapping."""
    return f"sha256:{number:064x}"


def gate_document(
    baseline: tuple[int, Sequence[float]],
    candidate: tuple[int, Sequence[float]],
    *,
    policy: str = CLAIM,
    given: HistoryInput | None = None,
    as_of: str | None = None,
    cell: CellSpec = CELL,
) -> dict[str, Any]:
    """Return the verdict document on two arms, each the number of its mapping and the figure of every replay."""
    rules = parse_policy(policy, "policy.toml")
    plan = with_drift(make_plan(rules, [cell], 1, as_of=as_of), given, mapping(baseline[0]))
    planned = plan.cells[0]
    measured = over_runs(baseline[1], candidate[1], rules.alpha)
    claims = judge_measured(planned, [measured] * len(planned.claims))
    findings = tuple(drift_findings(planned, claims, as_of))
    inputs = [
        InputRecord(role=f"{side}_mapping", name=side, digest=mapping(arm[0]))
        for side, arm in (("baseline", baseline), ("candidate", candidate))
    ]
    inputs += [
        InputRecord(role="trace", name="chat.parquet", digest=cell.trace_digest, provenance={"recorded_at": "2026-01-01T00:00:00+00:00"}),
        *history_records(plan, given),
    ]
    return to_document(combine([cell_verdict(cell, claims, findings)]), plan=plan, inputs=inputs, tool_version="1")


def over_runs(baseline: Sequence[float], candidate: Sequence[float], alpha: float) -> Measured:
    """Return figures of a claim by ratio over the replays of each arm, above 0."""
    logs = np.log(baseline), np.log(candidate)
    before, after = (float(np.exp(arm.mean())) for arm in logs)
    estimate, runs_count = welch(*logs, alpha=alpha), min(map(len, logs))
    return Measured(n=20_000, n_beyond=200, baseline=before, candidate=after, runs_count=runs_count, estimate=estimate)


def steady(ratio: float) -> list[float]:
    """Return three replays around a level: wide enough for an interval, too close to matter."""
    return [ratio * (1 + 1e-6 * offset) for offset in (-1, 0, 1)]


def with_verdict(history: History, document: dict[str, Any], day: int) -> History:
    """Return the history with one more verdict, appended on a day of January 2026."""
    verdict, claims = rows_of(document, appended_at=f"2026-01-{day:02d}T00:00:00+00:00")
    return History(verdicts=(*history.verdicts, verdict), claims=(*history.claims, *claims))


def chained(levels: Sequence[float], policy: str = CLAIM) -> History:
    """Return the history of successive gates, mapping k against mapping k - 1, of which k has the figure `levels[k]`."""
    history = History()
    for number in range(1, len(levels)):
        arms = (number - 1, steady(levels[number - 1])), (number, steady(levels[number]))
        history = with_verdict(history, gate_document(*arms, policy=policy), number)
    return history


def released_of_ten(seed: int, *, policy: str = CLAIM, is_anchored: bool, runs: int = 10, sd: float = 0.01) -> int:
    """Return how many of ten successive changes, each 1 % slower than the one before, are released.

    Version k is k % slower than version 0, whether or not those before it were released. It is compared with version 0 (anchored), or
    with the last one that was released; every gate draws its own replays, `runs` per arm with a standard deviation `sd` of the log.
    """
    rng = np.random.default_rng(seed)
    history, last, released = History(), 0, 0
    for number in range(1, 11):
        against = 0 if is_anchored else last
        arms = [(one, list(1.01**one * np.exp(sd * rng.standard_normal(runs)))) for one in (against, number)]
        document = gate_document(*arms, policy=policy, given=HistoryInput(name="history.db", history=history))
        history = with_verdict(history, document, number)
        if document["predicate"]["decision"] == "release":
            released, last = released + 1, number
    return released


def changed(rows: tuple[VerdictRow, tuple[ClaimRow, ...]], **fields: Any) -> tuple[VerdictRow, tuple[ClaimRow, ...]]:
    """Return the rows of a verdict with fields of its own changed, its claims following its digest."""
    verdict = replace(rows[0], **fields)
    return verdict, tuple(replace(claim, verdict=verdict.digest) for claim in rows[1])
