"""Sums by window that grow with the replay."""

from __future__ import annotations

import numpy as np

from replay.execution.step_costs import Floats


def with_room(sums: Floats, windows: int, empty: float = 0.0) -> Floats:
    """Return sums [windows or more, ...] with room for so many windows, `empty` in the new ones; they at least double where they grow."""
    if len(sums) >= windows:
        return sums
    grown = np.full((max(windows, 2 * len(sums)), *sums.shape[1:]), empty)
    grown[: len(sums)] = sums
    return grown
