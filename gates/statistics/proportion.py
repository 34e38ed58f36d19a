"""How well a rate is known from trials."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(count: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of a rate seen `count` times in `trials` >= 1 (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    centre, spread = count + z * z / 2, z * math.sqrt(count * (trials - count) / trials + z * z / 4)
    return max(0.0, (centre - spread) / (trials + z * z)), min(1.0, (centre + spread) / (trials + z * z))
