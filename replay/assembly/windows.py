"""How a replay went over time, in windows of equal length."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from replay.assembly.layers import KernelShare, LayerSteps, layer_steps
from replay.assembly.run import WINDOWS_SCHEMA
from replay.execution.step_costs import Counts
from replay.execution.tables import Replay
from replay.ingress.trace import Trace

LONGEST_WINDOW_S = 60.0
FEWEST_WINDOWS = 25
"""Block resampling of windows needs about this many to estimate a spread."""
SHORTEST_WINDOW_S = 0.1
"""A burst may take far longer to serve than to arrive: keeps the number of windows in proportion to the steps."""
ALL_LAYERS = "all"


def window_length_s(trace: Trace) -> float:
    """Return the window for a trace: span / 25, but at most 60 s and at least 0.1 s.

    It depends on nothing but the trace, so that both arms of a comparison have the same windows.
    """
    return min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, trace.span_s / FEWEST_WINDOWS))


def window_table(replay: Replay, shares: list[KernelShare], window_s: float) -> pa.Table:
    """Return WINDOWS_SCHEMA: for each window the table's layer types, `host` and `all`, in this order.

    Windows run from time 0 (the first arrival) to the last arrival or the last step's start, whichever is later; a step counts
    wholly in the window where it starts; windows without steps are present with zeros. `tokens` is the same in every row of
    a window.
    """
    steps = replay.steps
    start_s, end_s = steps["start_s"].to_numpy(), steps["end_s"].to_numpy()
    last_s = max(replay.requests["arrival_s"].to_numpy().max(), start_s.max(initial=0.0))
    windows = math.floor(last_s / window_s) + 1
    window = np.floor(start_s / window_s).astype(np.int64)
    layers = layer_steps(replay, shares)
    whole = LayerSteps(
        layer_type=ALL_LAYERS,
        time_s=end_s - start_s,
        memory_stall_s=np.sum([layer.memory_stall_s for layer in layers], axis=0),
        flops=np.sum([layer.flops for layer in layers], axis=0),
    )
    tokens = np.bincount(window, weights=useful_tokens(replay), minlength=windows)
    parts = []
    for layer in (*layers, whole):
        sums = {
            name: np.bincount(window, weights=getattr(layer, name), minlength=windows) for name in ("time_s", "memory_stall_s", "flops")
        }
        labels = {"window": np.arange(windows), "layer_type": pa.array([layer.layer_type] * windows), "tokens": tokens.astype(np.int64)}
        columns = labels | sums
        parts.append(pa.table({name: columns[name] for name in WINDOWS_SCHEMA.names}, schema=WINDOWS_SCHEMA))
    by_window = np.arange(windows * len(parts)).reshape(len(parts), windows).T.ravel()
    return pa.concat_tables(parts).take(by_window).combine_chunks()


def useful_tokens(replay: Replay) -> Counts:
    """Return the prompt tokens computed for the first time plus the output tokens of each step [steps].

    Computing a token that was generated before yields the next one, so new tokens computed count both, and the first output
    token of a request, which the last prompt token yields, comes on top.
    """
    steps = replay.steps
    first_token_s = replay.requests["first_token_s"].drop_null().to_numpy()
    step = np.searchsorted(steps["end_s"].to_numpy(), first_token_s)  # a first token bears the very end of its step
    first_tokens = np.bincount(step, minlength=steps.num_rows)
    return np.asarray(steps["tokens"].to_numpy() - steps["recomputed_tokens"].to_numpy() + first_tokens)
