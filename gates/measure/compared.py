"""The comparison of a claim's figures, on the scale and against the margin that its plan says."""

from __future__ import annotations

from gates.measure.measured import Measured
from gates.plan import PlannedCell, PlannedClaim
from gates.statistics.compare import Comparison, compare


def compare_claim(cell: PlannedCell, claim: PlannedClaim, measured: Measured) -> Comparison | None:
    """Return the comparison of a claim's figures, None where it has none."""
    if measured.replicates is None or measured.baseline is None or measured.candidate is None:
        return None
    definition = claim.spec.definition
    return compare(
        measured.baseline,
        measured.candidate,
        *measured.replicates,
        lower_is_better=definition.direction == "lower",
        by_ratio=definition.scale == "ratio",
        margin=claim.spec.margin,
        alpha=cell.policy.alpha,
    )
