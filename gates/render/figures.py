"""Figures of claims as people read them: seconds as ms, fractions as percent, changes with their sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gates.claim import ALL_REQUESTS, subject_phrase
from gates.metrics import METRICS
from replay.units import format_seconds, format_si

Document = Mapping[str, Any]
MISSING = "-"
MULTIPLE_FROM = 10.0


def format_value(value: float | None, unit: str) -> str:
    """Return a figure in a unit that suits its size; ``-`` where it is missing."""
    if value is None:
        return MISSING
    match unit:
        case "s":
            return format_seconds(value)
        case "s/token":
            return f"{format_seconds(value)}/token"
        case "fraction":
            return f"{value * 100:.3g} %"
        case "FLOP/s" | "tokens/s" | "FLOP/s/W":
            return format_si(value, unit)
        case "count":
            return f"{value:.4g}"
        case _:
            return f"{value:.4g} {unit}"


def subject(claim: Document) -> str:
    """Return what a claim is about: ``TTFT p99``, ``memory-stall fraction of attention``, with its stratum."""
    if claim["metric"] in METRICS:
        return subject_phrase(
            claim["metric"],
            layer_type=claim["layer_type"],
            percentile=claim["percentile"],
            stratum=claim["stratum"],
            of=claim.get("of"),
        )
    parts = [claim["metric"], *([f"p{claim['percentile']:g}"] if claim["percentile"] is not None else [])]
    return " ".join(parts) + ("" if claim["stratum"] == ALL_REQUESTS else f" ({claim['stratum']})")


def change(claim: Document) -> str:
    """Return the candidate against the baseline: ``+23.4 %``, ``-1.2 points``."""
    if claim["scale"] == "ratio":
        return MISSING if claim["ratio"] is None else by_ratio(claim["ratio"])
    return MISSING if claim["difference"] is None else difference(claim["difference"], claim["unit"])


def bounds(claim: Document) -> str:
    """Return the interval of the change: ``+20.1 .. +26.9 %``."""
    interval = claim["interval"]
    if interval is None:
        return MISSING
    if claim["scale"] == "ratio":
        return f"{by_ratio(interval['lower']).removesuffix(' %')} .. {by_ratio(interval['upper'])}"
    scale, word = _points(claim["unit"])
    return f"{signed(interval['lower'] * scale)} .. {signed(interval['upper'] * scale)}{word}"


def accepted(claim: Document) -> str:
    """Return the largest worsening accepted, with the sign of worse: ``+3 %``, ``-5 points``."""
    sign = "+" if claim["direction"] == "lower" else "-"
    if claim["scale"] == "ratio":
        return f"{sign}{claim['margin'] * 100:g} %"
    scale, word = _points(claim["unit"])
    amount = f"{claim['margin'] * scale:g}"
    return f"{sign}{amount}{word.removesuffix('s') if amount == '1' and word == ' points' else word}"


def confidence(claims: list[Document]) -> str:
    """Return how sure each bound is, for a heading: ``95 % bounds``."""
    found = next((claim["interval"]["confidence"] for claim in claims if claim["interval"] is not None), None)
    return "bounds" if found is None else f"{(1 + found) * 50:g} % bounds"


def by_ratio(ratio: float) -> str:
    """Return a ratio as a change in percent, and from tenfold on as a multiple: ``+23.4 %``, ``x 16.2``, ``x 16,162``."""
    if ratio < MULTIPLE_FROM:
        return f"{signed((ratio - 1) * 100)} %"
    return f"x {ratio:,.0f}" if ratio >= 100 else f"x {ratio:.1f}"


def signed(value: float) -> str:
    """Return a figure with its sign and about three digits; an exact zero has none."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    return f"{value:+.0f}" if magnitude >= 100 else f"{value:+.1f}" if magnitude >= 1 else f"{value:+.2f}"


def knob_value(value: Any) -> str:
    """Return a knob's value as the mapping file spells it; null where it is not set."""
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


def difference(value: float, unit: str) -> str:
    """Return an absolute change in a unit that suits it: ``-1.2 points``, ``+0.5 ms``."""
    scale, word = _points(unit)
    return f"{signed(value * scale)}{word}"


def _points(unit: str) -> tuple[float, str]:
    """Return factor and word for a difference: fractions in points, seconds in ms, the rest as they are."""
    if unit == "fraction":
        return 100.0, " points"
    if unit == "s":
        return 1000.0, " ms"
    return 1.0, "" if unit == "count" else f" {unit}"
