"""Effect of each changed knob on the metric that decided, by replaying the candidate without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gates.attribution.severity import by_severity
from gates.attribution.trials import Trial, Trials
from gates.claim import Claim

METHOD = "exact replay of the recorded trace; no interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """What one knob does to one metric.

    Effects are fractions on the ratio scale (0.25 = the metric is 25 % higher with the candidate's value) and absolute on the
    difference scale; a rise is a rise, whatever the metric's direction.
    """

    knob: str
    metric: str
    """The claim's key: metric, percentile, layer type and stratum."""
    effect: float | None
    """Candidate against the candidate with this knob reverted."""
    share: float | None
    """`effect` as a share of the whole change (of logarithms on the ratio scale); shares of knobs that interact do not add up to 1."""
    effect_alone: float | None
    """The baseline with only this knob changed against the baseline."""
    harm: float
    """`effect` in the metric's bad direction; 0 where it is unknown."""
    method: str

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the verdict's `attribution[]`."""
        document: dict[str, Any] = {name: getattr(self, name) for name in ("knob", "metric", "effect", "share", "effect_alone")}
        return {**document, "interval": None, "method": self.method}


def claim_to_explain(claims: tuple[Claim, ...]) -> Claim | None:
    """Return the claim whose metric the attribution is about: the worst blocking one, disproved ones first."""
    blocking = {claim.id: claim for claim in claims if claim.blocking}
    order = by_severity(claim.to_document() for claim in blocking.values())
    return blocking[order[0]["id"]] if order else None


def knob_effects(trials: Trials, claim: Claim) -> tuple[KnobEffect, ...]:
    """Return every changed knob's effect on a claim's metric, in the order of the changes.

    Replays the candidate with each knob reverted and, where several knobs changed, the baseline with each one changed.
    """
    return tuple(_effect(trials, claim, knob) for knob in trials.changes)


def _effect(trials: Trials, claim: Claim, knob: str) -> KnobEffect:
    without = trials.judged({knob})
    alone = trials.judged(trials.knobs - {knob})
    effect = _change(claim, without.value(claim.id), claim.candidate)
    total = _change(claim, claim.baseline, claim.candidate)
    sign = 1.0 if claim.direction == "lower" else -1.0
    return KnobEffect(
        knob=knob,
        metric=claim.key,
        effect=effect,
        share=_share(claim, effect, total),
        effect_alone=_change(claim, claim.baseline, alone.value(claim.id)),
        harm=sign * effect if effect is not None else 0.0,
        method=_method(without, alone),
    )


def _method(without: Trial, alone: Trial) -> str:
    cases = (("with this knob reverted", without), ("with only this knob changed", alone))
    problems = [f"; {case} the mapping cannot be built: {trial.problem}" for case, trial in cases if trial.problem is not None]
    return METHOD + "".join(problems)


def _change(claim: Claim, before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if claim.scale == "difference":
        return after - before
    return after / before - 1.0 if before > 0 else None


def _share(claim: Claim, effect: float | None, total: float | None) -> float | None:
    if effect is None or not total:
        return None
    if claim.scale == "difference":
        return effect / total
    return math.log1p(effect) / math.log1p(total) if min(effect, total) > -1.0 else None
