"""The one definition of a percentile in this product: an order statistic of the sample, so that people can recompute it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt


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
    order = np.argsort(values)
    upto = np.cumsum(counts[order])
    place = rank(int(upto[-1]) if len(upto) else 0, percent)
    return float(values[order[np.searchsorted(upto, place)]])


def _share(percent: float) -> Fraction:
    """Return the percent as the exact fraction that its decimals say."""
    return Fraction(str(percent)) / 100


def percentile(values: npt.NDArray[np.float64] | Sequence[float], percent: float) -> float:
    """Return the percentile of values without missing ones, in any order; errors as `rank`."""
    sample = np.asarray(values, dtype=np.float64)
    place = rank(len(sample), percent) - 1
    return float(np.partition(sample, place)[place])
