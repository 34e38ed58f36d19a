"""The figure of a claim in one measured run, and what a slower run makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gates.measure.measured_windows import rate_of_run
from gates.measure.requests import members_of, read_metric
from gates.policy import SLO_LIMITS
from gates.statistics.blocks import Floats
from replay.assembly.percentile import percentile

if TYPE_CHECKING:
    from gates.claim import ClaimSpec
    from gates.measure.requests import Mask
    from gates.plan import PlannedCell
    from gates.policy import SloLimits
    from replay.ingress.measured.measured_run import MeasuredRun

THROUGHPUT, GOODPUT = "throughput_tokens_per_s", "goodput_per_s"
RATES = (THROUGHPUT, GOODPUT)
_SLOPE_STEP = 0.01
"""Change of log latency over which the slope of a fraction is taken, to either side."""


def values_of(cell: PlannedCell, spec: ClaimSpec, table: pa.Table) -> tuple[Floats, Mask]:
    """Return a claim's metric [requests] (0 where missing) and which requests are in its stratum and have it."""
    values, present = read_metric(table, spec.definition.column, cell.policy.slo)
    return values, present & members_of(spec.stratum, table)


def sample_of(cell: PlannedCell, spec: ClaimSpec, run: MeasuredRun) -> Floats:
    """Return a claim's values of one run, in the file's order."""
    values, members = values_of(cell, spec, run.requests)
    return values[members]


def figure_of(cell: PlannedCell, spec: ClaimSpec, run: MeasuredRun) -> float | None:
    """Return one run's figure of a claim, or None where it has none."""
    if spec.metric in RATES:
        return rate_of_run(run, limits_of(cell, spec))
    sample = sample_of(cell, spec, run)
    if not len(sample):
        return None
    return float(sample.mean()) if spec.percentile is None else percentile(sample, spec.percentile)


def limits_of(cell: PlannedCell, spec: ClaimSpec) -> SloLimits | None:
    """Return the limits that a rate counts requests by; None where it counts tokens."""
    return cell.policy.slo if spec.metric == GOODPUT else None


def slope_of(cell: PlannedCell, spec: ClaimSpec, table: pa.Table, figure: float, *, by_ratio: bool) -> float:
    """Return how much a claim's figure changes per unit of log latency: 1 for its log, 0 for counts.

    The log of goodput, which falls steeply near a limit, changes at least by 1.
    """
    if spec.metric == GOODPUT:
        share = float(read_metric(table, "slo_met", cell.policy.slo)[0].mean())
        steepness = _attainment_slope(cell, spec, table)
        return max(1.0, abs(steepness) / share) if share else 1.0
    if by_ratio:
        return 1.0
    if spec.definition.basis != "request_mean":
        return figure
    return _attainment_slope(cell, spec, table) if spec.metric == "slo_attainment_ratio" else 0.0


def _attainment_slope(cell: PlannedCell, spec: ClaimSpec, table: pa.Table) -> float:
    inside = members_of(spec.stratum, table)
    shares = [float(read_metric(_scaled(table, sign * _SLOPE_STEP), "slo_met", cell.policy.slo)[0][inside].mean()) for sign in (1, -1)]
    return (shares[0] - shares[1]) / (2 * _SLOPE_STEP)


def busy_period_requests(table: pa.Table) -> float:
    """Return the mean number of requests between two moments at which none is under way; 0 where arrivals or ends are not recorded."""
    if table.num_rows == 0 or table["arrival_s"].null_count or table["e2e_s"].null_count == table.num_rows:
        return 0.0
    arrivals, ends = table["arrival_s"].to_numpy(), table["e2e_s"].fill_null(0.0).to_numpy()
    order = np.argsort(arrivals, kind="stable")
    arrivals, ends = arrivals[order], np.maximum.accumulate((arrivals + ends)[order])
    return len(arrivals) / (1.0 + int((arrivals[1:] > ends[:-1]).sum()))


def _scaled(table: pa.Table, log_change: float) -> pa.Table:
    import pyarrow.compute as pc

    scaled = table
    for name in SLO_LIMITS:
        column = pc.multiply(table[name], float(np.exp(log_change)))
        scaled = scaled.set_column(table.schema.get_field_index(name), name, column)
    return scaled
