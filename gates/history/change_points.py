"""Change points of a series by E-divisive: where the energy distance between what lies before and after is largest.

Matteson & James, "A Nonparametric Approach for Multiple Change Point Analysis of Multivariate Data", J. Am. Stat. Assoc. 109 (2014),
section 3: hierarchical bisection; in each segment the split with the largest scaled energy statistic (exponent 1), kept where a
permutation test within the segment rejects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replay.seeds import stream

METHOD = "E-divisive (Matteson & James 2014), exponent 1, permutation test within the segment"
FEWEST_POINTS = 5
"""Least points on each side of a change: with 5 and 5 a full split has 1 / 252 of the permutations, so p can fall below 0.05."""
PERMUTATIONS = 199
SIGNIFICANCE = 0.05
LONGEST = 300
"""Points looked at, the latest ones: the statistic takes memory and time of the square."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A place from which on a series is another one."""

    index: int
    """First point after the change."""
    p_value: float
    before: float
    """Mean of the segment before, and of that after, in the series' unit."""
    after: float


def change_points(series: Floats, seed: int) -> tuple[ChangePoint, ...]:
    """Return the change points of a series [points] in their order; its latest LONGEST points are looked at."""
    offset = max(0, len(series) - LONGEST)
    values = np.asarray(series[offset:], dtype=np.float64)
    rng = stream(seed, "history.change_points")
    waiting, found = [(0, len(values))], {}
    while waiting:
        start, end = waiting.pop()
        split = _significant_split(values[start:end], rng)
        if split is not None:
            found[start + split[0]] = split[1]
            waiting += [(start + split[0], end), (start, start + split[0])]
    edges = [0, *sorted(found), len(values)]
    return tuple(
        ChangePoint(
            index=offset + place,
            p_value=found[place],
            before=float(values[before:place].mean()),
            after=float(values[place:after].mean()),
        )
        for before, place, after in zip(edges, edges[1:-1], edges[2:], strict=False)
    )


def energy_split(values: Floats) -> tuple[int, float]:
    """Return the split of a segment with the largest scaled energy statistic, and the statistic (0 where none is possible).

    Q(X, Y) = nm / (n + m) x (2 mean|x - y| - mean of the pairs |x - x'| - mean of the pairs |y - y'|) (equations 5 and 6). The right
    part may end before the segment does, as in equation 7, so that a change back does not hide the change.
    """
    n = len(values)
    if n < 2 * FEWEST_POINTS:
        return 0, 0.0
    sums = np.zeros((n + 1, n + 1))
    np.cumsum(np.cumsum(np.abs(values[:, None] - values[None, :]), axis=0), axis=1, out=sums[1:, 1:])
    inside = np.diag(sums)  # of the first k points, each pair twice
    left, right = np.meshgrid(np.arange(FEWEST_POINTS, n - FEWEST_POINTS + 1), np.arange(2 * FEWEST_POINTS, n + 1), indexing="ij")
    sizes, others = left.astype(np.float64), (right - left).astype(np.float64)
    possible = others >= FEWEST_POINTS
    others = np.where(possible, others, FEWEST_POINTS)
    across = sums[left, right] - inside[left]
    after = inside[right] - inside[left] - 2 * across
    distance = 2 * across / (sizes * others) - inside[left] / (sizes * (sizes - 1)) - after / (others * (others - 1))
    statistic = np.where(possible, sizes * others / (sizes + others) * distance, -np.inf)
    best = np.unravel_index(int(np.argmax(statistic)), statistic.shape)
    return int(left[best]), float(statistic[best])


def _significant_split(values: Floats, rng: np.random.Generator) -> tuple[int, float] | None:
    place, statistic = energy_split(values)
    if statistic <= 0:
        return None
    least = statistic * (1 - 1e-9)  # sums in another order must not make an equal statistic a smaller one
    beyond = 0
    for _ in range(PERMUTATIONS):
        beyond += energy_split(rng.permutation(values))[1] >= least
        if 1 + beyond > SIGNIFICANCE * (PERMUTATIONS + 1):  # whatever follows, it will not reject
            return None
    return place, (1 + beyond) / (PERMUTATIONS + 1)
