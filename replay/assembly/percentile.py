"""The one definition of a percentile in this product: an order statistic of the sample, so that people can recompute it."""

from __future__ import annotations

import math
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
    return max(1, math.ceil(n * Fraction(str(percent)) / 100))


def percentile(values: npt.NDArray[np.float64] | Sequence[float], percent: float) -> float:
    """Return the percentile of values without missing ones, in any order; errors as `rank`."""
    sample = np.asarray(values, dtype=np.float64)
    place = rank(len(sample), percent) - 1
    return float(np.partition(sample, place)[place])
