"""The comparison of a claim's figures, on the scale and against the margin that its plan says."""

from __future__ import annotations

from gates.measure.measured import Measured
from gates.plan import PlannedCell, PlannedClaim
from gates.statistics.compare import Comparison, compare, judged


def compare_claim(cell: PlannedCell, claim: PlannedClaim, measured: Measured) -> Comparison | None:
    """Return the comparison of a claim's figures, None where it has none."""
    if measured.baseline is None or measured.candidate is None:
        return None
    definition = claim.spec.definition
    if measured.estimate is not None:
        margin = claim.spec.margin * (measured.baseline if definition.scale != measured.estimate.scale else 1.0)
        return judged(measured.estimate, lower_is_better=definition.direction == "lower", margin=margin)
    if measured.replicates is None:
        return None
    return compare(
        measured.baseline,
        measured.candidate,
        *measured.replicates,
        lower_is_better=definition.direction == "lower",
        by_ratio=definition.scale == "ratio",
        margin=claim.spec.margin,
        alpha=cell.policy.alpha,
    )
