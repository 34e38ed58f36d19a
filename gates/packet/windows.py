"""How both arms of a cell went over time, in a table as long as the trace has windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.assembly.layers import ALL_LAYERS

if TYPE_CHECKING:
    from replay.assembly.run import Run

Document = dict[str, Any]
WINDOWS = "windows.csv"
_OF_WINDOWS = ("time_s", "memory_stall_s", "flops", "tokens", "clock_hz", "power_w", "temperature_c", "energy_j")


def window_rows(arm: str, run: Run) -> Iterator[Document]:
    """Yield a row for each window of a run: start and length, steps, means of sequences and of waiting requests, then `Run.windows`' own.

    A step belongs to the window in which it starts; the means of a window without steps are None.
    """
    rows = [row for row in run.windows.to_pylist() if row["layer_type"] == ALL_LAYERS]
    place = (run.steps["start_s"].to_numpy() / run.window_s).astype(np.int64)
    counts = np.bincount(place, minlength=len(rows))
    sums = {name: _sums(run, name, place, len(rows)) for name in ("sequences", "waiting")}
    for index, row in enumerate(rows):
        yield {
            "arm": arm,
            "window": row["window"],
            "start_s": row["window"] * run.window_s,
            "length_s": run.window_s,
            "steps": int(counts[index]),
            **{f"mean_{name}": None if counts[index] == 0 else float(total[index] / counts[index]) for name, total in sums.items()},
            **{name: row[name] for name in _OF_WINDOWS},
        }


def _sums(run: Run, name: str, place: np.ndarray[Any, np.dtype[np.int64]], windows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the sums of a column of the steps over windows."""
    weights = run.steps[name].to_numpy().astype(np.float64)
    return np.asarray(np.bincount(place, weights=weights, minlength=windows), dtype=np.float64)
