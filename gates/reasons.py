"""Reasons of a cell's verdict and what improved beside it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gates.claim import Claim
from gates.finding import Finding
from gates.margins import format_margin
from gates.metrics import METRICS

Document = dict[str, Any]


def cell_reasons(claims: Sequence[Claim], findings: Sequence[Finding]) -> tuple[Document, ...]:
    """Return ``{code, message, claim?}`` rows, what decides first: invalid, disproved, undecided, advisory, informing."""
    return tuple(_rows(claims, findings))


def improved_rows(claims: Sequence[Claim], decision: str, basis: str) -> list[Document]:
    """Return the claims whose metric got better beyond doubt, and why that is not enough where the decision is rollback."""
    return [_improvement(claim, decision, basis) for claim in claims if _is_better(claim)]


def _rows(claims: Sequence[Claim], findings: Sequence[Finding]) -> Iterator[Document]:
    blocking = [claim for claim in claims if claim.blocking]
    for effect in ("invalidates", "disproves"):
        yield from (finding.to_document() for finding in findings if finding.effect == effect)
    if not blocking:
        yield {"code": "no_blocking_claim", "message": "the plan holds no blocking claim for this cell, so nothing was shown"}
    yield from (_claim_row(claim, "claim_disproved") for claim in blocking if claim.outcome == "disproved")
    yield from (_claim_row(claim, claim.reason_code or "undecided") for claim in blocking if claim.outcome == "undecided")
    if blocking and all(claim.outcome == "holds" for claim in blocking):
        yield {"code": "blocking_claims_hold", "message": f"all {len(blocking)} blocking claims hold"}
    yield from (_claim_row(claim, "advisory_claim_disproved") for claim in claims if not claim.blocking and claim.outcome == "disproved")
    yield from (finding.to_document() for finding in findings if finding.effect == "informs")


def _claim_row(claim: Claim, code: str) -> Document:
    text = f"{claim.id}: {figures_phrase(claim)}"
    if claim.reason is not None:
        text += f"; {claim.reason}"
    return {"code": code, "message": text, "claim": claim.id}


def figures_phrase(claim: Claim) -> str:
    """Return a claim's figures in one phrase: both arms, the comparison with its interval, the margin."""
    if claim.baseline is None or claim.candidate is None:
        return "no figure in both arms"
    text = f"{claim.baseline:.4g} -> {claim.candidate:.4g} {claim.unit}"
    if claim.interval is not None:
        sign, point = ("x", claim.ratio) if claim.scale == "ratio" else ("difference ", claim.difference)
        bounds = f"{claim.interval.confidence * 100:g} % interval {claim.interval.lower:.4g} to {claim.interval.upper:.4g}"
        text += f" ({sign}{point:.4g}, {bounds})"
    return f"{text}, margin {_margin_phrase(claim)}"


def _margin_phrase(claim: Claim) -> str:
    definition = METRICS[claim.metric]
    return format_margin(claim.margin, definition) if claim.scale == definition.scale else f"{claim.margin:.4g} {claim.unit}"


def _is_better(claim: Claim) -> bool:
    if claim.interval is None:
        return False
    no_change = 1.0 if claim.scale == "ratio" else 0.0
    return claim.interval.upper < no_change if claim.direction == "lower" else claim.interval.lower > no_change


def _improvement(claim: Claim, decision: str, basis: str) -> Document:
    why = {
        "regression": "better, but another blocking claim or limit is broken, and a gain in one figure never buys a loss in another",
        "inconclusive": "better, but not every blocking claim is shown to hold",
        "invalid_evidence": "better on paper, but the evidence cannot support any decision",
    }
    return {
        "claim": claim.id,
        "metric": claim.metric,
        "layer_type": claim.layer_type,
        "percentile": claim.percentile,
        "stratum": claim.stratum,
        "trace": claim.trace,
        "hardware": claim.hardware,
        "baseline": claim.baseline,
        "candidate": claim.candidate,
        "ratio": claim.ratio,
        "why_not_enough": None if decision == "release" else why[basis],
    }
