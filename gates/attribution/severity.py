"""How bad a claim is: one order for attribution (which metric to explain) and for printing (what to show first).

Works on the JSON form of claims, so that it serves records and documents alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ClaimDocument = Mapping[str, Any]

_OUTCOMES = ("disproved", "undecided", "holds")


def worsening(claim: ClaimDocument) -> float | None:
    """Return how much worse the candidate is, in the unit of the margin: above 0 is worse, below 0 better, None where a side is missing.

    A fraction of the baseline on the ratio scale, absolute on the difference scale.
    """
    change = claim["ratio"] if claim["scale"] == "ratio" else claim["difference"]
    if change is None:
        return None
    if claim["scale"] == "ratio":
        change -= 1.0
    return float(change if claim["direction"] == "lower" else -change)


def severity(claim: ClaimDocument) -> tuple[int, int, float]:
    """Return a sort key that puts the worst claim first: outcome, blocking before advisory, worsening in margins."""
    worse, margin = worsening(claim), float(claim["margin"])
    # A margin of 0 tolerates nothing: any worsening counts as beyond every other one of the same outcome.
    scaled = 0.0 if not worse else worse / margin if margin > 0 else worse * 1e12
    return (_OUTCOMES.index(claim["outcome"]), 0 if claim["blocking"] else 1, -scaled)


def by_severity(claims: Iterable[ClaimDocument]) -> list[ClaimDocument]:
    """Return the claims, worst first; equals keep their order."""
    return sorted(claims, key=severity)
