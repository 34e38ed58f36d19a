"""Guardrails: what to watch after a release and when to roll back, from the blocking claims' boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gates.claim import Claim
from gates.metrics import METRICS
from gates.policy import PolicySpec

ACTION = "roll back"


def guardrails(claims: Sequence[Claim], policy: PolicySpec) -> list[dict[str, Any]]:
    """Return one row per blocking claim whose baseline is known: metric, limit in the metric's unit, window, action."""
    return [_guardrail(claim, policy) for claim in claims if claim.blocking and claim.baseline is not None]


def _guardrail(claim: Claim, policy: PolicySpec) -> dict[str, Any]:
    assert claim.baseline is not None
    sign = 1 if claim.direction == "lower" else -1
    limit = claim.baseline * (1 + sign * claim.margin) if claim.scale == "ratio" else claim.baseline + sign * claim.margin
    return {
        "claim": claim.id,
        "metric": claim.metric,
        "layer_type": claim.layer_type,
        "percentile": claim.percentile,
        "stratum": claim.stratum,
        "trace": claim.trace,
        "hardware": claim.hardware,
        "limit": limit,
        "unit": claim.unit,
        "breached_when": "above" if claim.direction == "lower" else "below",
        "window": _window(claim, policy),
        "action": ACTION,
    }


def _window(claim: Claim, policy: PolicySpec) -> str:
    """Return how much traffic a figure needs before it is compared with the limit."""
    if claim.percentile is not None:
        from replay.assembly.percentile import samples_needed

        requests = samples_needed(policy.warning_beyond, claim.percentile)
        return f"any {requests} consecutive requests, so that {policy.warning_beyond} lie beyond p{claim.percentile:g}"
    if METRICS[claim.metric].basis == "request_mean":
        return f"any {claim.n} consecutive requests"
    return f"as many time windows as were replayed ({claim.n})"
