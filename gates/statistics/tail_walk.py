"""The walk down the tail, compiled; imported only where claims are judged, for importing the compiler takes long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import Counts, Floats
from replay.compiled import compiled


@compiled
def walk_tails(weights: NDArray[np.int32], order: Counts, descending: Floats, needed: Counts, result: Floats) -> None:
    """Write into `result` [replicates, percents] the value at the place `needed` [replicates, percents] from the top.

    `weights` [replicates, n] says how often each unit occurs in a replicate, `order` [k] lists the units by `descending` [k]
    value. Places of 0 (an empty resample) are left as they are; every other place is at most the sum of the weights of `order`.
    """
    for replicate in range(needed.shape[0]):
        row = weights[replicate]
        for column in range(needed.shape[1]):
            place = needed[replicate, column]
            if place == 0:
                continue
            passed, step = 0, -1
            while passed < place:
                step += 1
                passed += row[order[step]]
            result[replicate, column] = descending[step]
