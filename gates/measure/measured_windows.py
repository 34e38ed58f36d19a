"""Tokens or good requests per second of measured runs, by time windows.

Tokens per busy second where the run brings its steps, else per second of its duration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gates.measure.goodput import goodput_windows
from gates.measure.measured import Measured, divide, draw_units, usable
from gates.statistics.blocks import Floats, block_sums
from gates.statistics.estimate import from_arms
from replay.ingress.measured.measured_run import COMPLETED

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from gates.policy import SloLimits
    from gates.statistics.estimate import Method
    from replay.ingress.measured.measured_run import MeasuredRun

WINDOWS_COUNT = 50
"""Windows that a run's duration is cut into: two for each of the 25 blocks from which a block bootstrap's bounds are steady."""
WALL_CLOCK = "tokens per second of the run's duration: of requests sent by a schedule it is the schedule that sets it"


def rate_figures(cell: PlannedCell, baseline: MeasuredRun, candidate: MeasuredRun, *, slo: SloLimits | None, is_paired: bool) -> Measured:
    """Return a rate of both runs, resampled by whole windows; the same ones in both where the load is the same.

    With limits it is requests per second that met them, without tokens per second.
    """
    busy = slo is None and baseline.steps is not None and candidate.steps is not None
    arms = [_windows(run, busy=busy) if slo is None else _good(run, slo) for run in (baseline, candidate)]
    lacking = [name for name, arm in zip(("the baseline", "the candidate"), arms, strict=True) if arm is None]
    if lacking:
        return Measured(problem=("metric_absent", f"{' and '.join(lacking)} does not record when its requests ended"))
    names = ("bootstrap.windows", "bootstrap.windows") if is_paired else ("bootstrap.windows.baseline", "bootstrap.windows.candidate")
    replicates = []
    for arm, name in zip(arms, names, strict=True):
        assert arm is not None
        draw = draw_units(cell, WINDOWS_COUNT, name)
        replicates.append(divide(block_sums(draw, arm[0]), block_sums(draw, arm[1])))
    figures = [float(arm[0].sum()) / float(arm[1].sum()) for arm in arms if arm is not None]
    pair = (replicates[0], replicates[1])
    warnings = () if busy or slo is not None else (WALL_CLOCK,)
    measured = Measured(n=WINDOWS_COUNT, baseline=figures[0], candidate=figures[1], warnings=warnings)
    if not usable(pair):
        return replace(measured, problem=("undefined_resamples", "so few windows are busy that some resamples hold none of them"))
    method: Method = "block_bootstrap" if is_paired else "unpaired_bootstrap"
    degrees = float(len(draw.lengths) - 1)
    return replace(measured, estimate=from_arms(method, (figures[0], figures[1]), pair, degrees, cell.policy.alpha, by_ratio=True))


def rate_of_run(run: MeasuredRun, slo: SloLimits | None = None) -> float | None:
    """Return a run's tokens per second (good requests with limits), or None where it does not record when its requests ended."""
    arm = _windows(run, busy=run.steps is not None) if slo is None else _good(run, slo)
    return None if arm is None else float(arm[0].sum()) / float(arm[1].sum())


def _good(run: MeasuredRun, slo: SloLimits) -> tuple[Floats, Floats] | None:
    """Return good requests and seconds by window [WINDOWS_COUNT], or None where a served request does not tell when it ended."""
    found = _ended(run)
    return None if found is None else goodput_windows(run.requests, slo, float(found[1].max()) / WINDOWS_COUNT, WINDOWS_COUNT)


def _windows(run: MeasuredRun, *, busy: bool) -> tuple[Floats, Floats] | None:
    """Return tokens and seconds by window [WINDOWS_COUNT], or None where the run does not record them."""
    if busy and run.steps is not None:
        starts, ends = (run.steps[name].to_numpy() for name in ("start_s", "end_s"))
        tokens, places, seconds = run.steps["tokens"].to_numpy().astype(np.float64), starts, ends - starts
    else:
        found = _ended(run)
        if found is None:
            return None
        tokens, places = found
        seconds = None
    if not len(places) or float(np.ptp(places)) <= 0:
        return None
    first = float(places.min()) if seconds is not None else 0.0
    width = (float(places.max()) - first) / WINDOWS_COUNT
    index = np.minimum(((places - first) / width).astype(np.int64), WINDOWS_COUNT - 1)
    below = np.full(WINDOWS_COUNT, width) if seconds is None else np.bincount(index, seconds, WINDOWS_COUNT)
    above: Floats = np.bincount(index, tokens, WINDOWS_COUNT).astype(np.float64)
    return above, below.astype(np.float64)


def _ended(run: MeasuredRun) -> tuple[Floats, Floats] | None:
    """Return the tokens of each completed request and when it ended, s from the first arrival."""
    import pyarrow.compute as pc

    done = run.requests.filter(pc.equal(run.requests["status"], COMPLETED))
    needed = ("arrival_s", "e2e_s", "output_tokens")
    if done.num_rows == 0 or any(done[name].null_count for name in needed):
        return None
    prompts = pc.fill_null(done["prompt_tokens"], 0).to_numpy()
    tokens = (prompts + done["output_tokens"].to_numpy()).astype(np.float64)
    ends: Floats = done["arrival_s"].to_numpy() + done["e2e_s"].to_numpy()
    return tokens, ends
