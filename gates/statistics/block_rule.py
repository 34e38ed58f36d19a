"""How long a block must be, so that what depends on each other is drawn together."""

from __future__ import annotations

import math

import numpy as np

from gates.statistics.blocks import Floats

FEWEST_BLOCKS = 25


def automatic_length(series: Floats) -> float:
    """Return the block length (a real number >= 1) that Politis & White (2004) choose for circular blocks.

    With the correction of Patton, Politis & White (2009): (2 G^2 / D)^(1/3) n^(1/3), D = 4/3 g(0)^2, where g is the flat-top
    estimate of the spectral density at 0, and at most ceil(min(3 sqrt(n), n / 3)). 1 for a series without variance.
    """
    n = len(series)
    runs = max(5, int(math.log10(n))) if n > 1 else 5
    lags = min(math.ceil(math.sqrt(n)) + runs, n - 1)
    covariance = _autocovariances(series, lags + 1)
    if n < 2 * runs or covariance[0] <= 0:
        return 1.0
    window = _flat_top_lag(series, covariance, runs, lags)
    steps = np.arange(1, window + 1)
    taper = np.minimum(1.0, 2.0 * (1.0 - steps / window))
    slope = 2.0 * float((taper * steps * covariance[1 : window + 1]).sum())
    density = float(covariance[0]) + 2.0 * float((taper * covariance[1 : window + 1]).sum())
    longest = math.ceil(min(3.0 * math.sqrt(n), n / 3.0))
    if density == 0.0:
        return float(longest)
    length = math.cbrt(2.0 * slope**2 / (4.0 / 3.0 * density**2) * n)
    return min(float(longest), max(1.0, length))


def block_rule(series: Floats, *, busy_period: float = 0.0) -> int:
    """Return the block length for an influence series [n]: the longest of the automatic one, sqrt(n) and a mean busy period.

    `busy_period` counts requests. At least 25 blocks are left (fewer only where there are fewer than 25 requests).
    """
    n = len(series)
    wanted = math.ceil(max(automatic_length(series), math.sqrt(n), busy_period))
    return max(1, min(wanted, n // FEWEST_BLOCKS))


def _autocovariances(series: Floats, count: int) -> Floats:
    """Return [count] the autocovariances at lags 0.., each divided by n, by Fourier transform."""
    n = len(series)
    centred = series - series.mean()
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    found: Floats = np.fft.irfft(spectrum * np.conj(spectrum), size)[:count] / n
    return found


def _flat_top_lag(series: Floats, covariance: Floats, runs: int, lags: int) -> int:
    """Return M: twice the lag after which `runs` autocorrelations are all within 2 sqrt(log10(n) / n) (2004, section 3.2).

    The correlation at a lag is normed by the values that take part in it, which matters in short series.
    """
    n = len(series)
    squares = np.concatenate([[0.0], np.cumsum((series - series.mean()) ** 2)])
    lag = np.arange(lags + 1)
    norms = np.sqrt((squares[n] - squares[np.minimum(lag + 1, n)]) * squares[np.maximum(n - lag - 1, 0)])
    correlation = np.divide(np.abs(covariance) * n, norms, out=np.zeros(lags + 1), where=norms > 0)
    small = np.concatenate([[0], np.cumsum(correlation < 2.0 * math.sqrt(math.log10(n) / n))])
    quiet = np.flatnonzero(small[runs:-1] - small[: -runs - 1] == runs)
    first = int(quiet[0]) if len(quiet) else None
    return lags if first is None else min(2 * max(first, 1), lags)
