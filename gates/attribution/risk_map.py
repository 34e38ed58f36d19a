"""The owner and risk map: who answers for what was found, what it does, what that puts at risk, and what undoes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gates.attribution.effects import KnobEffect
from gates.attribution.failure import Failure
from gates.finding import Finding
from gates.owners import OwnerMatch
from replay.specs.knobs import KNOBS

Document = dict[str, Any]
LEAST_SHARE = 0.1
"""Share of a metric's change from which a knob puts that metric at risk."""


def knob_row(knob: str, match: OwnerMatch, effects: Sequence[KnobEffect], *, undone: bool) -> Document:
    """Return the row of a knob; `undone`: it is in the smallest revert."""
    own = [effect for effect in effects if effect.knob == knob and effect.effect is not None]
    harmed = [effect.metric for effect in own if effect.share is not None and effect.share >= LEAST_SHARE]
    return _row(
        knob,
        match,
        effect=_effect(own[0]) if own else None,
        risk=f"breaks {', '.join(harmed)}" if harmed else None,
        mitigation=f"undo it ({KNOBS[knob.split('@', 1)[0]].revert_cost})" if undone else None,
    )


def stage_row(failure: Failure, match: OwnerMatch) -> Document:
    """Return the row of the first failing stage."""
    evidence = next((reason["message"] for reason in failure.reasons if reason["code"] == "first_failing_stage"), None)
    return _row(failure.stage, match, effect=evidence, risk=failure.bottleneck_class, mitigation=None)


def finding_row(finding: Finding, match: OwnerMatch) -> Document:
    """Return the row of a finding that speaks against the candidate, or leaves no decision."""
    risk = finding.bottleneck_class if finding.effect == "disproves" else "no decision can rest on this evidence"
    return _row(finding.code, match, effect=finding.message, risk=risk, mitigation=None)


def distinct(rows: Iterable[Document]) -> tuple[Document, ...]:
    """Return one row for each thing found."""
    return tuple({row["finding"]: row for row in rows}.values())


def _effect(effect: KnobEffect) -> str:
    value = effect.effect
    assert value is not None
    of_change = "" if effect.share is None else f", {effect.share:.0%} of the change"
    return f"{effect.metric} {f'{value:+.1%}' if effect.by_ratio else f'{value:+.4g}'}{of_change}"


def _row(finding: str, match: OwnerMatch, *, effect: str | None, risk: str | None, mitigation: str | None) -> Document:
    return {
        "finding": finding,
        "owner": match.owner,
        "contact": match.contact,
        "escalation": match.escalation,
        "source": match.source,
        "effect": effect,
        "risk": risk,
        "mitigation": mitigation,
    }
