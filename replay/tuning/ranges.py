"""Few row ranges with one choice each: what wins is weighed against every further setting."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from replay.tuning.mix import Counts, Floats

LEAVE = 0
"""The choice that needs no setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Consecutive rows of the traffic with one choice."""

    first: int
    """Place of the first row among the traffic's."""
    last: int
    """Place of the last one, inclusive."""
    choice: int


def best_ranges(seconds: Floats, setting_s: float) -> list[RowRange]:
    """Return the ranges of rows that minimise the sum of `seconds` [choices, rows] plus `setting_s` for each range that is set.

    Exact, by dynamic programming over rows (Viterbi 1967): to leave the rows alone (choice 0) costs no setting. Of choices alike
    the first is taken.
    """
    choices, rows = seconds.shape
    setting = np.where(np.arange(choices) == LEAVE, 0.0, setting_s)
    came_from = np.zeros((rows, choices), dtype=np.int64)
    best = seconds[:, 0] + setting
    for row in range(1, rows):
        cheapest = int(np.argmin(best))
        stay, change = best, best[cheapest] + setting
        came_from[row] = np.where(stay <= change, np.arange(choices), cheapest)
        best = np.minimum(stay, change) + seconds[:, row]
    return _walked_back(came_from, int(np.argmin(best)))


def _walked_back(came_from: Counts, last: int) -> list[RowRange]:
    chosen = [last]
    for row in range(len(came_from) - 1, 0, -1):
        chosen.append(int(came_from[row][chosen[-1]]))
    chosen.reverse()
    found = []
    for choice, group in groupby(enumerate(chosen), key=lambda pair: pair[1]):
        places = [place for place, _ in group]
        found.append(RowRange(first=places[0], last=places[-1], choice=choice))
    return found
