"""From two runs to figures and replicates for every planned claim: pairing, missing values, strata, windows."""

from __future__ import annotations

from gates.measure.measured import Measured
from gates.measure.requests import measure_requests
from gates.measure.windows import measure_windows
from gates.plan import PlannedCell
from replay.assembly.run import Run


def measure_cell(cell: PlannedCell, baseline: Run, candidate: Run) -> list[Measured]:
    """Return the figures of the cell's claims, in their order; every claim gets an entry.

    Raises:
        InvariantError: a table holds NaN or infinity (a missing value is null).
    """
    problem = _unpaired(baseline, candidate)
    if problem is not None:
        return [Measured(problem=("unpaired_arms", problem)) for _ in cell.claims]
    specs = [claim.spec for claim in cell.claims]
    of_requests = [(index, spec) for index, spec in enumerate(specs) if spec.definition.basis != "window_ratio"]
    of_windows = [(index, spec) for index, spec in enumerate(specs) if spec.definition.basis == "window_ratio"]
    found = {
        **dict(measure_requests(cell, of_requests, baseline.requests, candidate.requests)),
        **dict(measure_windows(cell, of_windows, baseline, candidate)),
    }
    return [found[index] for index in range(len(specs))]


def _unpaired(baseline: Run, candidate: Run) -> str | None:
    if not baseline.requests["request_id"].equals(candidate.requests["request_id"]):
        return "the arms did not replay the same requests in the same order, so nothing can be paired"
    if baseline.window_s != candidate.window_s:
        return f"the arms were cut into windows of {baseline.window_s:g} s and {candidate.window_s:g} s, so nothing can be paired"
    return None
