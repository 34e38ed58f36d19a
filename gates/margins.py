"""Margins as people write them: 0.03 or "3 %" of the baseline, "5 points" of a fraction; never a bare 3."""

from __future__ import annotations

import math
import re

from gates.metrics import MetricDefinition
from replay.errors import SpecError

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_POINTS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*points?\s*")


def parse_margin(written: object, definition: MetricDefinition, where: str, key: str) -> float:
    """Return the largest worsening accepted: a fraction of the baseline for ratios, absolute (0.05 = 5 points) for differences.

    Raises:
        SpecError: it is no such figure, or it could be read in two ways.
    """
    wanted = _wanted(definition)
    if isinstance(written, str):
        pattern = _PERCENT if definition.scale == "ratio" else _POINTS
        match = pattern.fullmatch(written) if definition.scale == "ratio" or definition.unit == "fraction" else None
        if match is None:
            raise SpecError(where, f"{key} is {written!r}", wanted, f"write {_example(definition)}")
        margin = float(match.group(1)) / 100
    elif isinstance(written, int | float) and not isinstance(written, bool) and math.isfinite(written):
        margin = float(written)
        if margin >= 1 and (definition.scale == "ratio" or definition.unit == "fraction"):
            sign = "%" if definition.scale == "ratio" else "points"
            raise SpecError(where, f"{key} is the bare number {written:g}", wanted, f'write {margin / 100:g} or "{margin:g} {sign}"')
    else:
        raise SpecError(where, f"{key} is {written!r}", wanted, f"write {_example(definition)}")
    if margin <= 0:
        raise SpecError(where, f"{key} is {written!r}", wanted, "write the largest worsening you accept, above 0")
    if definition.direction == "higher" and margin >= 1 and definition.unit != "count":
        raise SpecError(where, f"{key} is {written!r}", "less than all of it, as higher is better", f"write {_example(definition)}")
    return margin


def parse_run_effect(written: object, where: str) -> float:
    """Return the assumed run effect as a fraction: 0.01 or "1 %"; 0 assumes none.

    Raises:
        SpecError: it is no such figure, or above 0.5.
    """
    match = _PERCENT.fullmatch(written) if isinstance(written, str) else None
    found = float(match[1]) / 100 if match else written
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 0.5:
        want = 'a fraction from 0 to 0.5 such as 0.01, or a percentage such as "1 %"'
        raise SpecError(where, f"run_effect_sd is {written!r}", want, 'write 0.01 or "1 %"')
    return float(found)


def format_margin(margin: float, definition: MetricDefinition) -> str:
    """Return a margin for people: ``3 %``, ``5 points``, ``0.01``."""
    if definition.scale == "ratio":
        return f"{margin * 100:g} %"
    if definition.unit == "fraction":
        return f"{margin * 100:g} point" + ("" if math.isclose(margin, 0.01) else "s")
    return f"{margin:g}"


def _wanted(definition: MetricDefinition) -> str:
    if definition.scale == "ratio":
        return 'a fraction of the baseline such as 0.03, or a percentage such as "3 %"'
    if definition.unit == "fraction":
        return 'absolute points of the fraction such as 0.05, or "5 points"'
    return f"a number above 0 ({definition.unit}, as this metric is compared by difference)"


def _example(definition: MetricDefinition) -> str:
    if definition.scale == "ratio":
        return '0.03 or "3 %"'
    return '0.05 or "5 points"' if definition.unit == "fraction" else "0.01"
