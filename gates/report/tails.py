"""Tails: how often each latency of a request was exceeded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree as ET

import numpy as np

from gates.metrics import METRICS
from gates.report.elements import element, table
from gates.report.figure import DASHES, Chart, colour, figure
from gates.report.source import LATENCIES, CellTables
from gates.statistics.blocks import Floats
from replay.assembly.percentile import rank
from replay.units import format_seconds

PERCENTS = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
MOST_POINTS = 100
"""Of a curve: places equally far apart on the scale of the chart, whatever the number of requests."""


def values_of(cell: CellTables, arm: str, metric: str) -> Floats:
    """Return an arm's latencies of the requests that have one [k], in their order."""
    column = cell.requests.get(arm, {}).get(metric)
    return np.zeros(0) if column is None else column[np.isfinite(column)]


def tails_section(cell: CellTables, key: str) -> list[ET.Element]:
    """Return the tail of each latency that some request has, or a sentence."""
    panels = list(_panels(cell, key))
    if not panels:
        return [element("p", "No latencies of single requests: the runs recorded none, or no request was served.")]
    return [element("div", *panels, class_="panels")]


def _panels(cell: CellTables, key: str) -> Iterator[ET.Element]:
    for metric in LATENCIES:
        found = {arm: np.sort(values) for arm in cell.arms if len(values := values_of(cell, arm, metric))}
        if any(values[-1] > 0 for values in found.values()):
            yield _tail(metric, found, f"tail-{metric.removesuffix('_s')}-{key}")


def curve(ascending: Floats) -> tuple[Floats, Floats]:
    """Return the curve of exceedance of a sample in ascending order: values [s], and the share of requests that took at least so long.

    At most MOST_POINTS of them, equally far apart on a logarithmic scale of the share; the largest value is among them.
    """
    n = len(ascending)
    places = np.unique(np.rint(n - np.geomspace(n, 1, min(n, MOST_POINTS))).astype(np.int64))
    return ascending[places], (n - places) / n


def _tail(metric: str, found: Mapping[str, Floats], key: str) -> ET.Element:
    chart = Chart(key=key)
    name = METRICS[metric].label
    rows: dict[float, list[str]] = {percent: [f"p{percent:g}"] for percent in PERCENTS}
    for arm, ascending in found.items():
        values, shares = curve(ascending)
        shown = values > 0
        chart.axes.step(values[shown], shares[shown], where="post", color=colour(arm), lw=1.6, ls=(0, DASHES[arm]))
        marks = []
        for percent in PERCENTS:
            place = rank(len(ascending), percent) - 1
            value = float(ascending[place])
            rows[percent].append(format_seconds(value))
            if value > 0:
                text = f"{name} p{percent:g}, {arm}: {format_seconds(value)} ({len(ascending) - 1 - place} of {len(ascending)} beyond)"
                marks.append((value, (len(ascending) - place) / len(ascending)))
                chart.point(*marks[-1], text)
        chart.axes.plot([x for x, _ in marks], [y for _, y in marks], "o", ms=3, color=colour(arm))
    chart.logarithmic("x", format_seconds)
    chart.logarithmic("y", lambda share: f"{share * 100:g} %")
    chart.axes.set_ylabel("share of requests beyond")
    data = table(name, ("percentile", *found), rows.values())
    return figure(chart, f"{name}: the tail", data, legend=[(arm, arm) for arm in found])
