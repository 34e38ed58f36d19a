"""Attribution: what each knob did to the figure that is explained, as a waterfall of its share of the whole change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from gates.claim import claim_key
from gates.render.figures import by_ratio, difference, subject
from gates.report.elements import element, table
from gates.report.figure import Chart, colour, figure, label

Document = Mapping[str, Any]
MOST = 20
"""Bars of a waterfall; the table has all rows."""
LEAST_REST = 0.5
"""Percent of the change that is no rounding of shares, which add up to the whole."""
_KNOWN = ("knob", "metric", "effect", "share", "interval", "method", "effect_alone", "effect_last")


def attribution_section(predicate: Document) -> list[ET.Element]:
    """Return a waterfall for each explained figure whose shares are known, and the table of all rows of the verdict's attribution."""
    rows = predicate["attribution"]
    if not rows:
        nothing = "No knob's effect was told apart: nothing changed, no replay could tell, or the evidence supports no decision."
        return [element("p", nothing)]
    claims = {claim_key(claim["id"], claim["trace"], claim["hardware"]): claim for claim in _explained(predicate)}
    metrics = dict.fromkeys(row["metric"] for row in rows)
    made = []
    for place, metric in enumerate(metrics):
        shared = [row for row in rows if row["metric"] == metric and row["share"] is not None]
        if shared:
            made.append(_waterfall(shared, claims.get(metric), metric, f"attribution-{place}"))
    return [*made, _table(rows, claims)]


def _explained(predicate: Document) -> Sequence[Document]:
    """Return the claims of the cell that decided."""
    claims: Sequence[Document] = next(cell["claims"] for cell in predicate["per_trace"] if cell["basis"] == predicate["basis"])
    return claims


def _waterfall(rows: Sequence[Document], claim: Document | None, metric: str, key: str) -> ET.Element:
    drawn = sorted(rows, key=lambda row: -abs(row["share"]))[:MOST]
    rest = 100.0 - 100.0 * sum(one["share"] for one in drawn)
    other = ["together / other"] if abs(rest) >= LEAST_REST else []
    names = [*(label(one["knob"], 22) for one in drawn), *other, "whole change"]
    chart = Chart(key=key, height_pt=52 + 17 * len(names), names=names)
    axes, start = chart.axes, 0.0
    for row, one in enumerate(drawn):
        share = one["share"] * 100
        own = colour("bad" if share > 0 else "good")
        axes.barh(row, share, 0.6, left=start, color=own if share > 0 else "none", ec=own, hatch="" if share > 0 else "////", lw=0.8)
        axes.plot([start + share] * 2, [row - 0.3, row + 1.3], color=colour("ink"), lw=0.6)
        chart.point(start + share / 2, row, _told(one, claim))
        start += share
    if other:
        axes.barh(len(drawn), rest, 0.6, left=start, color="none", ec=colour("reach"), lw=0.8)
        chart.point(
            start + rest / 2, len(drawn), f"knobs that are not drawn, and what no single knob explains: {rest:+.0f} % of the change"
        )
    axes.barh(len(names) - 1, 100, 0.6, color=colour("reach"))
    about = metric if claim is None else subject(claim)
    chart.point(50, len(names) - 1, f"the whole change of {about}")
    axes.axvline(0, color=colour("ink"), lw=0.8)
    axes.set_xlabel("share of the change, %")
    data = table(f"Shares of the change of {about}", ("knob", "share"), [[one["knob"], f"{one['share'] * 100:.0f} %"] for one in drawn])
    legend = [("disproved", "towards the change"), ("holds", "against it (hatched)"), ("reach", "together, whole")]
    return figure(chart, f"What changed {about}, knob by knob", data, legend=legend, broad=True)


def _table(rows: Sequence[Document], claims: Mapping[str, Document]) -> ET.Element:
    """Return every row of the attribution, whatever further columns a verdict of a later version has."""
    others = list(dict.fromkeys(name for row in rows for name in row if name not in _KNOWN))
    heading = (
        "knob",
        "figure",
        "effect",
        "alone",
        "on top of the others",
        "share",
        "bounds",
        "method",
        *(name.replace("_", " ") for name in others),
    )
    return table("Effects of the changed knobs", heading, [list(_cells(row, claims.get(row["metric"]), others)) for row in rows])


def _cells(row: Document, claim: Document | None, others: Sequence[str]) -> Iterator[str]:
    yield row["knob"]
    yield row["metric"] if claim is None else subject(claim)
    yield _amount(row["effect"], claim)
    yield _amount(row.get("effect_alone"), claim)
    yield _amount(row.get("effect_last"), claim)
    yield "-" if row["share"] is None else f"{row['share'] * 100:.0f} %"
    interval = row["interval"]
    yield "-" if interval is None else f"{_amount(interval['lower'], claim)} .. {_amount(interval['upper'], claim)}"
    yield row["method"]
    yield from ("-" if row.get(name) is None else str(row[name]) for name in others)


def _told(row: Document, claim: Document | None) -> str:
    return f"{row['knob']}: {_amount(row['effect'], claim)}, {row['share'] * 100:.0f} % of the change"


def _amount(value: float | None, claim: Document | None) -> str:
    if value is None:
        return "-"
    return difference(value, claim["unit"]) if claim is not None and claim["scale"] == "difference" else by_ratio(value + 1.0)
