"""How a replay went over time, in windows of equal length."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from replay.assembly.layers import TimeShares
from replay.assembly.run import WINDOWS_SCHEMA
from replay.execution.tables import Replay
from replay.ingress.streamed import StreamedTrace
from replay.ingress.trace import Trace

LONGEST_WINDOW_S = 60.0
CLOSED_LOOP_WINDOW_S = 1.0
FEWEST_WINDOWS = 25
"""Block resampling of windows needs about this many to estimate a spread."""
SHORTEST_WINDOW_S = 0.1
"""A burst may take far longer to serve than to arrive: keeps the number of windows in proportion to the steps."""


def window_length_s(trace: Trace | StreamedTrace) -> float:
    """Return the window for a trace: span / 25, but at most 60 s and at least 0.1 s; 1 s where it has no arrivals.

    It depends on nothing but the trace, so that both arms of a comparison have the same windows.
    """
    if not trace.has_arrivals:
        return CLOSED_LOOP_WINDOW_S
    return min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, trace.span_s / FEWEST_WINDOWS))


def window_count(replay: Replay, window_s: float) -> int:
    """Return the windows from time 0 (the first arrival) to the last arrival or the last step's start, whichever is later."""
    last_s: float = max(replay.requests["arrival_s"].to_numpy().max(initial=0.0), replay.steps["start_s"].to_numpy().max(initial=0.0))
    return math.floor(last_s / window_s) + 1


def window_table(shares: TimeShares, power: dict[str, pa.Array]) -> pa.Table:
    """Return WINDOWS_SCHEMA: for each window the layers of `shares` in their order; `power` stands in the row of `all`, their last.

    Windows without steps are present with zeros. `tokens` is the same in every row of a window.
    """
    windows, layers = shares.time_s.shape
    names = pa.DictionaryArray.from_arrays(np.tile(np.arange(layers, dtype=np.int32), windows), pa.array(shares.layers, pa.string()))
    columns = {
        "window": np.repeat(np.arange(windows), layers),
        "layer_type": names.cast(pa.string()),
        "time_s": shares.time_s.ravel(),
        "memory_stall_s": shares.memory_stall_s.ravel(),
        "flops": shares.flops.ravel(),
        "tokens": np.repeat(shares.tokens, layers),
    }
    places = np.full((windows, layers), -1, dtype=np.int64)
    places[:, -1] = np.arange(windows)
    rows = pa.array(places.ravel(), mask=places.ravel() < 0)
    columns |= {name: column.take(rows) for name, column in power.items()}
    return pa.table({name: columns[name] for name in WINDOWS_SCHEMA.names}, schema=WINDOWS_SCHEMA)
