"""Student's t and the trigamma function, so that judging needs no scipy; the tests hold them against scipy."""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL_FROM = 1e7
"""Degrees of freedom from which t is the normal distribution to 8 digits."""
_TINY = 1e-300
_NEWTON_STEPS = 200


def t_tail(t: float, degrees: float) -> float:
    """Return P(T > t) of Student's t with `degrees` > 0 degrees of freedom (Abramowitz & Stegun 26.7.1)."""
    if degrees >= _NORMAL_FROM:
        return NormalDist().cdf(-t)
    if t * t < degrees:  # near the middle the other form keeps its digits
        inside = 0.5 * incomplete_beta(0.5, 0.5 * degrees, t * t / (degrees + t * t))
        return 0.5 - math.copysign(inside, t)
    outside = 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t))
    return outside if t >= 0 else 1.0 - outside


def t_bound(alpha: float, degrees: float) -> float:
    """Return the t >= 0 that is passed with probability 0 < `alpha` <= 0.5.

    Newton's method from the normal bound, which lies below: the tail is convex there, so that every step stays below and rises.
    """
    bound = NormalDist().inv_cdf(1.0 - alpha)
    if degrees >= _NORMAL_FROM:
        return bound
    front = math.lgamma(0.5 * degrees + 0.5) - math.lgamma(0.5 * degrees) - 0.5 * math.log(degrees * math.pi)
    for _ in range(_NEWTON_STEPS):
        density = math.exp(front - 0.5 * (degrees + 1.0) * math.log1p(bound * bound / degrees))
        step = (t_tail(bound, degrees) - alpha) / density
        bound += step
        if step <= 1e-13 * bound:
            break
    return bound


def digamma(x: float) -> float:
    """Return the derivative of log gamma at x > 0 (recurrence, then the asymptotic series; Abramowitz & Stegun 6.3.18)."""
    shifted = 0.0
    while x < 12.0:
        shifted -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    return shifted + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))


def trigamma(x: float) -> float:
    """Return the second derivative of log gamma at x > 0 (Abramowitz & Stegun 6.4.12)."""
    shifted = 0.0
    while x < 12.0:
        shifted += 1.0 / (x * x)
        x += 1.0
    square = 1.0 / (x * x)
    return shifted + 1.0 / x + 0.5 * square + square / x * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))


def inverse_trigamma(y: float) -> float:
    """Return the x > 0 with trigamma(x) = y > 0, by bisection of its logarithm."""
    low, high = 1e-8, 1e12
    while high / low > 1.0 + 1e-13:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > y else (low, middle)
    return math.sqrt(low * high)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function (Abramowitz & Stegun 26.5.8, evaluated by Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    numerator, denominator, fraction = 1.0, 0.0, 1.0
    for step in range(10_000):
        denominator = 1.0 / _away_from_zero(1.0 + _coefficient(a, b, x, step) * denominator)
        numerator = _away_from_zero(1.0 + _coefficient(a, b, x, step) / numerator)
        change = numerator * denominator
        fraction *= change
        if step > 0 and abs(change - 1.0) < 1e-15:
            break
    return front * (fraction - 1.0)


def _coefficient(a: float, b: float, x: float, step: int) -> float:
    """Return the `step`-th coefficient of the continued fraction; the 0-th is 1."""
    if step == 0:
        return 1.0
    m = step // 2
    if step % 2 == 0:
        return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
    return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
