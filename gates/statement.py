"""The verdict document: an in-toto Statement v1 whose predicate follows ``schemas/verdict.v1.schema.json``.

Strict JSON in a fixed key order without a time of day, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gates.claim import Claim
from gates.guardrails import guardrails
from gates.plan import Plan
from gates.reasons import improved_rows
from gates.verdict import CellVerdict, Verdict

Document = dict[str, Any]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://replay-gate.dev/gate-verdict/v1"
SCHEMA_VERSION = "1.0"
TOOL_NAME = "replay-gate"
SUBJECT_ROLES = ("candidate_mapping", "baseline_mapping", "candidate_run", "baseline_run", "trace")
INPUT_ROLES = (*SUBJECT_ROLES, "model", "hardware", "policy", "owners", "quality", "measurements", "selfcheck", "history", "reference")
_EXACT_INTEGER = 2**53
"""Larger integers are not exact in every JSON reader and are written as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """One input of the gate, by content; `role` is one of INPUT_ROLES."""

    role: str
    name: str
    digest: str
    """``sha256:<hex>``."""
    rows: int | None = None
    dropped: int | None = None
    """Rows read and set aside."""
    unit: str | None = None
    provenance: str | Document | None = None


def to_document(
    verdict: Verdict,
    *,
    plan: Plan,
    inputs: Sequence[InputRecord],
    tool_version: str,
    evidence: Document | None = None,
    fidelity: Document | None = None,
) -> Document:
    """Return the statement, JSON-ready; a part that is not given is null.

    The subjects are both mappings or measured runs, and the traces: what the verdict speaks about, by digest.
    """
    predicate = _predicate(verdict, plan, inputs, tool_version, evidence, fidelity)
    statement = {"_type": STATEMENT_TYPE, "subject": _subjects(inputs), "predicateType": PREDICATE_TYPE, "predicate": predicate}
    document: Document = _strict(statement)
    return document


def _predicate(
    verdict: Verdict,
    plan: Plan,
    inputs: Sequence[InputRecord],
    tool_version: str,
    evidence: Document | None,
    fidelity: Document | None,
) -> Document:
    worst, cause = verdict.worst, verdict.worst.cause
    claims = _all_claims(verdict)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": TOOL_NAME, "version": tool_version},
        "decision": verdict.decision,
        "basis": verdict.basis,
        "reasons": list(worst.reasons),
        "first_failing_stage": worst.first_failing_stage,
        "bottleneck_class": worst.bottleneck_class,
        "claims": [claim.to_document() for claim in claims],
        "improved": improved_rows(claims, verdict.decision, verdict.basis),
        "stages": list(cause.stages) if cause else [],
        "bottleneck": cause.bottleneck if cause else None,
        "knobs": list(cause.knobs) if cause else [],
        "attribution": list(cause.attribution) if cause else [],
        "cohorts": list(cause.cohorts) if cause else [],
        "mitigation": cause.mitigation if cause else None,
        "owners": list(cause.owners) if cause else [],
        "per_trace": [_cell(cell) for cell in verdict.cells],
        "guardrails": guardrails(claims, plan.policy),
        "inputs": [_input(record) for record in inputs],
        "plan": {"digest": plan.digest, **plan.to_document()},
        "evidence": evidence,
        "fidelity": fidelity,
        "sustained": worst.sustained,
    }


def _all_claims(verdict: Verdict) -> list[Claim]:
    return [claim for cell in verdict.cells for claim in cell.claims]


def _cell(cell: CellVerdict) -> Document:
    return {
        "trace": cell.trace,
        "hardware": cell.hardware,
        "model": cell.model,
        "decision": cell.decision,
        "basis": cell.basis,
        "reasons": list(cell.reasons),
        "first_failing_stage": cell.first_failing_stage,
        "bottleneck_class": cell.bottleneck_class,
        "claims": [claim.to_document() for claim in cell.claims],
        "sustained": cell.sustained,
    }


def _input(record: InputRecord) -> Document:
    return {name: getattr(record, name) for name in record.__slots__}


def _subjects(inputs: Sequence[InputRecord]) -> list[Document]:
    chosen = [record for role in SUBJECT_ROLES for record in inputs if record.role == role]
    return [{"name": f"{record.role}:{record.name}", "digest": {"sha256": record.digest.removeprefix("sha256:")}} for record in chosen]


def _strict(value: Any) -> Any:
    """Return the value with lists for tuples and integers beyond 2^53 as text."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGER:
        return str(value)
    return value
