"""Invariants of the stages that a mapping sets: each a named check of the candidate, given what the stages before it make.

Rules
  1. A stage is charged only with the changed knobs that it owns; a stage without one is not checked.
  2. Lowering and tiling are priced on the *baseline's* recorded steps, each on top of the stages before it, so that neither
     queueing nor a later stage can make an earlier one look broken (or sound).
  3. Execution is charged where its own work got worse by the means over all requests: steps that cost more than upstream explains,
     preemptions, refusals, queueing, time in the server. An order of the queue that trades the tail for the mean is none of these;
     and nothing is charged while no claim or finding speaks against what execution adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gates.attribution.growth import growth_that_counts, step_growths
from gates.attribution.pool import demand_failure, mean_s, pool_failure, preemptions_count, refused_count
from gates.attribution.severity import by_severity
from gates.attribution.trials import Trials
from gates.finding import Finding
from replay.assembly.run import Run
from replay.errors import SpecError
from replay.execution.step_costs import covered_steps
from replay.specs.knobs import Stage
from replay.tiling.step_table import StepTable

NEGLIGIBLE = 0.001
"""Growth, as a share, that is no more than rounding of clocks and windows."""

Check = tuple[str, str | None]
"""Its name, and how the invariant is broken; None where it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCheck:
    """One invariant of one stage."""

    stage: Stage
    check: str
    evidence: str | None
    """How it is broken; None where it holds."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the verdict's `stages[]`."""
        return {"stage": self.stage, "check": self.check, "holds": self.evidence is None, "evidence": self.evidence}


def check_stages(trials: Trials, findings: tuple[Finding, ...]) -> tuple[StageCheck, ...]:
    """Return every check of the stages that own changed knobs, in the order of the pipeline."""
    by_stage: dict[Stage, Callable[[Trials, tuple[Finding, ...]], Iterator[Check]]] = {
        "lowering": _lowering,
        "tiling": _tiling,
        "execution": _execution,
    }
    return tuple(
        StageCheck(stage=stage, check=name, evidence=evidence)
        for stage, checks in by_stage.items()
        if trials.of_stages(stage)
        for name, evidence in checks(trials, findings)
    )


def _lowering(trials: Trials, findings: tuple[Finding, ...]) -> Iterator[Check]:
    yield "requested_is_effective", _fallback(trials, "lowering")
    yield "findings", _found(findings, "lowering")
    yield "kernel_cost", _cost(trials, frozenset(), trials.of_stages("lowering"))


def _tiling(trials: Trials, findings: tuple[Finding, ...]) -> Iterator[Check]:
    upstream = trials.of_stages("lowering")
    yield "requested_is_effective", _fallback(trials, "tiling")
    yield "findings", _found(findings, "tiling")
    yield "tile_cost", _cost(trials, upstream, trials.of_stages("lowering", "tiling"))
    yield "cache_pool", _pool(trials, upstream, trials.of_stages("lowering", "tiling"))


def _execution(trials: Trials, findings: tuple[Finding, ...]) -> Iterator[Check]:
    # Refused requests come before claims: the figures of what is left say little about a load that is no longer served.
    yield "requested_is_effective", _fallback(trials, "execution")
    yield "findings", _found(findings, "execution")
    upstream = trials.of_stages("lowering", "tiling")
    context = _breaking_claim(trials, upstream)
    if context is None:
        against = next((one.message for one in findings if one.effect == "disproves" and one.stage != "quality_sla"), None)
        yield "served", against if trials.releases(trials.knobs - upstream) else None
        return
    try:
        tables = trials.replayer.table(trials.only(upstream)), trials.replayer.table(trials.candidate)
        before, after = trials.replayer.run(trials.only(upstream)), trials.replayer.run(trials.candidate)
    except SpecError:
        yield "served", f"{context}: the changes of lowering and tiling cannot be replayed without it"
        return
    for name, worse in _worse_execution(trials, tables, before, after):
        yield name, f"{context}: {worse}" if worse else None


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
    """Return how the baseline's steps cost more with a stage's knobs than without, or None."""
    baseline = trials.replayer.run(trials.baseline)
    try:
        before, after = (trials.replayer.table(trials.only(knobs)) for knobs in (upstream, through))
    except SpecError:
        return None  # the stage's knobs cannot be built without later ones: nothing can be said about it alone
    growth = growth_that_counts(step_growths(baseline.steps, before, after))
    if growth is None:
        return None
    names = [set(table.kernels["kernel"].to_pylist()) for table in (before, after)]
    new = sorted(names[1] - names[0])
    with_new = f", with new kernels ({', '.join(new)})" if new else ""
    times = f"{growth.before_s:.4g} s -> {growth.after_s:.4g} s"
    return f"the baseline's recorded steps ({growth.view.name}) take {growth.ratio:.1%} longer ({times}){with_new}"


def _pool(trials: Trials, upstream: frozenset[str], through: frozenset[str]) -> str | None:
    """Return how the cache pool, or the demand for it, got worse with a stage's knobs, or None."""
    try:
        tables = [trials.replayer.table(trials.only(knobs)) for knobs in (upstream, through)]
        shrunk = pool_failure(trials.replayer.run(trials.baseline), trials.replayer.run(trials.candidate), *tables)
        before, after = (trials.replayer.run(trials.only(knobs)) for knobs in (upstream, through))
        return shrunk or demand_failure(before, after, tables[1])
    except SpecError:
        return None


def _breaking_claim(trials: Trials, upstream: frozenset[str]) -> str | None:
    """Return which claim holds with the upstream stages' changes and breaks with execution's, or None."""
    before = trials.judged(trials.knobs - upstream)
    held = {claim.id for claim in before.judgement.claims if claim.outcome == "holds"} if before.judgement is not None else None
    for claim in by_severity(claim.to_document() for claim in trials.judgement.claims):
        if claim["blocking"] and claim["outcome"] != "holds" and (held is None or claim["id"] in held):
            context = "with lowering and tiling as changed" if upstream else "with lowering and tiling unchanged"
            return f"{claim['id']} holds {context} and breaks with the changed batching, capture or parallelism"
    return None


def _worse_execution(trials: Trials, tables: tuple[StepTable, StepTable], before: Run, after: Run) -> Iterator[Check]:
    steps = trials.replayer.run(trials.baseline).steps
    # Smaller limits leave some of them without a price: what they change shows in the means below.
    priced = all(covered_steps(table, steps).all() for table in tables)
    growth = growth_that_counts(step_growths(steps, *tables)) if priced else None
    longer = f"the baseline's recorded steps ({growth.view.name}) take {growth.ratio:.1%} longer" if growth is not None else None
    yield "step_cost", longer
    for name, phrase, count in (("preemption", "preemptions", preemptions_count), ("served", "refused requests", refused_count)):
        yield name, f"{count(after)} {phrase} instead of {count(before)}" if count(after) > count(before) else None
    for name, phrase, column in (("queueing", "queueing", "queue_s"), ("residence", "time in the server", "e2e_s")):
        means = mean_s(before, column), mean_s(after, column)
        worse = means[1] > means[0] * (1.0 + NEGLIGIBLE)
        yield name, f"mean {phrase} {means[1]:.4g} s instead of {means[0]:.4g} s" if worse else None
