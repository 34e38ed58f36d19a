"""Paired yes-or-no results: the score interval for the difference of two shares, McNemar's exact test, the sign test."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from gates.statistics.estimate import Estimate
from gates.statistics.power import detectable_effect
from gates.statistics.student import incomplete_beta

_HALVINGS = 60  # of an interval of doubles: nothing is left between its ends
_NORMAL_DEGREES = 1e9


def paired_shares(lost: int, won: int, n: int, *, alpha: float) -> Estimate:
    """Return the estimate of share(candidate) - share(baseline) of n items, of which only the baseline has `lost` and only the other `won`.

    Bounds by Tango's score interval (Statistics in Medicine 17, 1998, 891-908), which has a width where no item differs; p-values are
    McNemar's exact ones (binomial over the items that differ), never below those of the bounds' own test at `alpha`.
    """
    z = NormalDist().inv_cdf(1.0 - alpha)
    estimate = (won - lost) / n
    error = math.sqrt(max(lost + won - (won - lost) ** 2 / n, 1.0)) / n
    lower = _root(lambda shift: _score(won, lost, n, shift) - z, estimate, -1.0)
    upper = _root(lambda shift: -z - _score(won, lost, n, shift), estimate, 1.0)
    return Estimate(
        method="paired_score",
        estimate=estimate,
        standard_error=error,
        degrees=_NORMAL_DEGREES,
        lower=lower,
        upper=upper,
        alpha=alpha,
        p_no_increase=_at_least_half(won, lost + won),
        p_no_decrease=_at_least_half(lost, lost + won),
        minimum_detectable_effect=detectable_effect(error, alpha, _NORMAL_DEGREES),
        scale="difference",
    )


def sign_test(won: int, lost: int, *, alpha: float) -> Estimate:
    """Return the estimate of the share of decided comparisons that the candidate won, less one half; ties are left out.

    Bounds are those of Clopper and Pearson (1934).

    Raises:
        ValueError: nothing was decided.
    """
    n = won + lost
    if n == 0:
        raise ValueError("no comparison was decided")
    lower = 0.0 if won == 0 else _root(lambda share: alpha - incomplete_beta(won, lost + 1, share), won / n, 0.0)
    upper = 1.0 if lost == 0 else _root(lambda share: alpha - 1.0 + incomplete_beta(won + 1, lost, share), won / n, 1.0)
    error = 0.5 / math.sqrt(n)
    return Estimate(
        method="sign_test",
        estimate=won / n - 0.5,
        standard_error=error,
        degrees=_NORMAL_DEGREES,
        lower=lower - 0.5,
        upper=upper - 0.5,
        alpha=alpha,
        p_no_increase=_at_least_half(won, n),
        p_no_decrease=_at_least_half(lost, n),
        minimum_detectable_effect=detectable_effect(error, alpha, _NORMAL_DEGREES),
        scale="difference",
    )


def _at_least_half(count: int, n: int) -> float:
    """Return the chance of `count` or more of n where each has one half."""
    return 1.0 if count == 0 else incomplete_beta(count, n - count + 1, 0.5)


def _score(won: int, lost: int, n: int, shift: float) -> float:
    """Return Tango's statistic for a true difference `shift`: above 0 where won - lost is more than that explains."""
    b = -won - lost + (2 * n - won + lost) * shift
    c = -lost * shift * (1.0 - shift)
    share_lost = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    variance = n * (2.0 * share_lost + shift * (1.0 - shift))
    gap = won - lost - n * shift
    if variance <= 0.0:
        return 0.0 if gap == 0 else math.copysign(math.inf, gap)
    return gap / math.sqrt(variance)


def _root(function: Callable[[float], float], inside: float, end: float) -> float:
    """Return where a function that is <= 0 at `inside` gets above 0 on the way to `end`; `end` where it does not."""
    if function(end) <= 0:
        return end
    near, far = inside, end
    for _ in range(_HALVINGS):
        middle = (near + far) / 2.0
        near, far = (middle, far) if function(middle) <= 0 else (near, middle)
    return far
