"""Claims: how far each candidate's figure moved, beside how far it was allowed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from gates.claim import ALL_REQUESTS
from gates.render.figures import accepted, bounds, change, confidence, subject
from gates.render.story import Story, claim_row, columns
from gates.report.elements import element, folded, table
from gates.report.figure import OUTCOMES, Chart, colour, figure, label
from gates.strata import parse_stratum

Document = Mapping[str, Any]
MOST_DRAWN = 16
MOST_LISTED = 400
"""Of a table: claims beyond are in verdict.json; a page of many cells stays small."""
_LINEAR_TO = 2.0
_SHORT = {
    "end-to-end latency": "E2E",
    "memory-stall fraction": "stall",
    "memory stall": "stall",
    "ITL (a request's longest gap)": "ITL",
    "tokens per busy second": "tokens / busy s",
    "preemptions per request": "preemptions",
    "queueing time": "queue",
}
_MARKERS = {"holds": "o", "disproved": "X", "undecided": "s"}


def claims_section(story: Story, cells: Sequence[Document]) -> list[ET.Element]:
    """Return the forest plot of the claims that matter most, and the table of all; `cells` are those of the verdict, in its order."""
    drawn = [claim for claim in story.claims if _scaled(claim) is not None][:MOST_DRAWN]
    everything = _table(story.claims, story)
    if not drawn:
        return [element("p", "No claim has bounds, so there is nothing to draw: each claim's reason stands in its row."), everything]
    shown = [forest(drawn, story, cells)]
    return [*shown, folded(f"All {len(story.claims)} claims", everything) if len(drawn) < len(story.claims) else everything]


def forest(claims: Sequence[Document], story: Story, cells: Sequence[Document]) -> ET.Element:
    """Return the forest plot: each claim's worsening and its bounds in multiples of the margin that was accepted for it."""
    chart = Chart(key="forest", height_pt=46 + 17 * len(claims), names=[label(_short(claim, cells)) for claim in claims])
    axes = chart.axes
    axes.axvspan(-1e9, 1.0, color=colour("reach"), alpha=0.12, lw=0)
    axes.axvline(0.0, color=colour("ink"), lw=0.8)
    axes.axvline(1.0, color=colour("ink"), lw=1.2, ls=(0, (4, 2)))
    reach = 1.5
    for row, claim in enumerate(claims):
        found = _scaled(claim)
        assert found is not None
        low, mid, high = found
        reach = max(reach, *map(abs, found))
        own = colour(OUTCOMES[claim["outcome"]])
        axes.plot([low, high], [row, row], color=own, lw=1.8, solid_capstyle="butt")
        axes.plot([mid], [row], marker=_MARKERS[claim["outcome"]], ms=5.5, color=own, mfc=own if claim["blocking"] else "none")
        chart.point(mid, row, reading(claim))
    axes.set_xscale("symlog", linthresh=_LINEAR_TO, linscale=1.6)
    axes.set_xlim(-reach * 1.3, reach * 1.3)
    axes.set_xticks(ticks := [tick for tick in (-1000, -100, -10, -1, 0, 1, 10, 100, 1000) if abs(tick) <= reach * 1.3])
    axes.set_xticklabels([f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("better < 0 > worse; 1 = the accepted limit")
    legend = [("holds", "holds (circle)"), ("disproved", "disproved (cross)"), ("undecided", "undecided (square)")]
    notes = [
        "Lines are the bounds of each change in multiples of the worsening that was accepted beforehand; the dashed line at 1 is that "
        "limit. Hollow marks are advisory claims."
    ]
    if len(cells) > 1:
        notes.append("Numbers in brackets are the cells, in the order in which they are named above.")
    if len(claims) < len(story.claims):
        notes.append(f"The {len(claims)} of {len(story.claims)} claims that decide most; the table has all.")
    caption = "How far each figure moved, beside how far it was allowed to"
    return figure(chart, caption, _table(claims, story), legend=legend, notes=notes, broad=True)


def reading(claim: Document) -> str:
    """Return a claim in a sentence, with the verdict's own figures."""
    place = f"{subject(claim)} on {claim['trace']} / {claim['hardware']}"
    advisory = "" if claim["blocking"] else ", advisory"
    return f"{place}: {change(claim)}, bounds {bounds(claim)}, accepted {accepted(claim)}: {claim['outcome']}{advisory}"


def _short(claim: Document, cells: Sequence[Document]) -> str:
    """Return what a claim is about in the few letters that fit beside a chart."""
    stratum = claim["stratum"]
    text = subject({**claim, "stratum": ALL_REQUESTS})
    if stratum != ALL_REQUESTS:
        bin_ = parse_stratum(stratum)
        text += f", {bin_.tokens_from} tok+" if bin_.tokens_to is None else f", {bin_.tokens_from}-{bin_.tokens_to - 1} tok"
    for words, letters in _SHORT.items():
        text = text.replace(words, letters)
    own = (claim["trace"], claim["hardware"])
    number = next((number for number, cell in enumerate(cells, 1) if (cell["trace"], cell["hardware"]) == own), 0)
    return f"[{number}] {text}" if len(cells) > 1 else text


def _table(claims: Sequence[Document], story: Story) -> ET.Element:
    names = [*columns(story.several), "n", "reason"]
    heading = [confidence(list(claims)) if name == "bounds" else name for name in names]
    shown = claims[:MOST_LISTED]
    rows = [_row(claim, story) for claim in shown]
    more = "" if len(shown) == len(claims) else f"; {len(claims) - len(shown)} more are in verdict.json"
    heading.append(heading.pop(names.index("outcome")))
    return table(f"Claims, what decides first{more}", heading, rows, marks=[claim["outcome"] for claim in shown])


def _row(claim: Document, story: Story) -> list[str]:
    *cells, outcome = claim_row(claim, story.several)
    return [*cells, f"{claim['n']:,}", claim["reason"] or "", outcome]


def _scaled(claim: Document) -> tuple[float, float, float] | None:
    """Return a claim's bounds and change (lower, change, upper) in multiples of its margin, worse upwards; None where they are missing."""
    middle, interval = claim["ratio" if claim["scale"] == "ratio" else "difference"], claim["interval"]
    if middle is None or interval is None or not claim["margin"]:
        return None
    none = 1.0 if claim["scale"] == "ratio" else 0.0
    sign = 1.0 if claim["direction"] == "lower" else -1.0
    low, mid, high = (sign * (value - none) / claim["margin"] for value in (interval["lower"], middle, interval["upper"]))
    return (low, mid, high) if sign > 0 else (high, mid, low)
