"""Quality in one cell: the figures of its claims for the candidate, and for any mix of both arms' mappings that is replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gates.finding import Finding
from gates.measure.measured import Measured
from gates.quality.checks import quality_findings
from gates.quality.claims import traffic_by_bin
from gates.quality.measure import QualityPair, measure_quality, unchanged, unknown
from gates.statement import InputRecord

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from gates.request import Cell, Evaluated, GateRequest, QualityInput
    from replay.specs.mapping import MappingSpec

_FORMATS = "formats."
_ORDERS = ("attention.kv_split", "gemm.split_k", "attention.backend", "gemm.backend")
"""Knobs that change in which order sums are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellQuality:
    """What is known of the quality of the mappings that one cell replays."""

    baseline: MappingSpec
    candidate: MappingSpec
    measured: tuple[Measured, ...]
    """Of the candidate, for each claim about quality."""
    findings: tuple[Finding, ...]
    alpha: float

    @classmethod
    def of(cls, request: GateRequest, evaluated: Evaluated, planned: PlannedCell, cell: Cell) -> CellQuality:
        """Return the quality of both arms in a cell; of one without evaluations nothing is known or claimed."""
        arms = request.baseline.mapping, request.candidate.mapping
        if evaluated is None:
            return cls(baseline=arms[0], candidate=arms[1], measured=(), findings=(), alpha=request.policy.alpha)
        pair = QualityPair(
            baseline=evaluated[0], candidate=evaluated[1], traffic=traffic_by_bin(request.policy, cell.trace.requests["prompt_tokens"])
        )
        measured = tuple(measure_quality(planned, planned.spec.quality_claims, pair))
        findings = tuple(quality_findings(pair))
        return cls(baseline=arms[0], candidate=arms[1], measured=measured, findings=findings, alpha=request.policy.alpha)

    def of_mapping(self, mapping: MappingSpec) -> Sequence[Measured]:
        """Return the figures of a mapping's claims: the candidate's where it computes what the candidate does, no difference where it
        computes what the baseline does, and none where it is a mix that nobody evaluated.
        """
        numerics = _numerics(mapping)
        if numerics == _numerics(self.candidate):
            return self.measured
        return unchanged(self.measured, self.alpha) if numerics == _numerics(self.baseline) else unknown(self.measured)


def evaluation_records(given: QualityInput | None, evaluated: Evaluated) -> Iterator[InputRecord]:
    """Yield both evaluations as inputs of the verdict."""
    if given is not None and evaluated is not None:
        for name, result in zip((given.baseline_name, given.candidate_name), evaluated, strict=True):
            yield InputRecord(role="quality", name=name, digest=result.facts.digest, rows=result.items.num_rows or None)


def _numerics(mapping: MappingSpec) -> dict[str, object]:
    """Return the settings that decide which numbers a mapping computes with, and in which order."""
    return dict(_of_numerics(mapping))


def _of_numerics(mapping: MappingSpec) -> Iterator[tuple[str, object]]:
    for setting in mapping.settings:
        name = setting.knob.partition("@")[0]
        if name.startswith(_FORMATS) or name in _ORDERS:
            yield setting.knob, setting.value
