"""render_history_page(report) -> the page of a history: ages and rollbacks, then for each claim its figure over releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from gates.render.figures import format_value
from gates.render.history import claim_figures, days, step
from gates.report.elements import element, page, table
from gates.report.figure import Chart, colour, drawing, figure, label

Document = Mapping[str, Any]
MOST_CHARTS = 20
"""Of a page, blocking claims first; the tables have all claims."""
FEWEST = 2
"""Releases from which there is something to draw."""
MOST_POINTS = 120
"""Newest releases of a chart."""


def render_history_page(report: Document) -> bytes:
    """Return the report of `gates.history.report` as a page."""
    with drawing():
        content = list(_content(report))
    return page("History of verdicts", content)


def _content(report: Document) -> Iterator[ET.Element]:
    found = report["verdicts"]
    yield element("header", element("h1", "History of verdicts"), element("p", _headline(report)), class_="verdict run")
    if not found["count"]:
        return
    rows = [[basis.replace("_", " "), f"{count:,}"] for basis, count in found["bases"].items()]
    yield table("Verdicts by basis", ("basis", "verdicts"), rows)
    drawn = 0
    for place, cell in enumerate(report["cells"]):
        charted = [claim for claim in cell["claims"] if len(claim["releases"]) >= FEWEST]
        charted.sort(key=lambda claim: not claim["blocking"])
        charted = charted[: MOST_CHARTS - drawn]
        drawn += len(charted)
        yield element("section", element("h2", f"{cell['trace']} / {cell['hardware']} / {cell['model']}"), *_cell(cell, charted, place))


def _headline(report: Document) -> str:
    found = report["verdicts"]
    if not found["count"]:
        return "No verdict is in the history."
    gap = "" if found["longest_gap_days"] is None else f", longest gap {days(found['longest_gap_days'])}"
    share = f"{100 * found['rollback_ratio']:.0f} % rollbacks"
    return f"{found['count']:,} verdicts, {share}; the newest is {days(found['newest_age_days'])} old at {report['as_of']}{gap}."


def _cell(cell: Document, charted: Sequence[Document], place: int) -> Iterator[ET.Element]:
    calibration = "none" if cell["calibration_age_days"] is None else f"in use for {days(cell['calibration_age_days'])}"
    trace = "not known" if cell["trace_age_days"] is None else days(cell["trace_age_days"])
    yield element("p", f"Age of the trace: {trace}. Accelerator description and calibration: {calibration}.")
    if charted:
        yield element("div", *(_chart(claim, f"history-{place}-{number}") for number, claim in enumerate(charted)), class_="panels")
    else:
        yield element("p", f"Nothing over releases to draw here: no claim has {FEWEST} of them, or other cells have all the charts.")
    heading = ("claim", "releases", "newest", "per release", "since anchor", "of budget", "outcome")
    rows = [[*claim_figures(claim), claim["newest_outcome"]] for claim in cell["claims"]]
    yield table("All claims", heading, rows, marks=[claim["newest_outcome"] for claim in cell["claims"]])
    changes = [row for claim in cell["claims"] for row in _changes(claim)]
    if changes:
        yield table("Change points", ("claim", "when", "change", "p", "changed too", "verdict"), changes)
    gaps = [[claim["claim"], claim["drift"]["gap"]] for claim in cell["claims"] if claim["drift"] is not None and claim["drift"]["gap"]]
    if gaps:
        yield table("Drift that is not known", ("claim", "why"), gaps)
    if cell["undeclared"]:
        yield element("p", f"Undeclared (no plan asks for them any more, not judged): {', '.join(cell['undeclared'])}.")


def _chart(claim: Document, key: str) -> ET.Element:
    """Return the released figures in their order, with their verdicts' changes, and a line where they changed for good."""
    from matplotlib.ticker import MaxNLocator

    chart = Chart(key=key, height_pt=150)
    axes, unit = chart.axes, claim["unit"]
    points = claim["releases"][-MOST_POINTS:]
    first = len(claim["releases"]) - len(points) + 1
    values = [point["candidate"] for point in points]
    axes.plot(range(first, first + len(points)), values, color=colour("run"), lw=1.4, marker="o", ms=3)
    for number, point in enumerate(points, start=first):
        said = f"{claim['claim']}, release {number} at {point['at']}: {format_value(point['candidate'], unit)}, {point['outcome']}"
        chart.point(number, point["candidate"], said)
    by_verdict = {point["verdict"]: number for number, point in enumerate(points, start=first)}
    for change in claim["change_points"]:
        if change["verdict"] in by_verdict:
            axes.axvline(by_verdict[change["verdict"]] - 0.5, color=colour("bad"), lw=1.2, ls=(0, (4, 2)))
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("release")
    axes.set_ylabel("" if unit in ("fraction", "count") else label(unit))
    rows = [
        [str(number), point["at"], format_value(point["candidate"], unit), point["outcome"]] for number, point in enumerate(points, first)
    ]
    data = table(claim["claim"], ("release", "at", "figure", "outcome"), rows)
    legend = [("run", "released figure"), *([("disproved", "change point (dashed)")] if claim["change_points"] else [])]
    return figure(chart, f"{claim['claim']}{'' if claim['blocking'] else ' (advisory)'}", data, legend=legend)


def _changes(claim: Document) -> Iterator[list[str]]:
    for change in claim["change_points"]:
        also = ", ".join(change["changed_too"]) or "-"
        yield [claim["claim"], change["at"], step(change), f"{change['p_value']:.3g}", also, change["verdict"][7:19]]
