"""Paired means where values of one document or prompt depend on each other: whole clusters are resampled."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gates.statistics.blocks import Floats
from gates.statistics.estimate import Estimate, from_replicates, from_t

_MOST_RESAMPLED = 10_000
"""Clusters up to which they are resampled; of more, the mean is normal to any accuracy that matters, and its t interval costs nothing."""


def clustered_difference(
    differences: Floats,
    weights: Floats,
    clusters: npt.NDArray[np.int64],
    *,
    replicates: int,
    alpha: float,
    generator: np.random.Generator,
) -> Estimate:
    """Return the estimate of the weighted mean of paired differences [items], whose `clusters` [items] count from 0.

    A paired bootstrap over clusters (Koehn 2004), with bounds widened for few of them; beyond 10,000 clusters the t interval of the
    clustered standard error (Miller, arXiv 2411.00640, 3.2).

    Raises:
        ValueError: there are fewer than two clusters.
    """
    count = int(clusters.max()) + 1 if len(clusters) else 0
    if count < 2:
        raise ValueError(f"{count} clusters; want two or more")
    sums = np.bincount(clusters, weights * differences, count)
    totals = np.bincount(clusters, weights, count)
    estimate = float(sums.sum() / totals.sum())
    if count > _MOST_RESAMPLED:
        residuals = sums - estimate * totals
        error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / float(totals.sum())
        found = from_t("clustered_t", estimate, error, float(count - 1), alpha)
    else:
        means = np.empty(replicates)
        for row in range(replicates):
            drawn = generator.integers(0, count, count)
            means[row] = sums[drawn].sum() / totals[drawn].sum()
        found = from_replicates("cluster_bootstrap", estimate, means, float(count - 1), alpha)
    return replace(found, scale="difference")
