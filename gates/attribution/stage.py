"""First failing stage: the earliest stage whose own invariant the candidate breaks, given the baseline's upstream outputs.

A stage that breaks an invariant is named only if one of its knobs is in the smallest revert: what stays broken when the verdict turns to
release was not the cause. Where no revert is known, the earliest broken stage is named. If the knobs to undo belong to stages that all
kept their invariants, the limits broke on their own: `quality_sla`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gates.attribution.invariants import StageCheck
from gates.attribution.trials import Trials
from replay.specs.knobs import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailure:
    """A stage that broke its own invariant, and how that shows."""

    stage: Stage
    evidence: str


def first_failing_stage(trials: Trials, checks: Iterable[StageCheck], blamed: frozenset[str]) -> StageFailure:
    """Return the earliest failing stage of a regression; `blamed` are the knobs of the smallest revert, or all changed ones."""
    for check in checks:
        if check.evidence is not None and trials.of_stages(check.stage) & blamed:
            return StageFailure(stage=check.stage, evidence=check.evidence)
    return StageFailure(stage="quality_sla", evidence="limits are broken although lowering, tiling and execution kept their own invariants")
