"""Time by layer type: what of it computes, waits for memory, launches and synchronises, in both arms."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from gates.report.elements import element, table
from gates.report.figure import Chart, colour, figure, label
from gates.report.source import CellTables
from replay.units import format_seconds

PARTS = ("compute", "memory stall", "launch", "sync")
_HATCHES = ("", "///", "|||", "+++")
_BAR = 0.38


def split(figures: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Return a layer type's time [s] as PARTS, which add up to it.

    The terms of a kernel overlap, so the parts are what each adds: memory stall is the time minus that with infinite bandwidth, launch and
    sync are as they are, and computing is the rest.
    """
    stall, launch, sync = figures["memory_stall_s"], figures["launch_s"], figures["sync_s"]
    return max(figures["time_s"] - stall - launch - sync, 0.0), stall, launch, sync


def layers_section(cell: CellTables, key: str) -> list[ET.Element]:
    """Return the chart of time by layer type, or a sentence where it is not known."""
    arms = [arm for arm in cell.arms if cell.layers.get(arm)]
    if not arms:
        return [element("p", "Measured runs do not say how their time divides over layer types.")]
    found = {arm: dict(cell.layers[arm]) for arm in arms}
    names = [name for name in dict.fromkeys(name for arm in arms for name in found[arm]) if any(_time(found[arm], name) for arm in arms)]
    if not names:
        return [element("p", "No time was spent in any layer: no request was served.")]
    return [_chart(found, names, arms, key)]


def _chart(found: Mapping[str, Mapping[str, Mapping[str, float]]], names: list[str], arms: list[str], key: str) -> ET.Element:
    chart = Chart(key=f"layers-{key}", height_pt=46 + 26 * len(names), names=[label(name, 16) for name in names])
    axes = chart.axes
    rows = []
    for row, name in enumerate(names):
        for place, arm in enumerate(arms):
            parts = split(found[arm][name]) if name in found[arm] else (0.0,) * 4
            y, start = row + (place - (len(arms) - 1) / 2) * (_BAR + 0.04), 0.0
            for number, (part, seconds) in enumerate(zip(PARTS, parts, strict=True), start=1):
                if seconds > 0:
                    own = colour(f"part-{number}")
                    axes.barh(y, seconds, _BAR, left=start, color="none" if number > 1 else own, ec=own, hatch=_HATCHES[number - 1], lw=0.7)
                    text = f"{name}, {arm}: {part} {format_seconds(seconds)} of {format_seconds(_time(found[arm], name))}"
                    chart.point(start + seconds / 2, y, text)
                start += seconds
            rows.append([name, arm, format_seconds(_time(found[arm], name)), *(format_seconds(seconds) for seconds in parts)])
    axes.set_xlabel("seconds over the whole replay")
    data = table("Time by layer type", ("layer type", "arm", "time", *PARTS), rows)
    legend = [(f"part-{number}", part) for number, part in enumerate(PARTS, start=1)]
    notes = ["Of each pair the upper bar is the baseline and the lower the candidate."] if len(arms) > 1 else []
    notes.append(
        "Memory stall is the time that infinite memory bandwidth would save; computing is what is left beside it, launch and sync."
    )
    return figure(chart, "Time by layer type", data, legend=legend, notes=notes, broad=True)


def _time(layers: Mapping[str, Mapping[str, float]], name: str) -> float:
    return layers[name]["time_s"] if name in layers else 0.0
