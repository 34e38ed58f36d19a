"""How long replicas were busy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import Floats


def busy_seconds(steps: pa.Table, ended_s: Floats | None = None) -> Floats:
    """Return the time of each step of STEPS_SCHEMA in which no earlier one of its replica was under way [steps].

    It adds up to the time in which a step was, each replica's counted: of steps that overlap in a pipeline nothing counts twice. Steps of a
    replica start and end in the order in which they are composed. Where `steps` go on from others, `ended_s` says when the last of each
    replica ended [replicas]; it is brought up to date.
    """
    start_s, end_s, replica = (steps[name].to_numpy() for name in ("start_s", "end_s", "replica"))
    busy_s: Floats = np.empty(len(start_s))
    if not len(start_s):
        return busy_s
    by_replica = np.argsort(replica, kind="stable") if replica.any() else slice(None)
    before_s = np.append(0.0, end_s[by_replica][:-1])
    last = np.append(np.flatnonzero(np.diff(replica[by_replica])), len(start_s) - 1)
    first, of = np.append(0, last[:-1] + 1), replica[by_replica][last]
    before_s[first] = 0.0 if ended_s is None else ended_s[of]
    busy_s[by_replica] = end_s[by_replica] - np.maximum(start_s[by_replica], before_s)
    if ended_s is not None:
        ended_s[of] = end_s[by_replica][last]
    return busy_s
