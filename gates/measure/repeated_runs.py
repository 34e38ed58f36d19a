"""Figures of several measured runs per arm: each run is one observation, and how much they differ is seen instead of assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gates.measure.between_runs import ArchiveSets, archived_spread, figures_of_runs
from gates.measure.figures import figure_of, sample_of
from gates.measure.measured import Measured
from gates.measure.requests import percentile_figures
from gates.statistics.runs import pooled, welch

if TYPE_CHECKING:
    from gates.claim import ClaimSpec
    from gates.plan import PlannedCell
    from gates.statistics.estimate import Estimate
    from replay.ingress.measured.measured_run import MeasuredRun

Runs = Sequence["MeasuredRun"]


def measure_repeated(
    cell: PlannedCell, wanted: Sequence[tuple[int, ClaimSpec]], arms: tuple[Runs, Runs], archive: ArchiveSets
) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim; how few samples lie beyond a percentile is that of the poorest run."""
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
        yield index, _over_runs(cell, spec, measured, (known[0], known[1]), archive)


def _over_runs(
    cell: PlannedCell, spec: ClaimSpec, measured: Measured, figures: tuple[list[float], list[float]], archive: ArchiveSets
) -> Measured:
    """Return the figures with the t interval over runs; on logs where claims are by ratio and no figure is 0."""
    by_ratio = spec.definition.scale == "ratio" and min(*figures[0], *figures[1]) > 0
    scaled = [np.log(arm) if by_ratio else np.asarray(arm, dtype=np.float64) for arm in figures]
    archived = archived_spread(archive, figures_of_runs(lambda run: figure_of(cell, spec, run), by_ratio=by_ratio))
    found: Estimate
    if archived is None:
        found, warnings = welch(scaled[0], scaled[1], alpha=cell.policy.alpha), measured.warnings
    else:
        found = pooled(scaled[0], scaled[1], alpha=cell.policy.alpha, prior=archived.prior)
        told = f"how much runs differ is moderated by {archived.phrase} (as {archived.prior.degrees:.3g} degrees of freedom)"
        warnings = (*measured.warnings, told)
    before, after = (math.exp(float(arm.mean())) if by_ratio else float(arm.mean()) for arm in scaled)
    return replace(
        measured,
        baseline=before,
        candidate=after,
        estimate=found if by_ratio else replace(found, scale="difference"),
        runs_count=min(len(arm) for arm in figures),
        warnings=warnings,
    )
