"""The report of a history as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Document = dict[str, Any]


def render_history(report: Document) -> str:
    """Return the report of `gates.history.report` as text, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Document) -> Iterator[str]:
    found = report["verdicts"]
    if not found["count"]:
        yield "no verdict in the history"
        return
    bases = ", ".join(f"{count} {basis}" for basis, count in found["bases"].items())
    yield f"{found['count']} verdicts ({bases}); {100 * found['rollback_ratio']:.0f} % rollbacks"
    gap = "" if found["longest_gap_days"] is None else f"; longest gap {days(found['longest_gap_days'])}"
    yield f"newest {days(found['newest_age_days'])} before {report['as_of']}{gap}"
    for cell in report["cells"]:
        yield from _cell(cell)


def _cell(cell: Document) -> Iterator[str]:
    yield ""
    yield f"{cell['trace']} / {cell['hardware']} / {cell['model']}"
    calibration = "none" if cell["calibration_age_days"] is None else f"in use for {days(cell['calibration_age_days'])}"
    trace = "not known" if cell["trace_age_days"] is None else days(cell["trace_age_days"])
    yield f"  trace age {trace}; accelerator description and calibration {calibration}"
    titles = f"  {'claim':<44} {'releases':>8} {'newest':>11} {'per release':>12} {'since anchor':>13} {'of budget':>10}"
    yield titles
    for claim in cell["claims"]:
        yield _row(claim)
        for change in claim["change_points"]:
            also = f"; changed too: {', '.join(change['changed_too'])}" if change["changed_too"] else ""
            yield f"      change of {step(change)} at {change['at']} (p {change['p_value']:.3g}, verdict {change['verdict'][7:19]}{also})"
        if claim["drift"] is not None and claim["drift"]["gap"] is not None and claim["blocking"]:
            yield f"      drift is not known: {claim['drift']['gap']}"
    if cell["undeclared"]:
        yield f"  undeclared (no plan asks for them any more, not judged): {', '.join(cell['undeclared'])}"


def _row(claim: Document) -> str:
    name, releases, newest, slope, since, used = claim_figures(claim)
    return f"  {name:<44} {releases:>8} {newest:>11} {slope:>12} {since:>13} {used:>10}"


def claim_figures(claim: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return a claim's name, releases, newest figure, trend, drift since the anchor and share of the budget, as people read them."""
    drift, trend, points = claim["drift"], claim["trend_per_release"], claim["releases"]
    newest = f"{points[-1]['candidate']:.4g}" if points else "-"
    slope = "-" if trend is None else _percent(trend["value"]) if trend["scale"] == "log" else f"{trend['value']:+.3g}"
    carried = None if drift is None else drift["carried"]
    since = "-" if carried is None else _percent(carried if claim["direction"] == "lower" else -carried)
    used = "-" if drift is None or drift["budget_used_ratio"] is None else f"{100 * drift['budget_used_ratio']:.0f} %"
    name = claim["claim"] + ("" if claim["blocking"] else " (advisory)")
    return name, str(len(points)), newest, slope, since, used


def step(change: Mapping[str, Any]) -> str:
    """Return how far a figure moved at a change point."""
    return f"{100 * change['change']:+.1f} %" if change["scale"] == "ratio" else f"{change['change']:+.4g}"


def _percent(log_change: float) -> str:
    return f"{100 * math.expm1(log_change) + 0.0:+.2f} %"


def days(count: float) -> str:
    """Return an age for people."""
    return f"{count:.1f} days"
