"""The influence of each request on a log percentile: what dependence, batch means and control variates are computed from."""

from __future__ import annotations

import math

import numpy as np

from gates.statistics.blocks import Floats
from replay.assembly.percentile import rank

FEWEST_BEYOND = 4
"""Values beyond a percentile from which the slope of the tail around it can be read from two order statistics."""


def tail_influence(values: Floats, percent: float) -> Floats:
    """Return [n] each value's influence on the log of the percentile; their mean is 0 but for the rank's rounding.

    (1{x > q} - beyond / n) scale / (beyond / n q): the density at q is that of an exponential tail through the order statistics
    at half and at one and a half times the number beyond (scale = their distance / log 3), which needs no bandwidth.

    Raises:
        ValueError: fewer than 4 values lie beyond the percentile, or it is not above 0.
    """
    n = len(values)
    beyond = n - rank(n, percent)
    if beyond < FEWEST_BEYOND:
        raise ValueError(f"{beyond} values lie beyond p{percent:g}; {FEWEST_BEYOND} are needed")
    half = beyond // 2
    places = np.array([n - beyond - 1 - half, n - beyond - 1, n - beyond - 1 + half])
    places = np.maximum(places, 0)
    low, middle, high = np.partition(values, places)[places]
    if middle <= 0:
        raise ValueError(f"p{percent:g} is {middle:g}; a ratio needs it above 0")
    scale = (high - low) / math.log((beyond + half) / (beyond - half))
    share = beyond / n
    influence: Floats = ((values > middle) - share) * (scale / (share * middle))
    return influence


def log_ratio_influence(baseline: Floats, candidate: Floats, percent: float) -> Floats:
    """Return [n] the influence of each request of a pair on log(candidate's / baseline's percentile); errors as `tail_influence`."""
    difference: Floats = tail_influence(candidate, percent) - tail_influence(baseline, percent)
    return difference


def block_means(series: Floats, blocks: int) -> Floats:
    """Return [blocks] the means of `blocks` runs of consecutive values, as equal in length as whole numbers allow."""
    edges = np.linspace(0, len(series), blocks + 1).astype(np.int64)
    means: Floats = np.add.reduceat(series, edges[:-1]) / np.diff(edges)
    return means


def batches_for(n: int) -> int:
    """Return the number of batches: 25, or 10 below 10,000 requests, where 25 were shorter than the noise is correlated."""
    return 25 if n >= 10_000 else 10


def batch_error(series: Floats, batches: int) -> float:
    """Return the standard error of the mean of a dependent series from its batch means, with `batches` - 1 degrees of freedom."""
    return float(np.std(block_means(series, batches), ddof=1)) / math.sqrt(batches)
