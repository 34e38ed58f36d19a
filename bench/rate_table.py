"""Measured rates with their intervals and targets, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def wilson(count: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson 1927)."""
    z = 1.959963984540054
    centre, spread = count + z * z / 2, z * math.sqrt(count * (trials - count) / trials + z * z / 4)
    return max(0.0, (centre - spread) / (trials + z * z)), min(1.0, (centre + spread) / (trials + z * z))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One measured rate and whether it reaches its target."""

    situation: str
    server: str
    regression: str
    rate: str
    count: int
    trials: int
    low: float
    high: float
    target: float | None = None
    at_most: bool = True

    @property
    def word(self) -> str:
        if self.target is None:
            return ""
        reached = self.low <= self.target if self.at_most else self.high >= self.target
        return "met" if reached else "MISS"

    @property
    def goal(self) -> str:
        return "" if self.target is None else f"{'<=' if self.at_most else '>='} {100 * self.target:g}: {self.word}"

    @property
    def text(self) -> str:
        return f"{100 * self.count / self.trials:.1f} ({100 * self.low:.1f}-{100 * self.high:.1f})"


def rate_of(
    flags: Iterable[bool], situation: str, server: str, regression: str, rate: str, target: float | None = None, *, at_most: bool = True
) -> Rate:
    """Return the rate of true flags."""
    values = list(flags)
    low, high = wilson(sum(values), len(values))
    return Rate(
        situation=situation, server=server, regression=regression, rate=rate, count=sum(values), trials=len(values), low=low, high=high,
        target=target, at_most=at_most,
    )  # fmt: skip


def markdown(rows: list[Rate], command: str, titles: Mapping[str, str], servers: Mapping[str, str]) -> str:
    """Return the table, one line per situation, regression and rate, the servers beside each other; names by key, in their order."""
    lines = [f"`{command}`: rates in %, 95 % Wilson intervals in brackets", ""]
    columns = [column for name in servers.values() for column in (name, "target")]
    lines += [f"| situation | regression | rate | {' | '.join(columns)} |", "| --- " * (3 + len(columns)) + "|"]
    cells: dict[tuple[str, str, str], dict[str, Rate]] = {}
    for row in rows:
        cells.setdefault((row.situation, row.regression, row.rate), {})[row.server] = row
    for situation, title in titles.items():
        for (of, regression, rate), found in cells.items():
            if of == situation:
                parts = [f"{found[key].text} | {found[key].goal}" if key in found else " | " for key in servers]
                lines.append(f"| {title} | {regression} | {rate} | {' | '.join(parts)} |")
    return "\n".join(lines)
