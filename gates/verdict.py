"""Verdict: the worst of everything that was found, fail closed.

Within a cell invalid > regression > inconclusive > proven safe; across cells regression > invalid > inconclusive > proven safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gates.claim import Claim
from gates.finding import Finding
from gates.plan import CellSpec
from gates.reasons import cell_reasons
from replay.errors import InvariantError
from replay.specs.knobs import STAGES

if TYPE_CHECKING:
    from gates.attribution.cause import CellCause

Decision = Literal["release", "rollback"]
Basis = Literal["proven_safe", "regression", "inconclusive", "invalid_evidence"]
Document = dict[str, Any]

EXIT_CODES: dict[Basis, int] = {"proven_safe": 0, "regression": 10, "inconclusive": 20, "invalid_evidence": 30}
"""1 is left to crashes and 2 to usage errors."""
FAIL_ON: tuple[Basis, ...] = ("regression", "inconclusive", "invalid_evidence")
_ACROSS_CELLS: tuple[Basis, ...] = ("regression", "invalid_evidence", "inconclusive", "proven_safe")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellVerdict:
    """The verdict of one (trace, accelerator, model) cell on its own."""

    trace: str
    hardware: str
    model: str
    decision: Decision
    basis: Basis
    reasons: tuple[Document, ...]
    """``{code, message, claim?}``, what decides first."""
    first_failing_stage: str | None
    bottleneck_class: str | None
    claims: tuple[Claim, ...]
    cause: CellCause | None = None
    sustained: Document | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict over all cells: that of the worst one, never a pooled one."""

    cells: tuple[CellVerdict, ...]

    @property
    def worst(self) -> CellVerdict:
        """The cell that the top level copies; of equals the first."""
        return min(self.cells, key=lambda cell: _ACROSS_CELLS.index(cell.basis))

    @property
    def decision(self) -> Decision:
        """Release, or rollback."""
        return self.worst.decision

    @property
    def basis(self) -> Basis:
        """On what grounds."""
        return self.worst.basis

    def exit_code(self, fail_on: Iterable[str] = FAIL_ON) -> int:
        """Return the process's exit code; bases that are not in `fail_on` exit 0.

        Of several cells the worst one whose basis is in `fail_on` counts, so that a tolerated basis hides no other.
        """
        chosen = set(fail_on)
        return next((EXIT_CODES[basis] for basis in _ACROSS_CELLS if basis in chosen and any(c.basis == basis for c in self.cells)), 0)


def decide_cell(claims: Sequence[Claim], findings: Sequence[Finding]) -> tuple[Decision, Basis]:
    """Return a cell's decision and its basis; without a blocking claim nothing was shown, so the evidence is invalid."""
    blocking = [claim for claim in claims if claim.blocking]
    if not blocking or any(finding.effect == "invalidates" for finding in findings):
        return "rollback", "invalid_evidence"
    if any(finding.effect == "disproves" for finding in findings) or any(claim.outcome == "disproved" for claim in blocking):
        return "rollback", "regression"
    if all(claim.outcome == "holds" for claim in blocking):
        return "release", "proven_safe"
    return "rollback", "inconclusive"


def cell_verdict(
    cell: CellSpec,
    claims: Sequence[Claim],
    findings: Sequence[Finding],
    *,
    cause: CellCause | None = None,
    sustained: Document | None = None,
) -> CellVerdict:
    """Return the verdict of one cell; without a `cause` the findings alone say where it fails."""
    decision, basis = decide_cell(claims, findings)
    stage, bottleneck_class = (cause.first_failing_stage, cause.bottleneck_class) if cause is not None else _where(basis, findings)
    return CellVerdict(
        trace=cell.trace,
        hardware=cell.hardware,
        model=cell.model,
        decision=decision,
        basis=basis,
        reasons=(*cell_reasons(claims, findings), *(cause.reasons if cause is not None else ())),
        first_failing_stage=None if decision == "release" else stage,
        bottleneck_class=None if decision == "release" else bottleneck_class,
        claims=tuple(claims),
        cause=cause,
        sustained=sustained,
    )


def combine(cells: Iterable[CellVerdict]) -> Verdict:
    """Return the verdict over cells.

    Raises:
        InvariantError: there is no cell; a gate always has one.
    """
    verdict = Verdict(cells=tuple(cells))
    if not verdict.cells:
        raise InvariantError("a verdict needs at least one cell")
    return verdict


def _where(basis: Basis, findings: Sequence[Finding]) -> tuple[str | None, str | None]:
    effect = {"invalid_evidence": "invalidates", "regression": "disproves"}.get(basis)
    deciding = sorted((finding for finding in findings if finding.effect == effect), key=lambda finding: STAGES.index(finding.stage))
    if deciding:
        return deciding[0].stage, next((finding.bottleneck_class for finding in deciding if finding.bottleneck_class), None)
    return (None, None) if basis in ("regression", "proven_safe") else ("release_decision", "measurement")
