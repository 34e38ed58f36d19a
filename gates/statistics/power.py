"""How much can be seen with the data at hand, and how much more would decide."""

from __future__ import annotations

import math
from statistics import NormalDist

from gates.statistics.student import t_bound

POWER = 0.80
_MOST_RUNS = 10_000


def detectable_effect(standard_deviation: float, alpha: float, degrees: float = math.inf) -> float:
    """Return the smallest true effect found with 80 % power at one-sided `alpha`: 2.49 standard deviations at 0.05.

    With few degrees of freedom the t bound takes the place of the normal one.
    """
    normal = NormalDist()
    needed = normal.inv_cdf(1 - alpha) if math.isinf(degrees) else t_bound(alpha, degrees)
    return (needed + normal.inv_cdf(POWER)) * standard_deviation


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


def needed_runs(run_sd: float, margin: float, alpha: float, prior_degrees: float = 0.0) -> int | None:
    """Return the runs per arm R that show an unchanged candidate inside a relative `margin` with 80 % power; None above 10,000.

    The smallest R >= 2 with R >= 2 [run_sd (t + z) / log(1 + margin)]^2, t at 2 (R - 1) + `prior_degrees`; `run_sd` is the
    standard deviation between runs of the log percentile (the amplification by the queue times that of the step time).
    """
    limit = math.log1p(margin)
    for runs in range(2, _MOST_RUNS + 1):
        degrees = 2 * (runs - 1) + prior_degrees
        if detectable_effect(math.sqrt(2.0 / runs) * run_sd, alpha, degrees) <= limit:
            return runs
    return None


def needed_requests(n: int, within: float, between: float, margin: float, alpha: float) -> int | None:
    """Return the requests of one pair that show an unchanged candidate inside a relative `margin` with 80 % power.

    `within` is the standard error at `n` requests, which shrinks with their square root; `between` is the run effect of the
    pair's log ratio, which does not: None where it alone exceeds what the margin allows, so that only more runs help.
    """
    allowed = math.log1p(margin) / detectable_effect(1.0, alpha)
    if between >= allowed:
        return None
    return max(n, math.ceil(n * within**2 / (allowed**2 - between**2)))
