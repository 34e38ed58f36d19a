"""Cohorts: requests by the length of their prompt and of their answer, so that one shape of traffic never hides behind another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from gates.metrics import METRICS
from gates.render.figures import by_ratio
from gates.report.elements import element, table
from gates.report.source import ARMS, CellTables, Columns
from replay.assembly.percentile import percentile
from replay.units import format_seconds

_PERCENT = 95.0
FEWEST = 200
"""Requests of a cohort from which at least 10 lie beyond its p95."""
_METRICS = ("ttft_s", "tpot_s", "e2e_s")
_CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)
Mask = NDArray[np.bool_]


def cohorts_section(cell: CellTables) -> list[ET.Element]:
    """Return the table of cohorts, or a sentence where requests have no lengths."""
    if not all(len(cell.requests.get(arm, {}).get("prompt_tokens", ())) for arm in ARMS):
        return [element("p", "No cohorts: an arm has no requests with lengths.")]
    heading = ("cohort", "requests", *(f"{METRICS[metric].label} p95" for metric in _METRICS))
    made: list[ET.Element] = [table("Quarters of the baseline's requests, by length; p95 of both arms", heading, _rows(cell))]
    made.append(element("p", f"A dash stands where a cohort has fewer than {FEWEST} requests with the figure in both arms.", class_="note"))
    return made


def _rows(cell: CellTables) -> Iterator[list[str]]:
    for words, column in (("prompts", "prompt_tokens"), ("answers", "output_tokens")):
        lengths = cell.requests["baseline"].get(column, np.zeros(0))
        known = lengths[np.isfinite(lengths)]
        if not len(known) or column not in cell.requests["candidate"]:
            continue
        edges = np.unique(np.ceil(np.quantile(known, _CUTS)))
        bins = list(itertools.pairwise(edges)) or [(edges[0], edges[0])]
        for low, high in bins:
            last = high == edges[-1]
            masks = {arm: _within(cell.requests[arm], column, low, high, last=last) for arm in ARMS}
            upto = high if last else high - 1
            cells = [_pair(cell, masks, metric) for metric in _METRICS]
            yield [f"{words} of {low:,.0f} to {upto:,.0f} tokens", f"{int(masks['baseline'].sum()):,}", *cells]


def _within(columns: Columns, column: str, low: float, high: float, *, last: bool) -> Mask:
    lengths = columns[column]
    upper = lengths <= high if last else lengths < high
    return np.asarray((lengths >= low) & upper)


def _pair(cell: CellTables, masks: dict[str, Mask], metric: str) -> str:
    values = []
    for arm in ARMS:
        column = cell.requests[arm].get(metric)
        own = np.zeros(0) if column is None else column[masks[arm]]
        values.append(own[np.isfinite(own)])
    if min(map(len, values)) < FEWEST:
        return "-"
    before, after = (percentile(own, _PERCENT) for own in values)
    change = f" ({by_ratio(after / before)})" if before else ""
    return f"{format_seconds(before)} -> {format_seconds(after)}{change}"
