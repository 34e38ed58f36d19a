"""Clock, power, temperature and energy of a replay by window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.execution.step_costs import Counts, Floats
from replay.execution.tables import Replay
from replay.tiling.step_table import StepTable

POWER_COLUMNS = ("clock_hz", "power_w", "temperature_c", "energy_j", "joules_per_token", "joules_per_output_token")
"""The columns of WINDOWS_SCHEMA that rows of whole steps have where the device has power."""


def window_power(replay: Replay, table: StepTable, tokens: Counts, window_s: float) -> dict[str, pa.Array]:
    """Return POWER_COLUMNS [windows], all null without power; `tokens` are those of WINDOWS_SCHEMA [windows].

    - `clock_hz`: mean over the time in which steps that start in the window run. `temperature_c`: the highest at the end of one of them.
    - `energy_j`: of all ranks of all replicas, in the time between the window's edges; a step spends its energy evenly from its start, or
      from when its kernels are compiled, to its end, and all other time is spent at idle power. The last window ends with the last step.
    - `power_w`: mean of one device, which is what the cap holds for.
    - `joules_per_token`: energy over the window's tokens, `joules_per_output_token` over those that its steps emit.

    Null where there is nothing to divide by.
    """
    power = table.power
    if power is None:
        return {name: pa.nulls(len(tokens), pa.float64()) for name in POWER_COLUMNS}
    steps, windows = replay.steps, len(tokens)
    start_s, compile_s, end_s, step_j, clock_hz, temperature_c, outputs = (
        steps[name].to_numpy() for name in ("start_s", "compile_s", "end_s", "energy_j", "clock_hz", "temperature_c", "output_tokens")
    )
    last_s = (windows - 1) * window_s
    edges_s = np.append(window_s * np.arange(windows), max(last_s, float(end_s.max(initial=0.0))))
    window = np.floor(start_s / window_s).astype(np.int64)
    peak_c = np.full(windows, -np.inf)
    np.maximum.at(peak_c, window, temperature_c)
    behind_hz = power.full_clock_hz - clock_hz  # exactly 0 where nothing holds the clock back
    runs_at_s = start_s + compile_s
    run_s, device_s = end_s - runs_at_s, table.limits.all_replicas_count * power.ranks_count * np.diff(edges_s)
    active_j = step_j - power.ranks_count * power.idle_w * (end_s - start_s)
    energy_j = power.idle_w * device_s + _spent(runs_at_s, end_s, active_j, edges_s)
    mean_behind_hz = _share(_by_window(window, run_s * behind_hz, windows), _by_window(window, run_s, windows))
    return {
        "clock_hz": pc.subtract(pa.scalar(power.full_clock_hz), mean_behind_hz),
        "power_w": _share(energy_j, device_s),
        "temperature_c": pa.array(peak_c, mask=np.isinf(peak_c)),
        "energy_j": pa.array(energy_j),
        "joules_per_token": _share(energy_j, tokens),
        "joules_per_output_token": _share(energy_j, _by_window(window, outputs, windows)),
    }


def _spent(start_s: Floats, end_s: Floats, energy_j: Floats, edges_s: Floats) -> Floats:
    """Return what steps, each of which spends its energy evenly, spend between the edges of each window [windows]."""
    windows = len(edges_s) - 1
    first, last = (np.clip(np.searchsorted(edges_s, at_s, side="right") - 1, 0, windows - 1) for at_s in (start_s, end_s))
    step = np.repeat(np.arange(len(start_s)), last - first + 1)
    window = np.arange(len(step)) - np.repeat(np.cumsum(last - first + 1) - (last - first + 1), last - first + 1) + first[step]
    inside_s = np.minimum(end_s[step], edges_s[window + 1]) - np.maximum(start_s[step], edges_s[window])
    duration_s = (end_s - start_s)[step]
    share = np.divide(inside_s, duration_s, out=np.ones(len(step)), where=duration_s > 0.0)
    return _by_window(window, energy_j[step] * share, windows)


def _share(amount: Floats, whole: Floats | Counts) -> pa.Array:
    nothing = np.asarray(whole) == 0
    return pa.array(np.divide(amount, whole, out=np.zeros(len(amount)), where=~nothing), mask=nothing)


def _by_window(window: Counts, amounts: Floats, windows: int) -> Floats:
    return np.asarray(np.bincount(window, weights=amounts, minlength=windows), dtype=np.float64)
