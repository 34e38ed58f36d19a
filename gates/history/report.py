"""What `replay history` says: per claim the trend over releases, change points and drift since the anchor; ages, gaps, rollbacks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gates.checks.ages import parse_time
from gates.history.chain import Cell, History, Release, drift_of
from gates.history.change_points import FEWEST_POINTS, METHOD, change_points
from gates.history.rows import ClaimRow, VerdictRow
from gates.metrics import METRICS
from gates.policy import DriftBudget

Document = dict[str, Any]
_DAY_S = 86_400.0
_CONTEXT = ("trace_digest", "calibration_digest")
"""What makes figures of two releases incomparable where it differs; beside the tool's version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a history; None does not narrow it."""

    as_of: str
    """ISO time that ages are counted to."""
    traces: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    """Keys such as ``ttft_s.p99``."""
    budget: DriftBudget | None = None
    anchor: str | None = None
    """Identity of the mapping that drift is counted from."""
    seed: int = 0


def history_report(history: History, question: Question) -> Document:
    """Return the report, JSON-ready."""
    cells = sorted({(row.trace, row.hardware, row.model) for row in history.claims if _asked(row, question)})
    judged = {row.verdict for row in history.claims if (row.trace, row.hardware, row.model) in set(cells)}
    verdicts = [one for one in history.verdicts if one.digest in judged]
    return {
        "as_of": question.as_of,
        "verdicts": _verdicts(verdicts, question.as_of),
        "change_point_method": METHOD,
        "cells": [_cell(history, cell, question) for cell in cells],
    }


def _asked(row: ClaimRow, question: Question) -> bool:
    wanted = ((question.traces, row.trace), (question.hardware, row.hardware), (question.claims, row.claim_key))
    return all(not names or own in names for names, own in wanted)


def _verdicts(verdicts: Sequence[VerdictRow], as_of: str) -> Document:
    bases = Counter(one.basis for one in verdicts)
    rollbacks = sum(one.decision == "rollback" for one in verdicts)
    times = sorted(parse_time(one.at) for one in verdicts)
    gaps = [(later - earlier).total_seconds() / _DAY_S for earlier, later in pairwise(times)]
    return {
        "count": len(verdicts),
        "bases": dict(sorted(bases.items())),
        "rollback_ratio": rollbacks / len(verdicts) if verdicts else None,
        "newest_age_days": _age_days(max(verdicts, key=lambda one: parse_time(one.at)).at, as_of) if verdicts else None,
        "longest_gap_days": max(gaps, default=None),
    }


def _cell(history: History, cell: Cell, question: Question) -> Document:
    rows = [row for row in history.claims if (row.trace, row.hardware, row.model) == cell]
    order = {one.digest: place for place, one in enumerate(history.verdicts)}
    newest = history.verdicts[max(order[row.verdict] for row in rows)]
    last = [row for row in rows if row.verdict == newest.digest]
    declared = [row.claim_key for row in last]
    keys = [row for row in last if not question.claims or row.claim_key in question.claims]
    recorded_at, calibration = last[0].trace_recorded_at, last[0].calibration_digest
    since = history.verdicts[min(order[row.verdict] for row in rows if row.calibration_digest == calibration)]
    own = History(verdicts=history.verdicts, claims=tuple(rows))
    return {
        "trace": cell[0],
        "hardware": cell[1],
        "model": cell[2],
        "newest_verdict": newest.digest,
        "trace_age_days": None if recorded_at is None else _age_days(recorded_at, question.as_of),
        "calibration_digest": calibration,
        "calibration_age_days": None if calibration is None else _age_days(since.at, question.as_of),
        "claims": [_claim(own.releases(cell, row.claim_key), row, newest, question) for row in keys],
        "undeclared": list(own.undeclared(cell, declared)),
    }


def _claim(releases: Sequence[Release], newest: ClaimRow, verdict: VerdictRow, question: Question) -> Document:
    known = [one for one in releases if one.claim is not None and one.claim.candidate is not None]
    return {
        "claim": newest.claim_key,
        "unit": METRICS[newest.metric].unit,
        "direction": METRICS[newest.metric].direction,
        "blocking": newest.is_blocking,
        "newest_outcome": newest.outcome,
        "releases": [_point(one) for one in known],
        "trend_per_release": _trend([one.claim.candidate for one in known if one.claim is not None and one.claim.candidate is not None]),
        "change_points": list(_changes(known, question.seed)),
        "drift": _drift(releases, newest, verdict, question),
    }


def _point(release: Release) -> Document:
    claim = release.claim
    assert claim is not None
    return {
        "verdict": release.verdict.digest,
        "at": release.verdict.at,
        "baseline": claim.baseline,
        "candidate": claim.candidate,
        "change": claim.change,
        "scale": claim.scale,
        "interval_lower": claim.interval_lower,
        "interval_upper": claim.interval_upper,
        "outcome": claim.outcome,
    }


def _trend(values: Sequence[float]) -> Document | None:
    """Return the median of all slopes between two releases (Theil-Sen), of the log where all figures are above 0."""
    if len(values) < 2:
        return None
    is_log = min(values) > 0
    series = np.log(values) if is_log else np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(series), k=1)
    slope = float(np.median((series[second] - series[first]) / (second - first)))
    return {"value": slope, "scale": "log" if is_log else "absolute"}


def _changes(known: Sequence[Release], seed: int) -> Iterator[Document]:
    """Yield change points of the released figures, each with what changed beside the mapping: a new trace is no slowdown."""
    rows = [one.claim for one in known if one.claim is not None]
    values = [row.candidate for row in rows if row.candidate is not None]
    if len(values) < 2 * FEWEST_POINTS:
        return
    is_log = min(values) > 0
    for found in change_points(np.log(values) if is_log else np.asarray(values, dtype=np.float64), seed):
        before, after = rows[found.index - 1], rows[found.index]
        also = [name for name in _CONTEXT if getattr(before, name) != getattr(after, name)]
        if known[found.index - 1].verdict.tool_version != known[found.index].verdict.tool_version:
            also.append("tool_version")
        step = found.after - found.before
        yield {
            "verdict": known[found.index].verdict.digest,
            "at": known[found.index].verdict.at,
            "change": math.expm1(step) if is_log else step,
            "scale": "ratio" if is_log else "difference",
            "p_value": found.p_value,
            "changed_too": also,
        }


def _drift(releases: Sequence[Release], newest: ClaimRow, verdict: VerdictRow, question: Question) -> Document | None:
    """Return drift up to the newest release, in the log of the worsening; None for claims compared by difference."""
    if METRICS[newest.metric].scale != "ratio":
        return None
    reached = releases[-1].verdict.candidate if releases else verdict.baseline
    drift = drift_of(releases, reached, question.anchor)
    budget = question.budget.budget if question.budget is not None and newest.is_blocking else None
    lower_is_better = METRICS[newest.metric].direction == "lower"
    limit = None if budget is None else math.log1p(budget) if lower_is_better else -math.log1p(-budget)
    return {
        **asdict(drift),
        "verdicts": list(drift.verdicts),
        "budget": budget,
        "budget_used_ratio": None if limit is None or drift.carried is None else drift.carried / limit,
    }


def _age_days(then: str, as_of: str) -> float:
    return (parse_time(as_of) - parse_time(then)).total_seconds() / _DAY_S
