"""From measured runs to figures and replicates for every planned claim of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gates.claim import ClaimSpec
from gates.measure.measured import Measured, draw_units
from gates.measure.measured_windows import rate_figures, rate_of_run
from gates.measure.method import choose_method
from gates.measure.pairing import Pairing, aligned, in_arrival_order
from gates.measure.requests import mean_figures, measure_requests, members_of, percentile_figures, read_metric, resampled_means
from gates.measure.run_effect import over_runs, run_effects, with_assumed_effect
from gates.policy import SLO_LIMITS
from gates.statistics.blocks import BlockDraw, Floats
from gates.statistics.tails import Sample, resampled_percentiles
from replay.assembly.percentile import percentile

if TYPE_CHECKING:
    from gates.measure.requests import Mask
    from gates.plan import PlannedCell
    from replay.ingress.measured.measured_run import MeasuredRun

Runs = Sequence["MeasuredRun"]
Wanted = list[tuple[int, ClaimSpec]]
_SLOPE_STEP = 0.01
"""Change of log latency over which the slope of a fraction is taken, to either side."""
THROUGHPUT, GOODPUT = "throughput_tokens_per_s", "goodput_per_s"
RATES = (THROUGHPUT, GOODPUT)


def measure_measured(cell: PlannedCell, baseline: Runs, candidate: Runs, pairing: Pairing) -> list[Measured]:
    """Return the figures of the cell's claims, in their order; every claim gets an entry.

    `pairing` is that of the first run of each arm.
    """
    method = choose_method(baseline, candidate, pairing)
    specs = [claim.spec for claim in cell.claims]
    found = dict(_unrecorded(cell, specs, baseline, candidate))
    wanted = [(index, spec) for index, spec in enumerate(specs) if index not in found]
    match method:
        case "reported_figures_without_interval":
            found |= dict(_reported(wanted, baseline, candidate))
        case "welch_t_over_runs":
            found |= dict(_repeated(cell, wanted, baseline, candidate))
        case "paired_circular_block_bootstrap":
            found |= dict(_paired(cell, wanted, baseline[0], candidate[0], pairing))
        case _:
            found |= dict(_unpaired(cell, wanted, baseline[0], candidate[0]))
    return [replace(found[index], method=method) for index in range(len(specs))]


def _unrecorded(cell: PlannedCell, specs: Sequence[ClaimSpec], baseline: Runs, candidate: Runs) -> Iterator[tuple[int, Measured]]:
    """Yield the claims that no measured run, or one of these runs, can have figures for."""
    for index, spec in enumerate(specs):
        if spec.definition.basis == "window_ratio" and spec.metric not in RATES:
            sentence = f"a measured run does not record {spec.definition.label}"
            yield index, Measured(problem=("metric_absent", sentence))
        elif spec.metric in ("slo_attainment_ratio", GOODPUT) and not any(run.is_summary for run in (*baseline, *candidate)):
            lacking = [name for name in SLO_LIMITS if getattr(cell.policy.slo, name) is not None and _lacks((*baseline, *candidate), name)]
            if lacking:
                yield index, Measured(problem=("metric_absent", f"the policy limits {', '.join(lacking)}, which a run does not record"))


def _lacks(runs: Runs, name: str) -> bool:
    return any(run.requests[name].null_count == run.requests.num_rows for run in runs)


def _reported(wanted: Wanted, baseline: Runs, candidate: Runs) -> Iterator[tuple[int, Measured]]:
    """Yield the percentiles that the tools computed; nothing says how sure they are, so every claim stays undecided."""
    for index, spec in wanted:
        figures = [_reported_figure(arm[0], spec) if arm else None for arm in (baseline, candidate)]
        counts = [arm[0].facts.completed_count or 0 for arm in (baseline, candidate) if arm]
        sentence = "a file holds percentiles and no requests, so nothing says how sure the figures are: save the run with its requests"
        yield (
            index,
            Measured(n=min(counts, default=0), baseline=figures[0], candidate=figures[1], problem=("summary_only", sentence)),
        )


def _reported_figure(run: MeasuredRun, spec: ClaimSpec) -> float | None:
    if spec.stratum != "all" or spec.percentile is None:
        return None
    stated = {(figure.metric, figure.percentile): figure.value_s for figure in run.reported}
    if run.requests.num_rows and not run.is_summary:
        return _figure(run, spec)
    return stated.get((spec.metric, float(spec.percentile)))


def _paired(
    cell: PlannedCell, wanted: Wanted, baseline: MeasuredRun, candidate: MeasuredRun, pairing: Pairing
) -> Iterator[tuple[int, Measured]]:
    tables, effects = aligned(baseline, candidate, pairing), run_effects(cell)
    of_requests = [(index, spec) for index, spec in wanted if spec.metric not in RATES]
    for index, measured in measure_requests(cell, of_requests, *tables):
        spec = cell.claims[index].spec
        yield index, with_assumed_effect(cell, measured, effects, _slope(cell, spec, tables[1]))
    yield from _rates(cell, wanted, baseline, candidate, is_paired=True)


def _unpaired(cell: PlannedCell, wanted: Wanted, baseline: MeasuredRun, candidate: MeasuredRun) -> Iterator[tuple[int, Measured]]:
    """Yield figures with each arm resampled alone, so that the two draws are independent."""
    tables = [in_arrival_order(run.requests) for run in (baseline, candidate)]
    names = ("bootstrap.baseline", "bootstrap.candidate")
    draws = [draw_units(cell, table.num_rows, name) for table, name in zip(tables, names, strict=True)]
    of_requests = [(index, spec) for index, spec in wanted if spec.metric not in RATES]
    effects = run_effects(cell)
    values = {index: [_values(cell, spec, table) for table in tables] for index, spec in of_requests}
    whole = [(index, spec) for index, spec in of_requests if all(members.any() for _, members in values[index])]
    tails = [_tails(draw, [(spec, values[index][side]) for index, spec in whole]) for side, draw in enumerate(draws)]
    for index, spec in of_requests:
        (before, inside_before), (after, inside_after) = values[index]
        samples = before[inside_before], after[inside_after]
        if (index, spec) not in whole:
            lacking = [arm for arm, own in zip(("the baseline", "the candidate"), samples, strict=True) if not len(own)]
            sentence = f"no {spec.definition.column} for any such request in {' and '.join(lacking)}"
            yield index, Measured(problem=("metric_absent", sentence))
            continue
        place = whole.index((index, spec))
        if spec.percentile is None:
            means = (resampled_means(draws[0], before, inside_before), resampled_means(draws[1], after, inside_after))
            measured = mean_figures(cell, spec, samples, means, ())
        else:
            measured = percentile_figures(cell, spec.percentile, samples, (tails[0][place], tails[1][place]), ())
        yield index, with_assumed_effect(cell, measured, effects, _slope(cell, spec, tables[1]))
    yield from _rates(cell, wanted, baseline, candidate, is_paired=False)


def _tails(draw: BlockDraw, asked: Sequence[tuple[ClaimSpec, tuple[Floats, Mask]]]) -> list[Floats]:
    """Return for each claim the replicates [replicates] of its percentile in one arm, from one pass over the resamples; none for means."""
    samples = [
        Sample(values=values[members], positions=np.flatnonzero(members), percents=() if spec.percentile is None else (spec.percentile,))
        for spec, (values, members) in asked
    ]
    found = iter(resampled_percentiles(draw, [sample for sample in samples if sample.percents]))
    return [next(found)[:, 0] if sample.percents else np.empty(0) for sample in samples]


def _repeated(cell: PlannedCell, wanted: Wanted, baseline: Runs, candidate: Runs) -> Iterator[tuple[int, Measured]]:
    """Yield figures from the figure of each run; how few samples lie beyond a percentile is that of the poorest run."""
    for index, spec in wanted:
        figures = [[_figure(run, spec, cell) for run in arm] for arm in (baseline, candidate)]
        if any(figure is None for arm in figures for figure in arm):
            yield index, Measured(problem=("metric_absent", f"not every run has {spec.definition.label} for such requests"))
            continue
        known = [[figure for figure in arm if figure is not None] for arm in figures]
        measured = Measured(n=sum(run.requests.num_rows for run in candidate))
        if spec.percentile is not None:
            poorest = min((_sample(run, spec, cell) for run in (*baseline, *candidate)), key=len)
            measured = percentile_figures(cell, spec.percentile, (poorest, poorest), (np.ones(1), np.ones(1)), ())
        yield index, over_runs(cell, measured, (known[0], known[1]), by_ratio=spec.definition.scale == "ratio")


def _rates(
    cell: PlannedCell, wanted: Wanted, baseline: MeasuredRun, candidate: MeasuredRun, *, is_paired: bool
) -> Iterator[tuple[int, Measured]]:
    for index, spec in wanted:
        if spec.metric in RATES:
            slo = cell.policy.slo if spec.metric == GOODPUT else None
            measured = rate_figures(cell, baseline, candidate, slo=slo, is_paired=is_paired)
            yield index, with_assumed_effect(cell, measured, run_effects(cell) * _sensitivity(cell, spec, candidate))


def _sensitivity(cell: PlannedCell, spec: ClaimSpec, run: MeasuredRun) -> float:
    """Return by how many percent a rate moves where latencies move by one, at least 1: goodput falls steeply near a limit."""
    if spec.metric != GOODPUT:
        return 1.0
    attainment = ClaimSpec(metric="slo_attainment_ratio", margin=spec.margin, blocking=False)
    share = _figure(run, attainment, cell)
    return max(1.0, abs(_slope(cell, attainment, run.requests) or 0.0) / share) if share else 1.0


def _values(cell: PlannedCell | None, spec: ClaimSpec, table: pa.Table) -> tuple[Floats, Mask]:
    values, present = read_metric(table, spec.definition.column, cell.policy.slo if cell is not None else None)
    return values, present & members_of(spec.stratum, table)


def _sample(run: MeasuredRun, spec: ClaimSpec, cell: PlannedCell | None = None) -> Floats:
    values, members = _values(cell, spec, run.requests)
    return values[members]


def _figure(run: MeasuredRun, spec: ClaimSpec, cell: PlannedCell | None = None) -> float | None:
    """Return one run's figure of a claim, or None where it has none."""
    if spec.metric in RATES:
        return rate_of_run(run, cell.policy.slo if spec.metric == GOODPUT and cell is not None else None)
    sample = _sample(run, spec, cell)
    if not len(sample):
        return None
    return float(sample.mean()) if spec.percentile is None else percentile(sample, spec.percentile)


def _slope(cell: PlannedCell, spec: ClaimSpec, table: pa.Table) -> float | None:
    """Return how much a fraction of requests changes per unit of log latency; None for latencies themselves, 0 for other counts."""
    if spec.definition.basis != "request_mean":
        return None
    if spec.metric != "slo_attainment_ratio":
        return 0.0
    inside = members_of(spec.stratum, table)
    shares = [float(read_metric(_scaled(table, sign * _SLOPE_STEP), "slo_met", cell.policy.slo)[0][inside].mean()) for sign in (1, -1)]
    return (shares[0] - shares[1]) / (2 * _SLOPE_STEP)


def _scaled(table: pa.Table, log_change: float) -> pa.Table:
    import pyarrow.compute as pc

    scaled = table
    for name in SLO_LIMITS:
        column = pc.multiply(table[name], float(np.exp(log_change)))
        scaled = scaled.set_column(table.schema.get_field_index(name), name, column)
    return scaled
