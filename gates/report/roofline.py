"""Roofline: where the kernels of typical steps stand between memory and arithmetic, and where the candidate moved them.

Williams, Waterman & Patterson 2009: attainable FLOP/s = min(peak, intensity x bandwidth), with intensity = FLOPs / bytes of device memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from gates.report.elements import element, table
from gates.report.figure import MARKERS, Chart, colour, figure
from gates.report.source import ARMS, CellTables, number
from replay.units import format_seconds, format_si

MOST = 12
"""Kernels of a step that are drawn: those that take longest."""
MOVED = 0.02
"""Relative change of intensity or rate from which a kernel counts as moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A kernel in an arm's step: of one device."""

    intensity: float
    """FLOPs per byte."""
    flops_per_s: float
    time_s: float


def roofline_section(cell: CellTables, key: str) -> list[ET.Element]:
    """Return a roofline for each typical step, or a sentence where kernels are not known."""
    steps = dict.fromkeys(row["step"] for arm in ARMS for row in cell.sheets.get(arm, ()))
    panels = [panel for step in steps if (panel := _panel(cell, step, f"roofline-{step}-{key}")) is not None]
    if cell.hardware is None or not panels:
        return [element("p", "No roofline: kernels, and the device's peaks, are known of replayed arms only.")]
    return [element("div", *panels, class_="panels")]


def spots(cell: CellTables, arm: str, step: str) -> dict[str, Spot]:
    """Return the kernels of an arm's step that multiply and read memory."""
    found = {}
    for row in cell.sheets.get(arm, ()):
        flops, traffic, seconds = (number(row, name) or 0.0 for name in ("flops", "bytes", "time_s"))
        if row["step"] == step and flops and traffic and seconds:
            own = flops / cell.ranks.get(arm, 1)
            found[row["kernel"]] = Spot(intensity=own / traffic, flops_per_s=own / seconds, time_s=seconds)
    return found


def has_moved(before: Spot | None, after: Spot | None) -> bool:
    """Return whether a kernel stands elsewhere in the candidate, or in one arm alone."""
    if before is None or after is None:
        return True
    pairs = ((before.intensity, after.intensity), (before.flops_per_s, after.flops_per_s))
    return any(abs(new / old - 1.0) > MOVED for old, new in pairs)


def _panel(cell: CellTables, step: str, key: str) -> ET.Element | None:
    arms = {arm: spots(cell, arm, step) for arm in ARMS}
    names = list(dict.fromkeys(name for found in arms.values() for name in found))
    if cell.hardware is None or not names:
        return None
    longest = sorted(names, key=lambda name: -max(found[name].time_s for found in arms.values() if name in found))[:MOST]
    chart = Chart(key=key, height_pt=210)
    _roof(chart, cell.hardware, [found[name].intensity for found in arms.values() for name in found])
    for name in longest:
        pair = [arms[arm].get(name) for arm in ARMS]
        if pair[0] and pair[1] and has_moved(*pair):
            start, end = ((spot.intensity, spot.flops_per_s) for spot in (pair[0], pair[1]))
            chart.axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": colour("ink"), "lw": 0.8})
        for arm, spot in zip(ARMS, pair, strict=True):
            if spot is not None:
                own = colour(arm)
                chart.axes.plot(spot.intensity, spot.flops_per_s, MARKERS[arm], ms=5, color=own, mfc="none" if arm == "baseline" else own)
                chart.point(spot.intensity, spot.flops_per_s, f"{name}, {arm}: {_told(spot)}")
    data = table(f"Kernels of a {step} step, the longest first", ("kernel", *ARMS, "moved"), _rows(longest, arms))
    notes = ["An arrow leads from the baseline's kernel to the candidate's where it moved."]
    if len(longest) < len(names):
        notes.append(f"The {len(longest)} longest of {len(names)} kernels.")
    legend = [("baseline", "baseline (hollow circle)"), ("candidate", "candidate (diamond)")]
    return figure(chart, f"Roofline of a typical {step} step", data, legend=legend, notes=[" ".join(notes)])


def _roof(chart: Chart, hardware: Mapping[str, Any], intensities: list[float]) -> None:
    bandwidth, peaks = float(hardware["memory_bytes_per_s"]), hardware["matrix_flops_per_s"]
    low, high = min(intensities) / 2, max(*intensities, 2 * max(peaks.values()) / bandwidth)
    axes = chart.axes
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        ridge = peak / bandwidth
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=colour("reach"), lw=1.0)
        chart.point(ridge, peak, f"{name} peak {format_si(peak, 'FLOP/s')}, reached from {ridge:.3g} FLOP per byte on")
    chart.logarithmic("x", lambda value: f"{value:g}")
    chart.logarithmic("y", lambda value: format_si(value, "").strip())
    axes.set_xlabel("FLOP per byte of device memory")
    axes.set_ylabel("FLOP/s of one device")


def _rows(names: list[str], arms: Mapping[str, Mapping[str, Spot]]) -> Iterator[list[str]]:
    for name in names:
        pair = [arms[arm].get(name) for arm in ARMS]
        yield [name, *("-" if spot is None else _told(spot) for spot in pair), "yes" if has_moved(*pair) else "no"]


def _told(spot: Spot) -> str:
    return f"{spot.intensity:.3g} FLOP/byte, {format_si(spot.flops_per_s, 'FLOP/s')}, {format_seconds(spot.time_s)}"
