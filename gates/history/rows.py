"""Rows of the ledger: one for a verdict, one for each of its claims, taken from the verdict document alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gates.claim import claim_key
from gates.metrics import METRICS
from replay import documents
from replay.provenance import digest_bytes, digest_document

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One verdict; its digest is that of the bytes of ``verdict.json``."""

    digest: str
    appended_at: str
    """ISO time (UTC); the ledger's order."""
    tool_version: str
    decision: str
    basis: str
    baseline: str
    """Identity of the baseline: its mapping's digest, else that of its measured runs (`arm_identity`)."""
    candidate: str
    baseline_name: str
    candidate_name: str
    plan_digest: str
    policy_digest: str
    as_of: str | None
    committed_at: str | None
    """ISO time of the candidate's commit, where it is known."""

    @property
    def at(self) -> str:
        """ISO time that ages are counted to: the commit's, else the moment of the plan, else that of the append."""
        return self.committed_at or self.as_of or self.appended_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One claim of a verdict; figures are in the metric's unit."""

    verdict: str
    trace: str
    hardware: str
    model: str
    claim_key: str
    trace_digest: str
    trace_recorded_at: str | None
    calibration_digest: str | None
    """Of the accelerator's description, which holds its calibration; None for measured runs."""
    metric: str
    scale: str
    is_blocking: bool
    baseline: float | None
    candidate: float | None
    change: float | None
    """log(candidate / baseline) where `scale` is ratio, else candidate - baseline."""
    interval_lower: float | None
    """Bounds as the verdict has them: of the ratio, or of the difference."""
    interval_upper: float | None
    margin: float
    outcome: str

    @property
    def worsening(self) -> float | None:
        """Change of the log, positive where the figure got worse; None where it is no ratio."""
        if self.baseline is not None and self.baseline == self.candidate:
            return 0.0
        if self.scale != "ratio" or self.change is None:
            return None
        return self.change if METRICS[self.metric].direction == "lower" else -self.change


def arm_identity(mapping_digest: str | None, run_digests: Sequence[str]) -> str:
    """Return what an arm is told by: its mapping, else the runs that were measured of it."""
    return mapping_digest if mapping_digest is not None else digest_document(sorted(run_digests))


def rows_of(document: Document, *, appended_at: str, committed_at: str | None = None) -> tuple[VerdictRow, tuple[ClaimRow, ...]]:
    """Return the rows of a verdict document."""
    predicate = document["predicate"]
    digest = digest_bytes(documents.pretty_json(document).encode())
    arms = {side: _arm(predicate["inputs"], side) for side in ("baseline", "candidate")}
    verdict = VerdictRow(
        digest=digest,
        appended_at=appended_at,
        tool_version=predicate["tool"]["version"],
        decision=predicate["decision"],
        basis=predicate["basis"],
        baseline=arms["baseline"][0],
        candidate=arms["candidate"][0],
        baseline_name=arms["baseline"][1],
        candidate_name=arms["candidate"][1],
        plan_digest=predicate["plan"]["digest"],
        policy_digest=predicate["plan"]["policy_digest"],
        as_of=predicate["plan"]["as_of"],
        committed_at=committed_at,
    )
    return verdict, tuple(_claim_rows(predicate, digest))


def _arm(inputs: Sequence[Document], side: str) -> tuple[str, str]:
    """Return identity and name of an arm."""
    mappings = [record for record in inputs if record["role"] == f"{side}_mapping"]
    runs = [record for record in inputs if record["role"] == f"{side}_run"]
    identity = arm_identity(mappings[0]["digest"] if mappings else None, [record["digest"] for record in runs])
    return identity, ", ".join(record["name"] for record in runs or mappings)


def _claim_rows(predicate: Document, digest: str) -> Iterator[ClaimRow]:
    recorded_at = {
        record["digest"]: record["provenance"].get("recorded_at")
        for record in predicate["inputs"]
        if record["role"] == "trace" and isinstance(record["provenance"], dict)
    }
    planned = {(cell["trace"], cell["hardware"]): cell for cell in predicate["plan"]["cells"]}
    for cell in predicate["per_trace"]:
        plan = planned[cell["trace"], cell["hardware"]]
        for claim in cell["claims"]:
            yield ClaimRow(
                verdict=digest,
                trace=cell["trace"],
                hardware=cell["hardware"],
                model=cell["model"],
                claim_key=claim_key(claim["id"], cell["trace"], cell["hardware"]),
                trace_digest=plan["trace_digest"],
                trace_recorded_at=recorded_at.get(plan["trace_digest"]),
                calibration_digest=plan["hardware_digest"],
                metric=claim["metric"],
                scale=claim["scale"],
                is_blocking=claim["blocking"],
                baseline=claim["baseline"],
                candidate=claim["candidate"],
                change=_change(claim),
                interval_lower=claim["interval"] and claim["interval"]["lower"],
                interval_upper=claim["interval"] and claim["interval"]["upper"],
                margin=claim["margin"],
                outcome=claim["outcome"],
            )


def _change(claim: Document) -> float | None:
    if claim["scale"] != "ratio":
        found: float | None = claim["difference"]
        return found
    return math.log(claim["ratio"]) if claim["ratio"] else None
