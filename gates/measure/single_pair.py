"""Figures of one measured run per arm: the estimate of the pair, its cross-check, and the run effect that it cannot show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from gates.claim import ClaimSpec
from gates.measure.between_runs import ArchivedSpread, ArchiveSets, archived_spread, figures_of_runs, with_single_run
from gates.measure.figures import RATES, busy_period_requests, figure_of, limits_of, slope_of, values_of
from gates.measure.measured import Measured
from gates.measure.measured_windows import rate_figures
from gates.measure.pairing import Pairing, aligned, in_arrival_order
from gates.measure.requests import mean_figures, pair_requests, percentile_figures
from gates.measure.step_noise import FALLBACKS, PairNoise, RunNoise, pair_noise
from gates.statistics.compare import judged
from gates.statistics.estimate import with_run_effect
from gates.statistics.pairs import batch_means_pair, bootstrap_pair, bootstrap_unpaired, is_tail_known
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.measure.requests import RequestPair
    from gates.plan import PlannedCell
    from gates.statistics.blocks import Floats
    from gates.statistics.estimate import Estimate
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.specs.mapping import MappingSpec

Wanted = Sequence[tuple[int, ClaimSpec]]
Samples = tuple["Floats", "Floats"]


NO_ARCHIVE = "without an archive nothing shows that runs do not differ by more than their steps' noise"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """What is known beside the runs themselves."""

    archive: ArchiveSets = ()
    mappings: tuple[MappingSpec | None, MappingSpec | None] = (None, None)
    """Of the baseline and of the candidate."""


def measure_pair(
    cell: PlannedCell, wanted: Wanted, runs: tuple[MeasuredRun, MeasuredRun], pairing: Pairing, context: Context
) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim of two runs of the same requests."""
    tables = aligned(*runs, pairing)
    busy = busy_period_requests(tables[0])
    archive = context.archive
    noise = pair_noise(runs, tables, context.mappings) if archive else NO_ARCHIVE
    noise_of_runs = RunNoise(mapping=context.mappings[0])
    told = all(run.steps is not None for run in runs)
    for index, spec in wanted:
        if spec.metric in RATES:
            measured, table = rate_figures(cell, *runs, slo=limits_of(cell, spec), is_paired=True), tables[1]
        else:
            values, table = pair_requests(spec, cell.policy.slo, *tables), tables[1]
            if values.problem is not None:
                yield index, Measured(n=values.n, warnings=values.warnings, problem=values.problem)
                continue
            measured = _figures(cell, spec, values.samples, values.warnings)
            share = values.n / len(values.members)
            measured = replace(measured, estimate=_paired_estimate(cell, spec, values.samples, busy * share))
            if told and _has_tail(spec, measured, values.samples):
                swapped = _swapped(cell, spec, measured, values, noise, noise_of_runs, archive)
                if swapped.method == "noise_swap":
                    yield index, swapped
                    continue
                measured = swapped
            measured = _cross_checked(cell, spec, measured, values.samples)
        yield index, _with_run_effect(cell, spec, measured, table, archive)


def measure_unpaired(cell: PlannedCell, wanted: Wanted, runs: tuple[MeasuredRun, MeasuredRun]) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim of two runs of different requests, each resampled alone.

    No archive bounds their run effect: its runs differ by less than runs of other requests do.
    """
    tables = [in_arrival_order(run.requests) for run in runs]
    busy = max(busy_period_requests(table) for table in tables)
    for index, spec in wanted:
        if spec.metric in RATES:
            measured = rate_figures(cell, *runs, slo=limits_of(cell, spec), is_paired=False)
            yield index, _with_run_effect(cell, spec, measured, tables[1], ())
            continue
        found = [values_of(cell, spec, table) for table in tables]
        samples = found[0][0][found[0][1]], found[1][0][found[1][1]]
        lacking = [arm for arm, own in zip(("the baseline", "the candidate"), samples, strict=True) if not len(own)]
        if lacking:
            sentence = f"no {spec.definition.column} for any such request in {' and '.join(lacking)}"
            yield index, Measured(problem=("metric_absent", sentence))
            continue
        share = len(samples[0]) / tables[0].num_rows
        measured = replace(_figures(cell, spec, samples, ()), estimate=_unpaired_estimate(cell, spec, samples, busy * share))
        yield index, _with_run_effect(cell, spec, measured, tables[1], ())


def _figures(cell: PlannedCell, spec: ClaimSpec, samples: Samples, warnings: tuple[str, ...]) -> Measured:
    if spec.percentile is None:
        return mean_figures(cell, spec, samples, warnings)
    return percentile_figures(cell, spec.percentile, samples, warnings)


def _paired_estimate(cell: PlannedCell, spec: ClaimSpec, samples: Samples, busy_period: float) -> Estimate:
    return bootstrap_pair(
        *samples,
        spec.percentile,
        alpha=cell.policy.alpha,
        generator=stream(cell.seed, "bootstrap"),
        replicates=cell.policy.replicates,
        busy_period=busy_period,
        by_ratio=spec.definition.scale == "ratio",
    )


def _unpaired_estimate(cell: PlannedCell, spec: ClaimSpec, samples: Samples, busy_period: float) -> Estimate:
    return bootstrap_unpaired(
        *samples,
        spec.percentile,
        alpha=cell.policy.alpha,
        generator=stream(cell.seed, "bootstrap"),
        replicates=cell.policy.replicates,
        busy_period=busy_period,
        by_ratio=spec.definition.scale == "ratio",
    )


def _swapped(
    cell: PlannedCell,
    spec: ClaimSpec,
    measured: Measured,
    values: RequestPair,
    noise: PairNoise | str,
    noise_of_runs: RunNoise,
    archive: ArchiveSets,
) -> Measured:
    """Return the figures by noise swap with the archive's bound of the run effect, or as they are and why it is not used."""
    assert measured.estimate is not None
    if isinstance(noise, str):
        return _told(measured, f"step times are not used: {noise}")
    swap = noise.swap(cell, spec, values)
    if swap.found.fallback is not None:
        stand_in = replace(measured.estimate, fallback=swap.found.fallback, release_vetoed=swap.found.release_vetoed)
        return _told(replace(measured, estimate=stand_in), f"step times are not used: {FALLBACKS[swap.found.fallback]}")
    figures = figures_of_runs(lambda run: noise_of_runs.log_percentile(cell, spec, run), by_ratio=False)
    archived = archived_spread(archive, figures)
    if archived is None:
        return _told(measured, "step times are not used: the archived runs bring none that reproduce their own tails")
    if archived.bound(swap.found.standard_error) > cell.policy.run_effect_sd:
        return _told(measured, f"step times are not used: {archived.phrase} do not show that there is no run effect")
    assert swap.correction is not None
    explained = f"of the log ratio {swap.correction:+.4f} is noise of step times, priced by replay and taken out of the interval"
    measured = _told(replace(measured, estimate=swap.found, method="noise_swap"), explained, noise.replays.note)
    return with_single_run(cell, spec, measured, archived)


def _told(measured: Measured, *warnings: str | None) -> Measured:
    return replace(measured, warnings=(*measured.warnings, *(one for one in warnings if one is not None)))


def _has_tail(spec: ClaimSpec, measured: Measured, samples: Samples) -> bool:
    """Return whether a claim is about a ratio of percentiles whose slopes can be read in both arms."""
    percent, found = spec.percentile, measured.estimate
    return percent is not None and found is not None and found.scale == "ratio" and all(is_tail_known(arm, percent) for arm in samples)


def _cross_checked(cell: PlannedCell, spec: ClaimSpec, measured: Measured, samples: Samples) -> Measured:
    """Return the figures with a warning where batch means would decide a percentile otherwise, the assumed run effect in both."""
    percent, found = spec.percentile, measured.estimate
    if percent is None or found is None or not _has_tail(spec, measured, samples):
        return measured
    lower_is_better = spec.definition.direction == "lower"
    checks = (found, batch_means_pair(*samples, percent, alpha=cell.policy.alpha))
    effect = cell.policy.run_effect_sd
    own, other = (judged(with_run_effect(one, effect), lower_is_better=lower_is_better, margin=spec.margin) for one in checks)
    if (own.inside_margin, own.beyond_no_change) == (other.inside_margin, other.beyond_no_change):
        return measured
    warning = f"batch means disagree: they give the bounds {other.lower:.4g} to {other.upper:.4g}"
    return replace(measured, warnings=(*measured.warnings, warning))


def _with_run_effect(cell: PlannedCell, spec: ClaimSpec, measured: Measured, table: pa.Table, archive: ArchiveSets) -> Measured:
    found = measured.estimate
    by_ratio = found is not None and found.scale == "ratio"
    archived: ArchivedSpread | None = None
    if archive and found is not None:
        archived = archived_spread(archive, figures_of_runs(lambda run: figure_of(cell, spec, run), by_ratio=by_ratio))
    figure = measured.candidate if measured.candidate is not None else 0.0
    slope = 1.0 if found is None else slope_of(cell, spec, table, figure, by_ratio=by_ratio)
    return with_single_run(cell, spec, measured, archived, slope)
