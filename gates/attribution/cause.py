"""Cause of a cell's verdict: the knobs, their effects, what to undo, the first failing stage and the bottleneck class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gates.attribution.cohorts import Cohort, find_cohorts
from gates.attribution.effects import KnobEffect, claims_to_explain, knob_effects
from gates.attribution.failure import Failure, locate_failure
from gates.attribution.knob_rows import knob_rows
from gates.attribution.mitigation import mitigation, revert_doubts
from gates.attribution.patch import MappingFile
from gates.attribution.revert import smallest_revert
from gates.attribution.risk_map import distinct, finding_row, knob_row, stage_row
from gates.attribution.trials import Judge, Judgement, Trials
from gates.claim import Claim
from gates.finding import Finding
from gates.owners import Owners
from gates.policy import PolicySpec
from gates.strata import prompt_bins
from replay.pipeline import Replayer
from replay.specs.knobs import STAGES, Stage
from replay.specs.mapping import MappingSpec, diff

if TYPE_CHECKING:
    from gates.resimulation.traffic import PinnedTraffic

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
    commits: Mapping[int, str] = field(default_factory=dict)
    """Commit that last changed each line of it."""
    confirm: Judge | None = None
    """The full gate, where `judge` is a quicker one."""
    traffic: PinnedTraffic | None = None
    """What mixes of the mappings are compared on; None: the recorded trace alone, as `judge` sees it."""
    policy: PolicySpec | None = None
    """Its prompt-length bins and limits tell cohorts apart; None: no cohorts are sought."""
    several_chips: bool = False
    """Whether other accelerators are judged in other cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCause:
    """Why a cell's verdict is what it is; every field is JSON-ready and named as in the verdict document."""

    first_failing_stage: Stage | None = None
    bottleneck_class: str | None = None
    bottleneck: Document | None = None
    stages: tuple[Document, ...] = ()
    knobs: tuple[Document, ...] = ()
    attribution: tuple[Document, ...] = ()
    cohorts: tuple[Document, ...] = ()
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
    knobs = tuple(knob_rows(changes, decisions, question.owners, question.commits))
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
    return CellCause(first_failing_stage=stage, bottleneck_class=found, knobs=knobs, owners=distinct(_finding_rows(invalid, owners)))


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
    failure = _failure(question, trials, blamed)
    own = [knob for knob in trials.changes if knob in blamed]
    against = [finding for finding in question.findings if finding.effect == "disproves"]
    rows = [knob_row(knob, question.owners.of(knob), effects, undone=revert is not None) for knob in own]
    undo: Document | None = None
    if revert is not None:
        undo = mitigation(trials, revert, question.owners, question.mapping_file, failure.bottleneck, by_chip=question.several_chips)
    cohorts = _cohorts(question, claims[0]) if claims else ()
    carriers = [{"code": "cohort", "message": cohort.sentence} for cohort in cohorts if cohort.carries]
    return CellCause(
        first_failing_stage=failure.stage,
        bottleneck_class=failure.bottleneck_class,
        bottleneck=failure.to_document(),
        stages=tuple(check.to_document() for check in failure.checks),
        knobs=knobs,
        attribution=tuple(effect.to_document() for effect in effects),
        cohorts=tuple(cohort.to_document() for cohort in cohorts),
        mitigation=undo,
        owners=distinct([*rows, *_finding_rows(against, question.owners), stage_row(failure, question.owners.of(failure.stage))]),
        reasons=(*failure.reasons, *carriers, *_ambiguity(deciding), *revert_doubts(trials, revert)),
    )


def _cohorts(question: CauseQuestion, claim: Claim) -> tuple[Cohort, ...]:
    if question.policy is None:
        return ()
    runs = question.replayer.run(question.baseline), question.replayer.run(question.candidate)
    bins = prompt_bins(question.policy.prompt_bin_edges_tokens)
    return find_cohorts(claim, question.replayer.trace, runs, bins=bins, slo=question.policy.slo)


def _failure(question: CauseQuestion, trials: Trials, blamed: frozenset[str]) -> Failure:
    if question.judgement.basis == "inconclusive" or not trials.changes:
        return Failure(stage="release_decision", bottleneck_class="measurement")
    return locate_failure(trials, question.findings, blamed, question.traffic)


def _finding_rows(findings: Iterable[Finding], owners: Owners) -> list[Document]:
    return [finding_row(finding, owners.of_check(finding.code, finding.stage)) for finding in findings]


def _ambiguity(effects: list[KnobEffect]) -> list[Document]:
    """Return where a knob's part of the change depends on the others, so that one figure says less than it seems to."""
    names = [effect.knob for effect in effects if effect.interacts]
    if not names:
        return []
    message = f"what these knobs do depends on the other changed ones, so their shares are means over all orders: {', '.join(names)}"
    return [{"code": "attribution_ambiguous", "message": message}]
