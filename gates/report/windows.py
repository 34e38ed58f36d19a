"""Windows over time: load and latency, the batch, and the device's clock, power and temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import numpy as np

from gates.report.elements import element, table
from gates.report.figure import DASHES, Chart, colour, figure
from gates.report.source import CellTables, Columns
from gates.statistics.blocks import Floats
from replay.assembly.percentile import percentile

MOST = 60
"""Windows of a chart: more are joined, so that a page of a long trace stays as small as that of a short one."""
FEWEST = 20
"""Requests of a window from which its p95 is more than its largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    key: str
    title: str
    unit: str
    by_arm: Mapping[str, tuple[Floats, Floats]]
    """Times [h or s] and values, NaN where a window has none."""


def windows_section(cell: CellTables, key: str) -> list[ET.Element]:
    """Return the charts over time, and a sentence for each figure that the evidence does not hold."""
    series = [one for one in _series(cell) if any(np.isfinite(values).sum() > 1 for _, values in one.by_arm.values())]
    made: list[ET.Element] = []
    if series:
        made.append(element("div", *(_chart(one, key) for one in series), class_="panels"))
    else:
        made.append(element("p", "Nothing over time: there are fewer than two windows with requests, or no times of arrival."))
    absent = [word for name, word in _DEVICE.items() if name not in {one.key for one in series}]
    if absent:
        made.append(
            element(
                "p", f"Not known here: {', '.join(absent)} (measured runs bring none, and not every accelerator file says).", class_="note"
            )
        )
    return made


_DEVICE = {"batch": "batch", "clock": "clock", "power": "power", "temperature": "temperature"}
_OF_WINDOWS = (
    ("batch", "Batch", "sequences per step", "mean_sequences", 1.0),
    ("waiting", "Waiting requests", "requests", "mean_waiting", 1.0),
    ("clock", "Clock", "MHz", "clock_hz", 1e-6),
    ("power", "Power of one device", "W", "power_w", 1.0),
    ("temperature", "Temperature", "degrees Celsius", "temperature_c", 1.0),
)


def _series(cell: CellTables) -> Iterator[_Series]:
    for name, title, column in (("ttft", "TTFT p95", "ttft_s"), ("e2e", "End-to-end latency p95", "e2e_s")):
        yield _Series(
            key=name, title=title, unit="s", by_arm={arm: _latency(cell, arm, column) for arm in cell.arms if arm in cell.requests}
        )
    for name, title, unit, column, factor in _OF_WINDOWS:
        by_arm = {arm: _joined(rows, column, factor) for arm in cell.arms if (rows := cell.windows.get(arm)) and column in rows}
        yield _Series(key=name, title=title, unit=unit, by_arm=by_arm)


def _latency(cell: CellTables, arm: str, column: str) -> tuple[Floats, Floats]:
    """Return the p95 of requests by the window in which they arrived; NaN for windows of few."""
    rows = cell.requests[arm]
    arrivals, values = (rows.get(name, np.zeros(0)) for name in ("arrival_s", column))
    known = np.isfinite(arrivals) & np.isfinite(values) if len(arrivals) == len(values) else np.zeros(0, dtype=bool)
    if not known.any():
        return np.zeros(0), np.zeros(0)
    arrivals, values = arrivals[known], values[known]
    count = int(min(MOST, max(1, len(values) // (2 * FEWEST))))
    edges = np.linspace(0.0, float(arrivals.max()) * (1 + 1e-9) or 1.0, count + 1)
    place = np.clip(np.searchsorted(edges, arrivals, side="right") - 1, 0, count - 1)
    order = np.argsort(place, kind="stable")
    parts = np.split(values[order], np.searchsorted(place[order], np.arange(1, count)))
    return (edges[:-1] + edges[1:]) / 2, np.array([percentile(part, 95.0) if len(part) >= FEWEST else np.nan for part in parts])


def _joined(rows: Columns, column: str, factor: float) -> tuple[Floats, Floats]:
    """Return a column over at most MOST windows; the highest of joined ones for temperature, their mean for the rest."""
    times, values = rows["start_s"] + rows["length_s"] / 2, rows[column] * factor
    size = -(-len(values) // MOST)
    if size == 1:
        return times, values
    short = -len(values) % size
    padded = [np.concatenate([own, np.full(short, np.nan)]).reshape(-1, size) for own in (times, values)]
    known = np.isfinite(padded[1])
    if column == "temperature_c":
        joined = np.where(known, padded[1], -np.inf).max(axis=1)
    else:
        joined = np.divide(
            np.where(known, padded[1], 0.0).sum(axis=1), known.sum(axis=1), out=np.full(len(known), np.nan), where=known.any(axis=1)
        )
    return np.nanmean(padded[0], axis=1), np.where(known.any(axis=1), joined, np.nan)


def _chart(series: _Series, key: str) -> ET.Element:
    chart = Chart(key=f"time-{series.key}-{key}", height_pt=150)
    last = max(float(times[-1]) for times, _ in series.by_arm.values() if len(times))
    scale, unit = (3600.0, "h") if last > 3 * 3600 else (60.0, "min") if last > 180 else (1.0, "s")
    for arm, (times, values) in series.by_arm.items():
        chart.axes.plot(times / scale, values, color=colour(arm), lw=1.3, ls=(0, DASHES[arm]))
        for x, y in zip(times / scale, values, strict=True):
            if np.isfinite(y):
                chart.point(float(x), float(y), f"{series.title}, {arm}, at {x:.3g} {unit}: {y:.4g} {series.unit}")
    chart.axes.set_ylim(*_room(series))
    chart.axes.set_xlabel(f"{unit} from the first arrival")
    chart.axes.set_ylabel(series.unit)
    data = table(series.title, (f"time, {unit}", *(f"{arm}, {series.unit}" for arm in series.by_arm)), _rows(series, scale))
    return figure(chart, series.title, data, legend=[(arm, arm) for arm in series.by_arm])


def _room(series: _Series) -> tuple[float, float]:
    """Return an axis from 0 for what can be 0, and around the values for the rest."""
    values = np.concatenate([own[np.isfinite(own)] for _, own in series.by_arm.values()])
    low, high = float(values.min()), float(values.max())
    if series.key in ("clock", "temperature", "power"):
        margin = max((high - low) * 0.1, abs(high) * 0.02)
        return low - margin, high + margin
    return 0.0, high * 1.08 or 1.0


def _rows(series: _Series, scale: float) -> Iterator[list[str]]:
    """Yield a row for each time at which an arm has a value."""
    found: dict[float, dict[str, str]] = {}
    for arm, (times, values) in series.by_arm.items():
        for x, y in zip(times / scale, values, strict=True):
            found.setdefault(round(float(x), 3), {})[arm] = f"{y:.4g}" if np.isfinite(y) else "-"
    for x in sorted(found):
        yield [f"{x:.4g}", *(found[x].get(arm, "-") for arm in series.by_arm)]
