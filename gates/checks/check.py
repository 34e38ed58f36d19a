"""What a check looks at and what it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gates.finding import Finding

if TYPE_CHECKING:
    from gates.policy import PolicySpec
    from replay.assembly.run import Run
    from replay.ingress.trace import Trace
    from replay.lowering.kernel_plan import KernelPlan
    from replay.provenance import TraceProvenance
    from replay.specs.mapping import MappingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Both arms of a cell, how the trace came to be, and the policy that permits or forbids."""

    baseline: Run
    candidate: Run
    provenance: TraceProvenance
    policy: PolicySpec
    as_of: str | None = None
    """ISO time that ages are counted from; None where the policy limits none."""
    plans: tuple[KernelPlan, KernelPlan] | None = None
    """Kernels of the baseline and of the candidate; None where only runs are at hand."""
    mappings: tuple[MappingSpec, MappingSpec] | None = None
    """Of the baseline and of the candidate; None where only runs are at hand."""
    trace: Trace | None = None
    """What both arms replayed, where it is at hand."""
    reference: Trace | None = None
    """Recent traffic that the trace is compared with."""
    has_quality: bool = False
    """Whether claims about the quality of the answers are judged beside."""


class Check(Protocol):
    """One question about a cell's evidence."""

    def __call__(self, evidence: Evidence) -> Iterable[Finding]:
        """Return what was found; nothing where all is well."""
        ...
