"""How much can be seen with the data at hand, and how much more would decide."""

from __future__ import annotations

import math
from statistics import NormalDist

POWER = 0.80


def detectable_effect(standard_deviation: float, alpha: float) -> float:
    """Return the smallest true effect found with 80 % power at one-sided `alpha`: 2.49 standard deviations at 0.05."""
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha) + normal.inv_cdf(POWER)) * standard_deviation


def needed_count(n: int, effect: float, *, to_limit: float, to_no_change: float) -> int | None:
    """Return the sample size that decides a claim with 80 % power if its estimate stands; None if `n` already should.

    `effect` is the detectable effect at `n`; it shrinks with the square root of the sample size. The estimate lies `to_limit`
    inside the margin's end and `to_no_change` on the worse side of no change (negative: on the other side); the farther of
    the two is the one that decides first.
    """
    distance = max(to_limit, to_no_change)
    if distance <= 0 or effect <= distance:
        return None
    return math.ceil(n * (effect / distance) ** 2)
