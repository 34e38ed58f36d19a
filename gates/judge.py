"""Judge a cell: two runs and a planned cell in, claims with outcomes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gates.claim import Claim, Interval, Outcome
from gates.margins import format_margin
from gates.plan import PlannedCell, PlannedClaim
from replay.errors import InvariantError

if TYPE_CHECKING:
    from gates.measure.measured import Measured
    from gates.statistics.compare import Comparison
    from replay.assembly.run import Run


def judge(cell: PlannedCell, baseline: Run, candidate: Run, quality: Sequence[Measured] = ()) -> tuple[Claim, ...]:
    """Return every planned claim of the cell with its evidence and outcome, in the plan's order, from resamples of the two runs.

    `quality` are the figures of the claims about it. A claim whose data are missing or too few is undecided, never dropped and never held.

    Raises:
        InvariantError: a run's table holds NaN or infinity.
    """
    from gates.measure import measure_cell

    return judge_measured(cell, [*measure_cell(cell.replayed, baseline, candidate), *quality])


def judge_measured(cell: PlannedCell, measured: Sequence[Measured]) -> tuple[Claim, ...]:
    """Return every planned claim of the cell with its outcome, from figures in the plan's order."""
    from gates.measure.compared import compare_claim

    compared = [compare_claim(cell, claim, figures) for claim, figures in zip(cell.claims, measured, strict=True)]
    adjusted = _adjusted_p(cell, measured, compared)
    rows = zip(cell.claims, measured, compared, adjusted, strict=True)
    return tuple(_claim(cell, claim, figures, comparison, p) for claim, figures, comparison, p in rows)


def unmeasured(cell: PlannedCell, why: str) -> tuple[Claim, ...]:
    """Return the cell's claims where nothing could be replayed: every one undecided, for the same reason."""
    from gates.measure.measured import Measured

    measured = Measured(problem=("metric_absent", why))
    return tuple(_claim(cell, claim, measured, None, None) for claim in cell.claims)


def _adjusted_p(cell: PlannedCell, measured: Sequence[Measured], compared: Sequence[Comparison | None]) -> list[float | None]:
    """Return Holm-adjusted p-values of the blocking claims; a claim that cannot be decided still counts in the family."""
    from gates.statistics.holm import holm

    family = [index for index, claim in enumerate(cell.claims) if claim.spec.blocking]
    p_values = []
    for index in family:
        comparison = compared[index]
        p_values.append(1.0 if comparison is None or measured[index].problem is not None else comparison.p_no_worse)
    adjusted: list[float | None] = [None] * len(cell.claims)
    for index, p_value in zip(family, holm(p_values), strict=True):
        adjusted[index] = p_value
    return adjusted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    outcome: Outcome
    reason_code: str | None = None
    reason: str | None = None
    n_needed: int | None = None
    runs_needed: int | None = None


def _decide(measured: Measured, comparison: Comparison | None, adjusted_p: float | None, alpha: float) -> _Decision:
    if measured.problem is not None:
        code, sentence = measured.problem
        return _Decision(outcome="undecided", reason_code=code, reason=sentence, n_needed=measured.n_needed)
    if comparison is None:
        raise InvariantError("a claim without a comparison carries no reason")
    if comparison.inside_margin:
        return _Decision(outcome="holds")
    if comparison.beyond_no_change and (adjusted_p is None or adjusted_p <= alpha):
        return _Decision(outcome="disproved")
    return _undecided(measured, comparison, adjusted_p)


def _undecided(measured: Measured, comparison: Comparison, adjusted_p: float | None) -> _Decision:
    if measured.doubt is not None:
        return _Decision(outcome="undecided", reason_code=measured.doubt[0], reason=measured.doubt[1])
    n_needed, runs_needed, more = _more(measured, comparison)
    undecided = _Decision(outcome="undecided", n_needed=n_needed, runs_needed=runs_needed)
    interval = f"{comparison.lower:.4g} to {comparison.upper:.4g}"
    if comparison.beyond_no_change:
        sentence = f"it looks worse ({interval}), but among the blocking claims its adjusted p is {adjusted_p:.3g}{more}"
        return replace(undecided, reason_code="worsening_not_significant", reason=sentence)
    sentence = f"the interval {interval} includes no change and reaches beyond the margin's end {comparison.limit:.4g}{more}"
    return replace(undecided, reason_code="margin_not_shown", reason=sentence)


def _more(measured: Measured, comparison: Comparison) -> tuple[int | None, int | None, str]:
    """Return how many requests (or windows), or runs per arm where runs were measured, would decide a claim, and the same in words."""
    if measured.runs_count is None:
        n_needed = _needed(measured.n, comparison)
        more = "" if n_needed is None else f"; about {n_needed} instead of {measured.n} would decide it if the estimate stands"
        return n_needed, None, more
    runs_needed = _needed(measured.runs_count, comparison)
    if runs_needed is None:
        return None, None, ""
    return None, runs_needed, f"; about {runs_needed} runs per arm instead of {measured.runs_count} would decide it if the estimate stands"


def _needed(count: int, comparison: Comparison) -> int | None:
    from gates.statistics.power import needed_count

    worse = 1 if comparison.limit > comparison.no_change else -1
    return needed_count(
        count,
        comparison.minimum_detectable_effect,
        to_limit=worse * (comparison.limit - comparison.estimate),
        to_no_change=worse * (comparison.estimate - comparison.no_change),
    )


def _claim(cell: PlannedCell, planned: PlannedClaim, measured: Measured, comparison: Comparison | None, adjusted_p: float | None) -> Claim:
    spec, definition = planned.spec, planned.spec.definition
    decision = _decide(measured, comparison, adjusted_p, cell.policy.alpha)
    ratio, difference = _point(measured)
    return Claim(
        id=planned.id,
        metric=spec.metric,
        layer_type=spec.layer_type,
        percentile=spec.percentile,
        trace=cell.spec.trace,
        hardware=cell.spec.hardware,
        stratum=spec.stratum,
        direction=definition.direction,
        unit=definition.unit,
        baseline=measured.baseline,
        candidate=measured.candidate,
        scale=definition.scale if comparison is None else comparison.scale,
        ratio=ratio,
        difference=difference,
        interval=_interval(comparison, cell.policy.alpha),
        margin=spec.margin if comparison is None else comparison.margin,
        method=measured.method,
        n=measured.n,
        n_beyond=measured.n_beyond,
        replicates=_replicates_count(cell, measured) if comparison is not None else 0,
        minimum_detectable_effect=None if comparison is None else comparison.minimum_detectable_effect,
        disproof_criterion=planned.disproof_criterion,
        rollback_boundary=planned.rollback_boundary,
        outcome=decision.outcome,
        blocking=spec.blocking,
        adjusted_p=adjusted_p,
        flip_ratio=measured.flip_ratio,
        warnings=_warnings(planned, measured, comparison),
        reason_code=decision.reason_code,
        reason=decision.reason,
        n_needed=decision.n_needed,
        runs_needed=decision.runs_needed,
        of=spec.of,
    )


def _replicates_count(cell: PlannedCell, measured: Measured) -> int:
    """Return the resamples or replays behind a claim's interval, 0 where a t interval needs none."""
    if measured.replicates is not None:
        return len(measured.replicates[0])
    return cell.policy.replicates if measured.is_resampled else 0


def _point(measured: Measured) -> tuple[float | None, float | None]:
    """Return ratio and difference on the trace itself."""
    baseline, candidate = measured.baseline, measured.candidate
    if baseline is None or candidate is None:
        return None, None
    ratio = candidate / baseline if baseline > 0 else math.inf
    return (ratio if math.isfinite(ratio) else None), candidate - baseline


def _interval(comparison: Comparison | None, alpha: float) -> Interval | None:
    if comparison is None:
        return None
    return Interval(lower=comparison.lower, upper=comparison.upper, confidence=round(1 - 2 * alpha, 12))


def _warnings(planned: PlannedClaim, measured: Measured, comparison: Comparison | None) -> tuple[str, ...]:
    if comparison is None or comparison.scale == planned.spec.definition.scale:
        return measured.warnings
    margin = format_margin(planned.spec.margin, planned.spec.definition)
    warning = f"the baseline is 0 or reaches it in a resample: compared by difference, against {margin} of it ({comparison.margin:.4g})"
    return (*measured.warnings, warning)
