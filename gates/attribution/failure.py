"""Where a regression breaks: the first failing stage, the bottleneck class, and what the metric would be without the bottleneck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gates.attribution.bottleneck import Bottleneck, find_bottleneck
from gates.attribution.counterfactual import with_terms_of
from gates.attribution.effects import claims_to_explain
from gates.attribution.invariants import StageCheck, check_stages
from gates.attribution.stage import first_failing_stage
from gates.attribution.trials import Trials
from gates.claim import Claim
from gates.finding import Finding
from gates.metrics import METRICS
from replay.specs.knobs import Stage

if TYPE_CHECKING:
    from gates.resimulation.traffic import PinnedTraffic

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """The metric that decided, replayed with the candidate's bottleneck as the baseline has it."""

    metric: str
    """The claim's key."""
    baseline: float
    candidate: float
    without: float
    """What it would be, in the claim's unit."""

    @property
    def recovered_ratio(self) -> float:
        """Share of the change that goes away with the bottleneck."""
        return (self.candidate - self.without) / (self.candidate - self.baseline)

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {"metric": self.metric, "without": self.without, "recovered_ratio": self.recovered_ratio}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Stage and class of a verdict that is no release."""

    stage: Stage
    bottleneck_class: str | None
    bottleneck: Bottleneck | None = None
    """None where no replay tells the class: doubt, quality, findings."""
    counterfactual: Counterfactual | None = None
    reasons: tuple[Document, ...] = ()
    checks: tuple[StageCheck, ...] = ()
    """Of the stages that own changed knobs."""

    def to_document(self) -> Document | None:
        """Return the JSON form of the verdict's `bottleneck`."""
        found = self.bottleneck
        if found is None:
            return None
        names = ("layer_type", "phase", "term", "before_s", "after_s")
        document: Document = {name: getattr(found, name) for name in names}
        return {**document, "counterfactual": None if self.counterfactual is None else self.counterfactual.to_document()}


def locate_failure(trials: Trials, findings: Sequence[Finding], blamed: frozenset[str], traffic: PinnedTraffic | None) -> Failure:
    """Return where a regression breaks; `blamed` are the knobs of the smallest revert, or all changed ones."""
    claims = trials.judgement.claims
    if _only_quality(claims, findings):
        message = "quality_sla: the answers got worse, which no replay shows; latencies are judged beside"
        return Failure(stage="quality_sla", bottleneck_class="numerics", reasons=({"code": "first_failing_stage", "message": message},))
    checks = check_stages(trials, tuple(findings))
    failure = first_failing_stage(trials, checks, blamed)
    reasons: list[Document] = [{"code": "first_failing_stage", "message": f"{failure.stage}: {failure.evidence}"}]
    bottleneck = find_bottleneck(trials, blamed)
    if bottleneck is not None:
        reasons.append(bottleneck.reason)
    claimed = any(claim.outcome == "disproved" and claim.blocking for claim in claims)
    against = [finding for finding in findings if finding.effect == "disproves" and (not claimed or finding.stage == "quality_sla")]
    known = next((finding.bottleneck_class for finding in against), None)
    if known is not None and (not claimed or failure.stage == "quality_sla"):
        # Findings know their class better than a comparison of step costs: where they alone speak against the candidate, or where no
        # stage's own work got worse.
        return Failure(stage=failure.stage, bottleneck_class=known, reasons=tuple(reasons), checks=checks)
    if bottleneck is None:
        return Failure(stage=failure.stage, bottleneck_class=None, reasons=tuple(reasons), checks=checks)
    without = _counterfactual(trials, bottleneck, traffic)
    if without is not None:
        message = (
            f"with {bottleneck.bottleneck_class} as in the baseline, {without.metric} would be {without.without:.4g} instead of "
            f"{without.candidate:.4g}: {without.recovered_ratio:.0%} of the change"
        )
        reasons.append({"code": "counterfactual", "message": message})
    return Failure(
        stage=failure.stage,
        bottleneck_class=bottleneck.bottleneck_class,
        bottleneck=bottleneck,
        counterfactual=without,
        reasons=tuple(reasons),
        checks=checks,
    )


def _counterfactual(trials: Trials, bottleneck: Bottleneck, traffic: PinnedTraffic | None) -> Counterfactual | None:
    """Return what the metric that decided would be without the bottleneck, None where no replay can tell."""
    claim = next(iter(claims_to_explain(trials.judgement.claims)), None)
    if traffic is None or claim is None or claim.baseline is None or claim.candidate is None or claim.candidate == claim.baseline:
        return None
    tables = [trials.replayer.table(mapping) for mapping in (trials.candidate, trials.baseline)]
    table = with_terms_of(tables[0], tables[1], bottleneck.bottleneck_class)
    value = None if table is None else traffic.figures_under(table).get(claim.id)
    if value is None or math.isnan(value):
        return None
    return Counterfactual(metric=claim.key, baseline=claim.baseline, candidate=claim.candidate, without=value)


def _only_quality(claims: Sequence[Claim], findings: Sequence[Finding]) -> bool:
    """Return whether all that speaks against the candidate are claims about its answers."""
    against = [claim for claim in claims if claim.blocking and claim.outcome == "disproved"]
    by_finding = any(finding.effect == "disproves" for finding in findings)
    return bool(against) and not by_finding and all(METRICS[claim.metric].basis == "quality_items" for claim in against)
