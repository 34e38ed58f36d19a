"""Cause of a cell's verdict: the knobs, their effects, what to undo, the first failing stage and the bottleneck class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gates.attribution.bottleneck import find_bottleneck
from gates.attribution.effects import KnobEffect, claims_to_explain, knob_effects
from gates.attribution.knob_rows import knob_rows
from gates.attribution.mixes import Traffic
from gates.attribution.patch import MappingFile, revert_patch
from gates.attribution.revert import SmallestRevert, smallest_revert
from gates.attribution.stage import first_failing_stage
from gates.attribution.trials import Judge, Judgement, Trials
from gates.finding import Finding
from gates.metrics import METRICS
from gates.owners import OwnerMatch, Owners
from replay.ingress.trace import Trace
from replay.pipeline import Replayer
from replay.specs.knobs import STAGES, Stage
from replay.specs.mapping import MappingSpec, diff

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseQuestion:
    """A judged cell, and what is needed to try out other mappings in it."""

    replayer: Replayer
    baseline: MappingSpec
    candidate: MappingSpec
    judgement: Judgement
    """The candidate's."""
    findings: tuple[Finding, ...]
    judge: Judge
    owners: Owners
    mapping_file: MappingFile | None
    """The candidate's file, to make the patch for; None where there is no text (a bundle)."""
    confirm: Judge | None = None
    """The full gate, where `judge` is a quicker one."""
    traffic: Traffic | None = None
    """What mixes of the mappings are compared on; None: the recorded trace alone, as `judge` sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCause:
    """Why a cell's verdict is what it is; every field is JSON-ready and named as in the verdict document."""

    first_failing_stage: Stage | None = None
    bottleneck_class: str | None = None
    knobs: tuple[Document, ...] = ()
    attribution: tuple[Document, ...] = ()
    mitigation: Document | None = None
    owners: tuple[Document, ...] = ()
    reasons: tuple[Document, ...] = ()
    """Reasons to add to the cell's own: stage evidence, bottleneck figures, doubts about the revert."""


def find_cause(question: CauseQuestion) -> CellCause:
    """Return the cause of a cell's verdict; a release names only its knobs and their owners.

    Replays hybrids of the two mappings for a regression and for inconclusive evidence; evidence that is invalid cannot be
    attributed, so its stage and class come from the findings alone.
    """
    changes = diff(question.baseline, question.candidate)
    decisions = question.replayer.schedule(question.candidate).decisions if changes else ()
    knobs = tuple(knob_rows(changes, decisions, question.owners))
    match question.judgement.basis:
        case "regression" | "inconclusive":
            return _explained(question, knobs)
        case "invalid_evidence":
            return invalid_cause(question.findings, question.owners, knobs)
        case _:
            return CellCause(knobs=knobs)


def invalid_cause(findings: tuple[Finding, ...], owners: Owners, knobs: tuple[Document, ...] = ()) -> CellCause:
    """Return the cause where the evidence supports no decision: the earliest stage of the invalidating findings, no revert."""
    invalid = sorted((finding for finding in findings if finding.effect == "invalidates"), key=lambda finding: STAGES.index(finding.stage))
    stage: Stage = invalid[0].stage if invalid else "release_decision"
    found = next((finding.bottleneck_class for finding in invalid if finding.bottleneck_class), "measurement")
    rows = [_owner_row(finding.code, owners.of(finding.stage)) for finding in invalid]
    return CellCause(first_failing_stage=stage, bottleneck_class=found, knobs=knobs, owners=_distinct(rows))


def _explained(question: CauseQuestion, knobs: tuple[Document, ...]) -> CellCause:
    trials = Trials(
        replayer=question.replayer,
        baseline=question.baseline,
        candidate=question.candidate,
        judge=question.judge,
        judgement=question.judgement,
        confirm=question.confirm,
    )
    claims = claims_to_explain(question.judgement.claims)
    effects = knob_effects(trials, claims, question.traffic) if trials.changes else ()
    deciding = [effect for effect in effects if effect.metric == claims[0].key]
    revert = smallest_revert(trials, {effect.knob: effect.harm for effect in deciding})
    blamed = frozenset(revert.knobs) if revert is not None else trials.knobs
    stage, bottleneck_class, reasons = _where(question, trials, blamed)
    rows = [_owner_row(knob, question.owners.of(knob)) for knob in trials.changes if knob in blamed]
    return CellCause(
        first_failing_stage=stage,
        bottleneck_class=bottleneck_class,
        knobs=knobs,
        attribution=tuple(effect.to_document() for effect in effects),
        mitigation=_mitigation(question, trials, revert) if revert is not None else None,
        owners=_distinct([*rows, _owner_row(stage, question.owners.of(stage))]),
        reasons=(*reasons, *_ambiguity(deciding), *_doubts(trials, revert)),
    )


def _where(question: CauseQuestion, trials: Trials, blamed: frozenset[str]) -> tuple[Stage, str | None, tuple[Document, ...]]:
    """Return the first failing stage, the bottleneck class and the reasons with their figures."""
    if question.judgement.basis == "inconclusive" or not trials.changes:
        return "release_decision", "measurement", ()
    if _only_quality(question):
        message = "quality_sla: the answers got worse, which no replay shows; latencies are judged beside"
        return "quality_sla", "numerics", ({"code": "first_failing_stage", "message": message},)
    failure = first_failing_stage(trials, question.findings, blamed)
    reasons: list[Document] = [{"code": "first_failing_stage", "message": f"{failure.stage}: {failure.evidence}"}]
    bottleneck = find_bottleneck(trials, blamed)
    if bottleneck is not None:
        reasons.append(bottleneck.to_document())
    claimed = any(claim.outcome == "disproved" and claim.blocking for claim in question.judgement.claims)
    against = [
        finding for finding in question.findings if finding.effect == "disproves" and (not claimed or finding.stage == "quality_sla")
    ]
    known = next((finding.bottleneck_class for finding in against), None)
    if known is not None and (not claimed or failure.stage == "quality_sla"):
        # Findings know their class better than a comparison of step costs: where they alone speak against the candidate, or where no
        # stage's own work got worse.
        return failure.stage, known, tuple(reasons)
    return failure.stage, bottleneck.bottleneck_class if bottleneck is not None else None, tuple(reasons)


def _only_quality(question: CauseQuestion) -> bool:
    """Return whether all that speaks against the candidate are claims about its answers."""
    against = [claim for claim in question.judgement.claims if claim.blocking and claim.outcome == "disproved"]
    by_finding = any(finding.effect == "disproves" for finding in question.findings)
    return bool(against) and not by_finding and all(METRICS[claim.metric].basis == "quality_items" for claim in against)


def _mitigation(question: CauseQuestion, trials: Trials, revert: SmallestRevert) -> Document:
    owners = dict.fromkeys(question.owners.of(knob).owner for knob in revert.knobs)
    file = question.mapping_file
    return {
        "revert": list(revert.knobs),
        "patch": revert_patch(file, revert.knobs, question.baseline) if file is not None else None,
        "verified": True,
        "decision_after": "release",
        "owner": ", ".join(owners),
        "revert_cost": revert.revert_cost,
        "rollback_boundary": rollback_boundary(question.replayer.trace, question.replayer.hardware.name),
    }


def rollback_boundary(trace: Trace, hardware: str) -> str:
    """Return up to which load and lengths the old values are known good: those of the replayed trace, and no further."""
    import pyarrow.compute as pc

    requests = trace.requests
    rate = f" at {requests.num_rows / trace.span_s:.3g} requests/s on average over {trace.span_s:.4g} s" if trace.span_s > 0 else ""
    prompt, output = (pc.max(requests[column]).as_py() for column in ("prompt_tokens", "output_tokens"))
    return (
        f"the baseline's values are known good for trace {trace.name} on {hardware}: {requests.num_rows} requests{rate}, "
        f"prompts up to {prompt} and outputs up to {output} tokens; beyond that they were not replayed"
    )


def _ambiguity(effects: list[KnobEffect]) -> list[Document]:
    """Return where a knob's part of the change depends on the others, so that one figure says less than it seems to."""
    names = [effect.knob for effect in effects if effect.interacts]
    if not names:
        return []
    message = f"what these knobs do depends on the other changed ones, so their shares are means over all orders: {', '.join(names)}"
    return [{"code": "attribution_ambiguous", "message": message}]


def _doubts(trials: Trials, revert: SmallestRevert | None) -> list[Document]:
    """Return what limits the statement about the revert, as reasons."""
    if not trials.changes:
        return [{"code": "no_knob_differs", "message": "the two mappings set every knob alike, so there is nothing to undo"}]
    if revert is None:
        message = "no revert was sought: not even the baseline judged against itself releases on this evidence"
        return [{"code": "no_revert_verified", "message": message}]
    names = ", ".join(revert.knobs)
    if not revert.exhaustive:
        message = f"too many knobs changed to try every set: none of {names} can be left out, but another set may be smaller"
        return [{"code": "revert_not_minimal", "message": message}]
    if revert.everything:
        return [{"code": "revert_everything", "message": f"nothing short of undoing every changed knob releases: {names}"}]
    return []


def _owner_row(finding: str, match: OwnerMatch) -> Document:
    return {"finding": finding, "owner": match.owner, "contact": match.contact, "source": match.source}


def _distinct(rows: list[Document]) -> tuple[Document, ...]:
    return tuple({row["finding"]: row for row in rows}.values())
