"""The shift function: how the candidate's quantiles moved against the baseline's, from the middle to the far tail.

Doksum 1974, as a ratio: quantile by quantile, candidate over baseline. A change that helps the middle and hurts the tail crosses the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from gates.claim import ALL_REQUESTS
from gates.metrics import METRICS
from gates.render.figures import bounds, by_ratio, change
from gates.report.elements import element, table
from gates.report.figure import OUTCOMES, Chart, colour, figure
from gates.report.source import ARMS, LATENCIES, CellTables
from gates.statistics.blocks import BlockDraw, Floats, block_length, draw_blocks
from gates.statistics.tails import Sample, resampled_percentiles
from replay.assembly.percentile import percentile, rank
from replay.seeds import stream
from replay.units import format_seconds

Document = Mapping[str, Any]
PERCENTS = (50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9)
REPLICATES = 400
"""Of which 20 lie beyond each end of a 90 % band."""
LARGEST = 60_000
"""Requests up to which a band is made; more take longer than a page should, and their claims have bounds of their own."""
FEWEST_BEYOND = 10
"""Requests beyond a percentile, in each arm, below which it is not drawn."""
_TICKS = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A metric's quantiles in both arms, and the band of their ratio."""

    percents: tuple[float, ...]
    baseline: Floats
    """[percents] seconds."""
    candidate: Floats
    band: Floats | None
    """[2, percents] ratios between which 90 % of the resamples lie; None where none was made."""

    @property
    def ratios(self) -> Floats:
        """Candidate over baseline [percents]."""
        ratios: Floats = self.candidate / self.baseline
        return ratios


def shift_section(cell: CellTables, claims: Sequence[Document], plan: Document, key: str) -> list[ET.Element]:
    """Return the shift of each latency, the percentiles that claims are about marked; a sentence where there is none."""
    panels = list(_panels(cell, claims, plan, key))
    if not panels:
        few = f"No quantiles to compare: each needs at least {FEWEST_BEYOND} requests beyond it in both arms."
        return [element("p", few)]
    return [element("p", _about_band(cell)), element("div", *panels, class_="panels")]


def _panels(cell: CellTables, claims: Sequence[Document], plan: Document, key: str) -> Iterator[ET.Element]:
    for metric in LATENCIES:
        found = shift(cell, metric, blocks=plan["blocks"], seed=int(plan["seed"]))
        if found is not None:
            gated = [claim for claim in claims if claim["metric"] == metric and claim["percentile"] and claim["stratum"] == ALL_REQUESTS]
            yield _panel(metric, found, gated, f"shift-{metric.removesuffix('_s')}-{key}")


def shift(cell: CellTables, metric: str, *, blocks: int, seed: int) -> Shift | None:
    """Return the shift of a metric at PERCENTS, as far as enough requests lie beyond; None where no percentile has any.

    The band is that of the traffic alone: blocks of consecutive requests, the same in both arms where these hold the same requests.
    """
    columns = [cell.requests.get(arm, {}).get(metric) for arm in ARMS]
    arms = [column for column in columns if column is not None]
    if len(arms) < len(ARMS):
        return None
    if cell.paired:
        both = np.isfinite(arms[0]) & np.isfinite(arms[1])
        arms = [np.where(both, column, np.nan) for column in arms]
    present = [np.flatnonzero(np.isfinite(column)) for column in arms]
    fewest = min(map(len, present))
    percents = tuple(percent for percent in PERCENTS if fewest and fewest - rank(fewest, percent) >= FEWEST_BEYOND)
    values = [column[at] for column, at in zip(arms, present, strict=True)]
    quantiles = [np.array([percentile(own, percent) for percent in percents]) for own in values]
    if not percents or not (quantiles[0] > 0).all():
        return None
    band = None
    if max(_sizes(cell)) <= LARGEST:
        band = _band(
            [Sample(values=own, positions=at, percents=percents) for own, at in zip(values, present, strict=True)],
            [len(column) for column in arms],
            blocks,
            seed,
            paired=cell.paired,
        )
    return Shift(percents=percents, baseline=quantiles[0], candidate=quantiles[1], band=band)


def _band(samples: Sequence[Sample], sizes: Sequence[int], blocks: int, seed: int, *, paired: bool) -> Floats:
    def draw(size: int, name: str) -> BlockDraw:
        return draw_blocks(size, length=block_length(size, blocks), replicates=REPLICATES, generator=stream(seed, f"report.{name}"))

    if paired:
        baseline, candidate = resampled_percentiles(draw(sizes[0], "pairs"), samples)
    else:
        baseline, candidate = (
            resampled_percentiles(draw(size, arm), [sample])[0] for sample, size, arm in zip(samples, sizes, ARMS, strict=True)
        )
    ratios = np.divide(candidate, baseline, out=np.full_like(candidate, np.nan), where=baseline > 0)
    band: Floats = np.nanquantile(ratios, (0.05, 0.95), axis=0)
    return band


def _panel(metric: str, found: Shift, gated: Sequence[Document], key: str) -> ET.Element:
    chart = Chart(key=key)
    axes, name = chart.axes, METRICS[metric].label
    places = [_place(percent) for percent in found.percents]
    changes = (found.ratios - 1.0) * 100
    axes.axhline(0.0, color=colour("ink"), lw=0.8)
    if found.band is not None:
        low, high = (found.band - 1.0) * 100
        axes.fill_between(places, low, high, color=colour("candidate"), alpha=0.2, lw=0)
    axes.plot(places, changes, color=colour("candidate"), lw=1.6, marker="o", ms=3)
    for index, percent in enumerate(found.percents):
        chart.point(places[index], float(changes[index]), f"{name} p{percent:g}: {_moved(found, index)}")
    for claim in gated:
        _mark(chart, claim, name)
    last = max(found.percents[-1], *(claim["percentile"] for claim in gated), _TICKS[0])
    ticks = [percent for percent in _TICKS if percent <= last]
    axes.set_xticks([_place(percent) for percent in ticks], [f"p{percent:g}" for percent in ticks])
    axes.set_ylabel("change, %")
    rows = [_row(found, index) for index in range(len(found.percents))]
    rows += [[f"p{claim['percentile']:g} (claim)", *_arms(claim), change(claim), bounds(claim), claim["outcome"]] for claim in gated]
    data = table(f"{name} by quantile", ("quantile", *ARMS, "change", "band or bounds", "outcome"), rows)
    legend = [("candidate", "candidate against baseline")]
    return figure(chart, f"{name}: shift by quantile", data, legend=legend)


def _about_band(cell: CellTables) -> str:
    """Return what the marks and the band are."""
    claims = "Diamonds with bars are the verdict's own claims and their bounds, which also count what is not known of the costs of kernels."
    if max(_sizes(cell)) > LARGEST:
        return f"{claims} There is no band around the line: there are more than {LARGEST:,} requests."
    return f"{claims} The band around the line holds 90 % of {REPLICATES} resamples of the traffic alone."


def _sizes(cell: CellTables) -> list[int]:
    return [max((len(column) for column in cell.requests[arm].values()), default=0) for arm in cell.requests]


def _mark(chart: Chart, claim: Document, name: str) -> None:
    """Draw a claim about a percentile with its bounds."""
    if claim["ratio"] is None:
        return
    x, y, own = _place(claim["percentile"]), (claim["ratio"] - 1.0) * 100, colour(OUTCOMES[claim["outcome"]])
    if claim["scale"] == "ratio" and claim["interval"] is not None:
        ends = [(claim["interval"][end] - 1.0) * 100 for end in ("lower", "upper")]
        chart.axes.plot([x, x], ends, color=own, lw=2.2)
    chart.axes.plot([x], [y], marker="D", ms=6, color=own)
    chart.point(x, y, f"{name} p{claim['percentile']:g}, claim: {change(claim)}, bounds {bounds(claim)}, {claim['outcome']}")


def _row(found: Shift, index: int) -> list[str]:
    arms = [format_seconds(float(own[index])) for own in (found.baseline, found.candidate)]
    band = "-" if found.band is None else f"{by_ratio(float(found.band[0, index]))} .. {by_ratio(float(found.band[1, index]))}"
    return [f"p{found.percents[index]:g}", *arms, by_ratio(float(found.ratios[index])), band, ""]


def _moved(found: Shift, index: int) -> str:
    _, before, after, change_, band, _ = _row(found, index)
    return f"{before} -> {after} ({change_}; band {band})"


def _arms(claim: Document) -> tuple[str, str]:
    before, after = ("-" if claim[arm] is None else format_seconds(claim[arm]) for arm in ARMS)
    return before, after


def _place(percent: float) -> float:
    """Return where a percentile stands: each step to the right is a tail ten times as rare."""
    return float(-np.log10(1.0 - percent / 100.0))
