"""From measured runs to figures and estimates for every planned claim of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gates.claim import ClaimSpec
from gates.measure.figures import GOODPUT, RATES, figure_of
from gates.measure.measured import Measured
from gates.measure.method import choose_method
from gates.measure.pairing import Pairing
from gates.measure.repeated_runs import measure_repeated
from gates.measure.single_pair import Context, measure_pair, measure_unpaired
from gates.policy import SLO_LIMITS

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from replay.ingress.measured.measured_run import MeasuredRun

Runs = Sequence["MeasuredRun"]
Wanted = list[tuple[int, ClaimSpec]]


def measure_measured(cell: PlannedCell, baseline: Runs, candidate: Runs, pairing: Pairing, context: Context) -> list[Measured]:
    """Return the figures of the cell's claims, in their order; every claim gets an entry.

    `pairing` is that of the first run of each arm; the context's archive holds sets of runs under the cell's load.
    """
    method = choose_method(baseline, candidate, pairing)
    specs = [claim.spec for claim in cell.claims]
    found = dict(_unrecorded(cell, specs, baseline, candidate))
    wanted = [(index, spec) for index, spec in enumerate(specs) if index not in found]
    match method:
        case "reported_figures_without_interval":
            found |= dict(_reported(cell, wanted, baseline, candidate))
        case "welch_t":
            found |= dict(measure_repeated(cell, wanted, (baseline, candidate), context))
        case "block_bootstrap":
            found |= dict(measure_pair(cell, wanted, (baseline[0], candidate[0]), pairing, context))
        case _:
            found |= dict(measure_unpaired(cell, wanted, (baseline[0], candidate[0])))
    return [_named(found[index], method) for index in range(len(specs))]


def _named(measured: Measured, method: str) -> Measured:
    """Return the figures with the name of their method: the estimate's own, or that of the route which gave no estimate."""
    return replace(measured, method=method if measured.estimate is None else measured.estimate.method)


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


def _reported(cell: PlannedCell, wanted: Wanted, baseline: Runs, candidate: Runs) -> Iterator[tuple[int, Measured]]:
    """Yield the percentiles that the tools computed; nothing says how sure they are, so every claim stays undecided."""
    for index, spec in wanted:
        figures = [_reported_figure(cell, arm[0], spec) if arm else None for arm in (baseline, candidate)]
        counts = [arm[0].facts.completed_count or 0 for arm in (baseline, candidate) if arm]
        sentence = "a file holds percentiles and no requests, so nothing says how sure the figures are: save the run with its requests"
        yield (
            index,
            Measured(n=min(counts, default=0), baseline=figures[0], candidate=figures[1], problem=("summary_only", sentence)),
        )


def _reported_figure(cell: PlannedCell, run: MeasuredRun, spec: ClaimSpec) -> float | None:
    if spec.stratum != "all" or spec.percentile is None:
        return None
    stated = {(figure.metric, figure.percentile): figure.value_s for figure in run.reported}
    if run.requests.num_rows and not run.is_summary:
        return figure_of(cell, spec, run)
    return stated.get((spec.metric, float(spec.percentile)))
