"""Slow drift: what has been released since an anchor, together with this candidate, has to stay inside a budget.

A gate against the previous release never sees ten successive +1 % changes. What the history carries is fixed in the plan, before the
candidate is looked at; the check can only make a verdict weaker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gates.checks.ages import parse_time
from gates.finding import Effect, Finding
from gates.history.carried import CarriedDrift, CellDrift
from gates.history.chain import Drift, History, drift_of
from gates.metrics import METRICS
from gates.statement import InputRecord
from replay.provenance import digest_document
from replay.specs.knobs import Stage

if TYPE_CHECKING:
    from gates.claim import Claim
    from gates.plan import Plan, PlannedCell
    from gates.policy import DriftBudget

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryInput:
    """A history as a gate is given it."""

    name: str
    """How artifacts name it."""
    history: History = field(default_factory=History)
    problem: str | None = None
    """Why it could not be read, or that none was given."""
    anchor: str | None = None
    """Identity of the mapping that the policy's anchor names."""


def with_drift(plan: Plan, given: HistoryInput | None, baseline: str, *, unnamed: bool = False) -> Plan:
    """Return the plan with what its blocking claims carry from the history up to the `baseline`; without a budget the plan itself.

    `unnamed`: cells are called after files of results, which says nothing about whether they are the same traffic as earlier ones.
    """
    budget = plan.policy.drift
    if budget is None:
        return plan
    known = given or HistoryInput(name="none", problem="no history was given")
    cells = tuple(
        replace(cell, drift=_cell_drift(cell, budget, known, baseline, unnamed=unnamed and len(plan.cells) == 1)) for cell in plan.cells
    )
    return replace(plan, cells=cells)


def _cell_drift(cell: PlannedCell, budget: DriftBudget, given: HistoryInput, baseline: str, *, unnamed: bool) -> CellDrift:
    found = CellDrift(budget=budget.budget, max_gap_days=budget.max_gap_days, problem=given.problem)
    if given.problem is not None:
        return found
    name, history = (cell.spec.trace, cell.spec.hardware, cell.spec.model), given.history
    specs = [claim.spec for claim in cell.claims]
    if unnamed:
        name = history.latest_name(name, baseline)
        history = history.called(name)
    releases = {spec.key: history.releases(name, spec.key) for spec in specs if spec.blocking and spec.definition.scale == "ratio"}
    return replace(
        found,
        carried=tuple(CarriedDrift(key=key, drift=drift_of(own, baseline, given.anchor)) for key, own in releases.items()),
        undeclared=history.undeclared(name, (spec.key for spec in specs)),
        last_release_at=max((one.verdict.at for own in releases.values() for one in own), key=parse_time, default=None),
    )


def history_records(plan: Plan, given: HistoryInput | None) -> Iterator[InputRecord]:
    """Yield the history as an input of the verdict: the digest is of what the plan took from it."""
    drifts = [cell.drift.to_document() for cell in plan.cells if cell.drift is not None]
    if given is not None and drifts:
        yield InputRecord(role="history", name=given.name, digest=digest_document(drifts), rows=len(given.history.verdicts))


def drift_findings(cell: PlannedCell, claims: Sequence[Claim], as_of: str | None = None) -> Iterator[Finding]:
    """Find claims whose drift since the anchor is beyond the budget, gaps in the history, and what it holds beyond the plan."""
    drift = cell.drift
    if drift is None:
        return
    if drift.problem is not None:
        message = f"the policy limits drift to {100 * drift.budget:g} % since an anchor, and {drift.problem}; give --history"
        yield _finding("drift_history_missing", message, "invalidates")
        return
    yield from _age(drift, as_of)
    by_key = {claim.key: claim for claim in claims}
    for one in drift.carried:
        yield from _claim_findings(drift.budget, one.drift, by_key[one.key])
    unlimited = sorted(claim.key for claim in claims if claim.blocking and claim.key not in {one.key for one in drift.carried})
    if unlimited:
        message = f"compared by difference, so no budget in % limits their drift: {', '.join(unlimited)}"
        yield _finding("drift_not_limited", message, "informs")
    if drift.undeclared:
        message = f"the history holds claims that this plan does not declare; they are not judged: {', '.join(drift.undeclared)}"
        yield _finding("history_undeclared", message, "informs")


def _claim_findings(budget: float, drift: Drift, claim: Claim) -> Iterator[Finding]:
    if drift.carried is None:
        message = f"{claim.id}: its drift since the anchor is not known: {drift.gap}; gate the missing step, or name a later anchor"
        yield _finding("drift_history_gap", message, "invalidates", claim.id)
        return
    if claim.ratio is None or not claim.ratio > 0:
        if claim.outcome == "holds" and claim.baseline != claim.candidate:
            yield _finding("drift_not_known", f"{claim.id}: it has no ratio, so its drift is not known", "invalidates", claim.id)
        return
    lower_is_better = METRICS[claim.metric].direction == "lower"
    total = drift.carried + math.log(claim.ratio) * (1 if lower_is_better else -1)
    limit = math.log1p(budget) if lower_is_better else -math.log1p(-budget)
    if total > limit:
        count = len(drift.verdicts)
        since = f"{count} release{'' if count == 1 else 's'} since {drift.anchor[7:19]} and this candidate"
        message = f"{claim.id}: {_worse(total, lower_is_better)} over {since}; the budget is {100 * budget:g} %"
        yield _finding("drift_budget_exceeded", message, "disproves", claim.id)


def _age(drift: CellDrift, as_of: str | None) -> Iterator[Finding]:
    if drift.last_release_at is None:
        yield _finding("drift_starts_here", "the history holds no release of this cell: drift is counted from this baseline on", "informs")
        return
    if as_of is None:
        return
    days = (parse_time(as_of) - parse_time(drift.last_release_at)).total_seconds() / _DAY_S
    if drift.max_gap_days is not None and days > drift.max_gap_days:
        message = f"the newest release in the history is {days:.1f} days old; the policy accepts {drift.max_gap_days:g} days at most"
        yield _finding("history_stale", message, "invalidates")
    else:
        yield _finding("history_age", f"the newest release in the history is {days:.1f} days old", "informs")


def _worse(total: float, lower_is_better: bool) -> str:
    return f"{100 * math.expm1(total):+.1f} %" if lower_is_better else f"{100 * math.expm1(-total):+.1f} %"


def _finding(code: str, message: str, effect: Effect, claim: str | None = None) -> Finding:
    bottleneck_class = "measurement" if effect == "invalidates" else None
    stage: Stage = "quality_sla" if effect == "disproves" else "release_decision"
    return Finding(code=code, message=message, effect=effect, stage=stage, bottleneck_class=bottleneck_class, claim=claim)
