"""Units: times that two files, or two columns of one file, cannot both mean in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.finding import Finding
from replay.ingress.measured.measured_run import COMPLETED, METRICS

if TYPE_CHECKING:
    from replay.ingress.measured.measured_run import MeasuredRun

UNIT_RATIO = 300.0
"""From here on a ratio is nearer to 1000 than to any change of a server: units differ by 1000 or more."""
FASTEST_TOKEN_S = 1e-4
"""No published service decodes 10,000 tokens per second for one request."""
_INCONSISTENT_RATIO = 30.0  # between 1 and 1000: the sum of the parts is about the whole, not a unit away from it


def same_units(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find metrics whose middles lie a unit apart between the arms."""
    first = evidence.baseline[0]
    for name, run in list(evidence.runs)[1:]:
        for metric in METRICS:
            before, after = _middle(first, metric), _middle(run, metric)
            if before and after and max(before / after, after / before) >= UNIT_RATIO:
                message = f"{metric} is {after:.4g} s in {name} and {before:.4g} s in the baseline: a file is in another unit than it says"
                yield about_runs("units_differ", message)


def plausible_units(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find files in which the parts of a request do not add up to the whole, or tokens come faster than any server makes them."""
    for name, run in evidence.runs:
        tpot = _middle(run, "tpot_s")
        if tpot is not None and 0 < tpot < FASTEST_TOKEN_S:
            message = f"{name} takes {tpot:.3g} s per token ({run.facts.units}): no server is so fast, so the unit is not the one declared"
            yield about_runs("units_implausible", message)
        ratio = _whole_to_parts(run)
        if ratio is not None and not 1 / _INCONSISTENT_RATIO <= ratio <= _INCONSISTENT_RATIO:
            message = f"in {name} e2e_s is {ratio:.3g} x ttft_s + tpot_s x (output_tokens - 1): columns of one file are in different units"
            yield about_runs("units_inconsistent", message)
        at_once = _not_positive(run)
        if at_once > evidence.policy.max_rejected_ratio * run.requests.num_rows:
            message = f"in {name} {at_once} of {run.requests.num_rows} served requests took no time at all: these are no measured latencies"
            yield about_runs("times_not_positive", message)
        late = _later_than_the_end(run)
        if late:
            message = f"in {name} {late} of {run.requests.num_rows} requests have their first token after their end"
            yield about_runs("times_out_of_order", message)


def _middle(run: MeasuredRun, metric: str) -> float | None:
    values = run.requests[metric].drop_null().to_numpy()
    if len(values):
        return float(np.median(values))
    stated = sorted((abs(one.percentile - 50.0), one.value_s) for one in run.reported if one.metric == metric)
    return stated[0][1] if stated else None


def _whole_to_parts(run: MeasuredRun) -> float | None:
    columns = [run.requests[name] for name in ("e2e_s", "ttft_s", "tpot_s", "output_tokens")]
    values = [column.to_numpy().astype(np.float64) for column in columns]
    parts = values[1] + values[2] * (values[3] - 1)
    known = np.isfinite(parts) & np.isfinite(values[0]) & (parts > 0)
    ratio = float(np.median(values[0][known] / parts[known])) if bool(known.any()) else math.nan
    return None if math.isnan(ratio) else ratio


def _not_positive(run: MeasuredRun) -> int:
    """Return how many requests that count as served have a first token, or an end, at the moment of their arrival."""
    import pyarrow.compute as pc

    served = pc.equal(run.requests["status"], COMPLETED).to_numpy()
    values = [run.requests[name].to_numpy().astype(np.float64) for name in ("ttft_s", "e2e_s")]
    with np.errstate(invalid="ignore"):
        return int((served & ((values[0] <= 0) | (values[1] <= 0))).sum())


def _later_than_the_end(run: MeasuredRun) -> int:
    e2e, ttft = (run.requests[name].to_numpy().astype(np.float64) for name in ("e2e_s", "ttft_s"))
    with np.errstate(invalid="ignore"):
        return int((ttft > e2e * (1 + 1e-6)).sum())
