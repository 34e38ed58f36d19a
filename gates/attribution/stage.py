"""First failing stage: the earliest stage whose own invariant the candidate breaks, given the baseline's upstream outputs.

Rules
  1. A stage is charged only with the changed knobs that it owns.
  2. Lowering and tiling are priced on the *baseline's* recorded steps, each on top of the stages before it, so that neither
     queueing nor a later stage can make an earlier one look broken (or sound).
  3. A stage whose cost got worse is named only if one of its knobs is in the smallest revert: a cost that stays when the
     verdict turns to release was not the cause. Where no revert is known, the earliest broken stage is named.
  4. Execution is charged where its own work got worse by the means over all requests: steps that cost more than upstream explains,
     preemptions, refusals, queueing, time in the server. An order of the queue that trades the tail for the mean is none of these.
  5. If the knobs to undo belong to stages that all kept their invariants, the limits broke on their own: `quality_sla`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from gates.attribution.growth import growth_that_counts, step_growths
from gates.attribution.severity import by_severity
from gates.attribution.trials import Trials
from gates.finding import Finding
from gates.rejections import KV_CAPACITY
from replay.assembly.run import Run
from replay.errors import SpecError
from replay.execution.step_costs import covered_steps
from replay.specs.knobs import Stage
from replay.tiling.step_table import StepTable

NEGLIGIBLE = 0.001
"""Growth, as a share, that is no more than rounding of clocks and windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailure:
    """A stage that broke its own invariant, and how that shows."""

    stage: Stage
    evidence: str


def first_failing_stage(trials: Trials, findings: tuple[Finding, ...], blamed: frozenset[str]) -> StageFailure:
    """Return the earliest failing stage of a regression; `blamed` are the knobs of the smallest revert, or all changed ones."""
    for failure in _failures(trials, findings):
        if trials.of_stages(failure.stage) & blamed:
            return failure
    return StageFailure(stage="quality_sla", evidence="limits are broken although lowering, tiling and execution kept their own invariants")


def _failures(trials: Trials, findings: tuple[Finding, ...]) -> Iterator[StageFailure]:
    upstream: frozenset[str] = frozenset()
    for stage in ("lowering", "tiling"):
        knobs = trials.of_stages(stage)
        evidence = _fallback(trials, stage) or _found(findings, stage) or _cost(trials, upstream, upstream | knobs) if knobs else None
        if evidence:
            yield StageFailure(stage=stage, evidence=evidence)
        upstream |= knobs
    if trials.of_stages("execution"):
        # Refused requests come before claims: the figures of what is left say little about a load that is no longer served.
        evidence = _fallback(trials, "execution") or _found(findings, "execution") or _execution(trials, upstream, findings)
        if evidence:
            yield StageFailure(stage="execution", evidence=evidence)


def _fallback(trials: Trials, stage: Stage) -> str | None:
    """Return the first fallback of the candidate that the baseline does not have."""
    known = {(decision.knob, decision.effective) for decision in trials.replayer.schedule(trials.baseline).decisions if decision.reason}
    for decision in trials.replayer.schedule(trials.candidate).decisions:
        if decision.stage == stage and decision.reason and (decision.knob, decision.effective) not in known:
            return f"{decision.knob} asks for {decision.requested} and gets {decision.effective}: {decision.reason}"
    return None


def _found(findings: tuple[Finding, ...], stage: Stage) -> str | None:
    return next((finding.message for finding in findings if finding.effect == "disproves" and finding.stage == stage), None)


def _cost(trials: Trials, upstream: frozenset[str], through: frozenset[str]) -> str | None:
    """Return how a stage's output got worse on the baseline's steps, or None."""
    baseline = trials.replayer.run(trials.baseline)
    try:
        before, after = (trials.replayer.table(trials.only(knobs)) for knobs in (upstream, through))
    except SpecError:
        return None  # the stage's knobs cannot be built without later ones: nothing can be said about it alone
    growth = growth_that_counts(step_growths(baseline.steps, before, after))
    if growth is not None:
        times = f"{growth.before_s:.4g} s -> {growth.after_s:.4g} s"
        return f"the baseline's recorded steps ({growth.view.name}) take {growth.ratio:.1%} longer ({times})"
    return pool_failure(baseline, trials.replayer.run(trials.candidate), before, after)


def pool_failure(baseline: Run, candidate: Run, before: StepTable, after: StepTable) -> str | None:
    """Return how the cache pool shrank where the candidate also preempts, rejects or waits more, else None."""
    tokens_before, tokens_after = pool_tokens(before), pool_tokens(after)
    if tokens_after >= tokens_before:
        return None
    preempted = preemptions_count(candidate) - preemptions_count(baseline)
    rejected = rejected_count(candidate, KV_CAPACITY) - rejected_count(baseline, KV_CAPACITY)
    queued_s = mean_queue_s(candidate) - mean_queue_s(baseline)
    if preempted <= 0 and rejected <= 0 and queued_s <= 0:
        return None
    return (
        f"the cache pool shrinks from {tokens_before} to {tokens_after} tokens; on replay {preempted:+d} preemptions, "
        f"{rejected:+d} requests that never fit, {queued_s:+.4g} s of queueing on average"
    )


def pool_tokens(table: StepTable) -> int:
    """Return the tokens that fit in the cache pool."""
    return table.pool.blocks_count * table.pool.block_tokens


def preemptions_count(run: Run) -> int:
    """Return the preemptions of a whole replay."""
    return int(pc.sum(run.requests["preemptions_per_request"]).as_py() or 0)


def rejected_count(run: Run, reason: str) -> int:
    """Return the requests that one limit refuses."""
    return dict(run.rejected).get(reason, 0)


def mean_queue_s(run: Run) -> float:
    """Return the mean queueing time of the requests that were served; 0 where none was."""
    return float(pc.mean(run.requests["queue_s"]).as_py() or 0.0)


def _execution(trials: Trials, upstream: frozenset[str], findings: tuple[Finding, ...]) -> str | None:
    """Return what the execution knobs break on top of the candidate's lowering and tiling, or None."""
    before = trials.judged(trials.knobs - upstream)
    held = {claim.id for claim in before.judgement.claims if claim.outcome == "holds"} if before.judgement is not None else None
    for claim in by_severity(claim.to_document() for claim in trials.judgement.claims):
        if claim["blocking"] and claim["outcome"] != "holds" and (held is None or claim["id"] in held):
            worse = _worse_execution(trials, upstream)
            if worse is None:
                return None
            context = "with lowering and tiling as changed" if upstream else "with lowering and tiling unchanged"
            return f"{claim['id']} holds {context} and breaks with the changed batching, capture or parallelism: {worse}"
    against = next((one.message for one in findings if one.effect == "disproves" and one.stage != "quality_sla"), None)
    return against if trials.releases(before.reverted) else None


def _worse_execution(trials: Trials, upstream: frozenset[str]) -> str | None:
    """Return what of execution's own work got worse between the upstream stages' changes alone and the whole candidate, or None."""
    try:
        before, after = trials.replayer.run(trials.only(upstream)), trials.replayer.run(trials.candidate)
        tables = trials.replayer.table(trials.only(upstream)), trials.replayer.table(trials.candidate)
    except SpecError:
        return "the changes of lowering and tiling cannot be replayed without it"
    steps = trials.replayer.run(trials.baseline).steps
    # Smaller limits leave some of them without a price: what they change shows in the means below.
    priced = all(covered_steps(table, steps).all() for table in tables)
    growth = growth_that_counts(step_growths(steps, *tables)) if priced else None
    if growth is not None:
        return f"the baseline's recorded steps ({growth.view.name}) take {growth.ratio:.1%} longer"
    for name, count in (("preemptions", preemptions_count), ("refused requests", _refused)):
        if count(after) > count(before):
            return f"{count(after)} {name} instead of {count(before)}"
    for column, phrase in (("queue_s", "queueing"), ("e2e_s", "time in the server")):
        means = [float(pc.mean(run.requests[column]).as_py() or 0.0) for run in (before, after)]
        if means[1] > means[0] * (1.0 + NEGLIGIBLE):
            return f"mean {phrase} {means[1]:.4g} s instead of {means[0]:.4g} s"
    return None


def _refused(run: Run) -> int:
    return sum(count for _, count in run.rejected)
