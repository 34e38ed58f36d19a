"""Clock, power, temperature and energy of a replay by window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.assembly.room import with_room
from replay.execution.step_costs import Counts, Floats
from replay.tiling.step_table import StepTable

POWER_COLUMNS = ("clock_hz", "power_w", "temperature_c", "energy_j", "joules_per_token", "joules_per_output_token")
"""The columns of WINDOWS_SCHEMA that rows of whole steps have where the device has power."""


class PowerSums:
    """Clock, power, temperature and energy by window, added up piece by piece."""

    def __init__(self, table: StepTable, window_s: float) -> None:
        self._power, self._replicas_count, self._window_s = table.power, table.limits.all_replicas_count, window_s
        self._sums: Floats = np.zeros((0, 4))
        """Time of steps, it times what their clocks were behind, output tokens, energy above idle [windows, 4]."""
        self._peak_c: Floats = np.zeros(0)
        self._late = np.zeros((3, 0))
        """Start and end at power, and energy above idle, of steps that end after the last window so far [3, steps]."""
        self._end_s = 0.0

    def add(self, steps: pa.Table, windows: int) -> None:
        """Add steps that start in so many windows."""
        power = self._power
        if power is None:
            return
        self._sums, self._peak_c = with_room(self._sums, windows), with_room(self._peak_c, windows, -np.inf)
        start_s, compile_s, end_s, step_j, clock_hz, temperature_c, outputs = (
            steps[name].to_numpy() for name in ("start_s", "compile_s", "end_s", "energy_j", "clock_hz", "temperature_c", "output_tokens")
        )
        window = np.floor(start_s / self._window_s).astype(np.int64)
        np.maximum.at(self._peak_c, window, temperature_c)
        behind_hz = power.full_clock_hz - clock_hz  # exactly 0 where nothing holds the clock back
        runs_at_s = start_s + compile_s
        run_s, active_j = end_s - runs_at_s, step_j - power.ranks_count * power.idle_w * (end_s - start_s)
        for place, amounts in enumerate((run_s, run_s * behind_hz, outputs)):
            self._sums[:windows, place] += _by_window(window, amounts, windows)
        self._end_s = max(self._end_s, float(end_s.max(initial=0.0)))
        self._spend(np.hstack([self._late, np.stack([runs_at_s, end_s, active_j])]), _edges(windows, self._window_s))

    def columns(self, tokens: Counts) -> dict[str, pa.Array]:
        """Return POWER_COLUMNS [windows], all null without power; `tokens` are those of WINDOWS_SCHEMA [windows].

        - `clock_hz`: mean over the time in which steps that start in the window run. `temperature_c`: the highest at the end of one.
        - `energy_j`: of all ranks of all replicas, in the time between the window's edges; a step spends its energy evenly from its start,
          or from when its kernels are compiled, to its end, and all other time is spent at idle power. The last window ends with the last
          step.
        - `power_w`: mean of one device, which is what the cap holds for.
        - `joules_per_token`: energy over the window's tokens, `joules_per_output_token` over those that its steps emit.

        Null where there is nothing to divide by.
        """
        power, windows = self._power, len(tokens)
        if power is None:
            return {name: pa.nulls(windows, pa.float64()) for name in POWER_COLUMNS}
        edges_s = _edges(windows, self._window_s)
        edges_s[-1] = max(edges_s[-2], self._end_s)
        self._spend(self._late, edges_s)
        run_s, run_s_behind_hz, outputs, active_j = self._sums[:windows].T
        peak_c, device_s = self._peak_c[:windows], self._replicas_count * power.ranks_count * np.diff(edges_s)
        energy_j = power.idle_w * device_s + active_j
        return {
            "clock_hz": pc.subtract(pa.scalar(power.full_clock_hz), _share(run_s_behind_hz, run_s)),
            "power_w": _share(energy_j, device_s),
            "temperature_c": pa.array(peak_c, mask=np.isinf(peak_c)),
            "energy_j": pa.array(energy_j),
            "joules_per_token": _share(energy_j, tokens),
            "joules_per_output_token": _share(energy_j, outputs),
        }

    def _spend(self, steps: Floats, edges_s: Floats) -> None:
        """Add the energy of steps [3, steps] that end by the last edge; keep the others for when there are more windows."""
        late = steps[1] > edges_s[-1]
        self._late = steps[:, late]
        start_s, end_s, energy_j = steps[:, ~late]
        self._sums[: len(edges_s) - 1, 3] += _spent(start_s, end_s, energy_j, edges_s)


def _edges(windows: int, window_s: float) -> Floats:
    """Return where windows of equal length begin, and where the last one ends [windows + 1]."""
    return np.asarray(window_s * np.arange(windows + 1), dtype=np.float64)


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
