"""Stability: clocks that fall and devices that still heat up at the end of a run, in the candidate alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gates.checks.check import Evidence
from gates.finding import Effect, Finding

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.statistics.blocks import Floats
    from replay.assembly.run import Run

CLOCK_TOLERANCE = 0.01
"""Share of its highest clock that an arm may lose by the end: about one step of 15 MHz in 2 GHz, by which clocks are set."""
HEATING_TOLERANCE_C = 1.0
"""Devices report whole degrees."""


def stays_fast(evidence: Evidence) -> Iterator[Finding]:
    """Find candidates whose clock falls under sustained load where the baseline's does not, and ones that still heat up at the end."""
    arms = evidence.baseline, evidence.candidate
    clocks = [_clocks(run) for run in arms]
    if clocks[0] is not None and clocks[1] is not None:
        falls = [1.0 - last / peak for peak, last in (clocks[0], clocks[1])]
        if falls[1] > CLOCK_TOLERANCE >= falls[0]:
            peak, last = clocks[1]
            message = (
                f"the candidate's clock falls from {peak / 1e6:.0f} to {last / 1e6:.0f} MHz (-{100 * falls[1]:.1f} %) in the last third of "
                f"the run and the baseline's by {100 * max(falls[0], 0.0):.1f} %: what it does at first it does not sustain{_drifts(*arms)}"
            )
            yield _thermal("candidate_throttles", message, disproves=evidence.policy.throttling == "disproves")
    rises = [_heating_c(run) for run in arms]
    if rises[0] is not None and rises[1] is not None and rises[1] > HEATING_TOLERANCE_C >= rises[0]:
        message = (
            f"the candidate's device is {rises[1]:.1f} C hotter in the last third of the run than in the second, and the baseline's "
            f"{max(rises[0], 0.0):.1f} C: it still heats up when the trace ends, so what it sustains is not in the evidence"
        )
        yield _thermal("candidate_still_heating", message, disproves=False)


def _thermal(code: str, message: str, *, disproves: bool) -> Finding:
    effect: Effect = "disproves" if disproves else "informs"
    return Finding(code=code, message=message, effect=effect, stage="quality_sla", bottleneck_class="thermal")


def _drifts(baseline: Run, candidate: Run) -> str:
    from gates.measure.window_drift import drift_point

    points = drift_point("throughput_tokens_per_s", baseline, candidate)
    if not all(map(math.isfinite, points)):
        return ""
    return f"; tokens per busy second of the last third over the first: baseline {1 / points[0]:.3g}, candidate {1 / points[1]:.3g}"


def _whole(run: Run) -> pa.Table:
    import pyarrow.compute as pc

    from replay.assembly.layers import ALL_LAYERS

    return run.windows.filter(pc.equal(run.windows["layer_type"], ALL_LAYERS))


def _clocks(run: Run) -> tuple[float, float] | None:
    """Return (highest clock of a window, mean clock of the last third weighted by busy time), Hz; None where either is missing."""
    rows = _whole(run)
    clock_hz, busy_s = _floats(rows, "clock_hz"), _floats(rows, "time_s")
    third = slice(-(len(clock_hz) // 3), None) if len(clock_hz) >= 3 else slice(0)
    known = np.isfinite(clock_hz[third])
    weights = busy_s[third][known]
    if not weights.sum() > 0:
        return None
    return float(np.nanmax(clock_hz)), float(clock_hz[third][known] @ weights / weights.sum())


def _heating_c(run: Run) -> float | None:
    """Return how much hotter the device gets in the last third of the windows than in the second, C; None where that is not known."""
    temperature_c = _floats(_whole(run), "temperature_c")
    third = len(temperature_c) // 3
    parts = temperature_c[third : len(temperature_c) - third], temperature_c[len(temperature_c) - third :]
    if any(not np.isfinite(part).any() for part in parts):
        return None
    second_c, last_c = (float(np.nanmax(part)) for part in parts)
    return last_c - second_c


def _floats(rows: pa.Table, name: str) -> Floats:
    values: Floats = rows[name].to_numpy().astype(np.float64)
    return values
