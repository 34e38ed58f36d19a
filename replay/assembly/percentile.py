"""The one definition of a percentile in this product: an order statistic of the sample, so that people can recompute it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

_Weighted = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
CUT_BITS = 44
"""Of 64, which a large sample is not counted by: what is left tells values apart that differ by 1 / 256."""


def rank(n: int, percent: float) -> int:
    """Return the place (1 = smallest) of the percentile among `n` sorted values: ceil(n x percent / 100), at least 1.

    Type 1 of Hyndman and Fan (1996), the inverse of the empirical distribution. Exact for a percent written in decimals.

    Raises:
        ValueError: no values, or a percent outside 0..100.
    """
    if n < 1 or not 0.0 <= percent <= 100.0:
        raise ValueError(f"no percentile {percent} of {n} values")
    share = _share(percent)
    return max(1, -(-n * share.numerator // share.denominator))


def ranks(counts: npt.NDArray[np.int64], percent: float) -> npt.NDArray[np.int64]:
    """Return `rank` for many sample sizes at once [counts]; 1 also for an empty sample, whose percentile the caller leaves out."""
    share = _share(percent)
    return np.maximum(1, -(-counts * share.numerator // share.denominator))


def samples_needed(beyond: int, percent: float) -> int:
    """Return the fewest values among which at least `beyond` lie beyond the percentile: n - rank(n, percent) >= beyond.

    Raises:
        ValueError: nothing ever lies beyond the percentile (100), nothing is asked to, or a percent of 0 or less.
    """
    if beyond < 1 or not 0.0 < percent < 100.0:
        raise ValueError(f"no sample has {beyond} values beyond percentile {percent}")
    # Above 0, n - rank is floor(n x (1 - share)), so it reaches `beyond` at ceil(beyond / (1 - share)).
    outside = 1 - _share(percent)
    return -(-beyond * outside.denominator // outside.numerator)


def weighted_percentile(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], percent: float) -> float:
    """Return the percentile of a sample in which each value occurs as often as its count says; errors as `rank`."""
    return _at(values, counts, rank(int(counts.sum()), percent))


class LargeSample:
    """A sample of values >= 0 that is larger than memory: counted by their leading bits, which stand in the values' order, then looked up.

    Percentiles are those of `weighted_percentile`, exactly: a second look at the values keeps those that share their leading bits with one.
    """

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(1 << (63 - CUT_BITS), dtype=np.int64)

    def add(self, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64] | None = None) -> None:
        """Count values, each as often as its count says, or once; raises ValueError where one is negative."""
        if not len(values):
            return
        cells = _cells(values)
        first = int(cells.min())
        if first < 0:
            raise ValueError("a sample of values >= 0 has a negative one")
        found = np.bincount(cells - first, weights=counts)
        self._counts[first : first + len(found)] += found.astype(np.int64)

    def percentiles(self, percents: Sequence[float], again: Iterable[_Weighted]) -> list[float | None]:
        """Return the percentiles, None for an empty sample; `again` are the values that were added, and how often each occurs."""
        upto = np.cumsum(self._counts)
        if upto[-1] == 0:
            return [None] * len(percents)
        places = [rank(int(upto[-1]), percent) for percent in percents]
        cells = np.searchsorted(upto, places)
        kept: dict[int, list[_Weighted]] = {int(cell): [] for cell in cells}
        for values, counts in again:
            of = _cells(values)
            for cell, parts in kept.items():
                parts.append(_merged(values[of == cell], counts[of == cell]))
        found: list[float | None] = []
        for cell, place in zip(cells, places, strict=True):
            values, counts = (np.concatenate(parts) for parts in zip(*kept[int(cell)], strict=True))
            found.append(_at(values, counts, place - int(upto[cell] - self._counts[cell])))
        return found


def _cells(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return (values + 0.0).view(np.int64) >> CUT_BITS  # + 0.0: no minus zero


def _merged(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> _Weighted:
    """Return the distinct values, ascending, and how often each occurs."""
    distinct, place = np.unique(values, return_inverse=True)
    return distinct, np.bincount(place, weights=counts, minlength=len(distinct)).astype(np.int64)


def _at(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], place: int) -> float:
    """Return the value at a place (1 = smallest) of a sample in which each value occurs as often as its count says."""
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(counts[order]), place)]])


def _share(percent: float) -> Fraction:
    """Return the percent as the exact fraction that its decimals say."""
    return Fraction(str(percent)) / 100


def percentile(values: npt.NDArray[np.float64] | Sequence[float], percent: float) -> float:
    """Return the percentile of values without missing ones, in any order; errors as `rank`."""
    sample = np.asarray(values, dtype=np.float64)
    place = rank(len(sample), percent) - 1
    return float(np.partition(sample, place)[place])
