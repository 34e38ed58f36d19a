"""Figures of several measured runs per arm: each run is one observation, and how much they differ is seen instead of assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gates.measure.between_runs import ArchivedSpread, ArchiveSets, archived_spread, figures_of_runs
from gates.measure.figures import figure_of, sample_of
from gates.measure.measured import Measured
from gates.measure.requests import percentile_figures
from gates.measure.step_noise import RunNoise
from gates.statistics.runs import pooled, welch

if TYPE_CHECKING:
    from gates.claim import ClaimSpec
    from gates.measure.single_pair import Context
    from gates.plan import PlannedCell
    from gates.statistics.blocks import Floats
    from replay.ingress.measured.measured_run import MeasuredRun

Runs = Sequence["MeasuredRun"]


def measure_repeated(
    cell: PlannedCell, wanted: Sequence[tuple[int, ClaimSpec]], arms: tuple[Runs, Runs], context: Context
) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim; how few samples lie beyond a percentile is that of the poorest run."""
    noise = (RunNoise(mapping=context.mappings[0]), RunNoise(mapping=context.mappings[1]))
    for index, spec in wanted:
        figures = [[figure_of(cell, spec, run) for run in arm] for arm in arms]
        known = [[figure for figure in arm if figure is not None] for arm in figures]
        if known != figures:
            yield index, Measured(problem=("metric_absent", f"not every run has {spec.definition.label} for such requests"))
            continue
        measured = Measured(n=sum(run.requests.num_rows for run in arms[1]))
        if spec.percentile is not None:
            poorest = min((sample_of(cell, spec, run) for arm in arms for run in arm), key=len)
            measured = percentile_figures(cell, spec.percentile, (poorest, poorest), ())
        by_ratio = spec.definition.scale == "ratio" and min(*known[0], *known[1]) > 0
        scaled = [np.log(arm) if by_ratio else np.asarray(arm, dtype=np.float64) for arm in known]
        before, after = (math.exp(float(arm.mean())) if by_ratio else float(arm.mean()) for arm in scaled)
        runs_count = min(len(arm) for arm in arms)
        measured = replace(measured, baseline=before, candidate=after, runs_count=runs_count)
        has_steps = all(run.steps is not None for arm in arms for run in arm)
        if has_steps and spec.percentile is not None and by_ratio and measured.problem is None:
            measured = _denoised(cell, spec, measured, arms, noise, context.archive)
        if measured.estimate is None:
            archived = archived_spread(context.archive, figures_of_runs(partial(figure_of, cell, spec), by_ratio=by_ratio))
            measured = _over_runs(cell, measured, (scaled[0], scaled[1]), archived)
            if not by_ratio and measured.estimate is not None:
                measured = replace(measured, estimate=replace(measured.estimate, scale="difference"))
        yield index, measured


def _over_runs(cell: PlannedCell, measured: Measured, arms: tuple[Floats, Floats], archived: ArchivedSpread | None) -> Measured:
    """Return the figures with the t interval over what is known of each run, with one variance moderated by an archive, or Welch's."""
    if archived is None:
        return replace(measured, estimate=welch(*arms, alpha=cell.policy.alpha))
    return _pooled(cell, measured, arms, archived)


def _denoised(
    cell: PlannedCell, spec: ClaimSpec, measured: Measured, arms: tuple[Runs, Runs], noise: tuple[RunNoise, RunNoise], archive: ArchiveSets
) -> Measured:
    """Return the figures with the noise of steps taken out of each run; without an estimate where a run's steps do not give its tail."""
    logs = [[own.log_percentile(cell, spec, run) for run in arm] for arm, own in zip(arms, noise, strict=True)]
    quiet = [np.array([log for log in arm if log is not None]) for arm in logs]
    if [len(arm) for arm in quiet] != [len(arm) for arm in logs]:
        return _told(measured, "step times are not used: not every run replayed with its own step times reproduces its own tail")
    figures = figures_of_runs(lambda run: noise[0].log_percentile(cell, spec, run), by_ratio=False)
    measured = _told(measured, "the noise of each run's step times is priced by replay and taken out of the interval")
    return _pooled(cell, measured, (quiet[0], quiet[1]), archived_spread(archive, figures))


def _pooled(cell: PlannedCell, measured: Measured, arms: tuple[Floats, Floats], archived: ArchivedSpread | None) -> Measured:
    if archived is None:
        return replace(measured, estimate=pooled(*arms, alpha=cell.policy.alpha))
    told = f"how much runs differ is moderated by {archived.phrase} (as {archived.prior.degrees:.3g} degrees of freedom)"
    return _told(replace(measured, estimate=pooled(*arms, alpha=cell.policy.alpha, prior=archived.prior)), told)


def _told(measured: Measured, warning: str) -> Measured:
    return replace(measured, warnings=(*measured.warnings, warning))
