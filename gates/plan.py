"""Plan: every claim, margin and rule of a gate, fixed and digested before the candidate is replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gates.claim import ClaimSpec, subject_phrase
from gates.margins import format_margin
from gates.metrics import MetricDefinition
from gates.policy import PolicySpec
from replay.errors import SpecError
from replay.provenance import digest_document

if TYPE_CHECKING:
    from gates.history.carried import CellDrift
    from replay.assembly.run import Run

METHOD = "paired_circular_block_bootstrap"
RESIMULATION_METHOD = "paired_resimulation"

RULES: dict[str, str] = {
    "method": f"{RESIMULATION_METHOD} where blocks of the trace can follow one another in any order, else {METHOD}",
    "resimulation": "each replicate joins circular blocks of (gap, request) to one continuous trace and replays both arms on it; "
    "a kernel's error that both arms share is the same draw in both, that of a changed kernel's ratio is drawn for the candidate alone",
    "interval": "percentile method; two one-sided bounds at alpha",
    "percentile_definition": "the order statistic of rank ceil(n * percentile / 100), counted from 1",
    "pairing": "by position in the trace; one draw of blocks for both arms and for all metrics, percentiles and strata",
    "block_rule": "ceil(n / blocks) consecutive requests (time windows for claims over windows), circular",
    "outcome_order": "holds if the bad-side bound is inside the margin; else disproved if the good-side bound is beyond no change; "
    "else undecided",
    "release_rule": "intersection-union: every blocking claim holds, each at alpha",
    "rollback_rule": "Holm over the cell's blocking claims at alpha",
    "missing_data_rule": "a declared metric or stratum that either arm lacks is undecided; requests that only one arm rejects are left out "
    "of its percentiles and judged as a finding",
    "zero_baseline_rule": "where the baseline is 0, or reaches 0 in a resample, the claim is compared by difference, "
    "against margin x baseline",
    "extension_rule": "from resimulations once to max_resimulations where the sampling error of a blocking claim's bound reaches a value "
    "that it is compared with and no other one is worse beyond that, or one is but misses Holm's level",
    "minimum_detectable_effect": "(z of alpha + z of 80 % power) x standard deviation over the replicates, of the log ratio or "
    "of the difference",
}
"""The rules that no policy changes; they are part of the plan's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """One trace on one accelerator: what is judged on its own and never pooled."""

    trace: str
    trace_digest: str
    hardware: str
    model: str
    layer_types: tuple[str, ...]
    """Layer types of the model as the baseline runs it."""
    trace_kind: str | None = None
    """How the trace came to be; with the digests below, what the names alone would leave open."""
    hardware_digest: str | None = None
    model_digest: str | None = None
    baseline_mapping_digest: str | None = None
    reference_digest: str | None = None
    """Of the traffic that the trace is compared with."""
    quality_claims: tuple[ClaimSpec, ...] = ()
    """What the baseline's quality result leads to."""
    quality_digest: str | None = None
    """Of that result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClaim:
    """One claim as it is fixed beforehand."""

    id: str
    spec: ClaimSpec
    disproof_criterion: str
    rollback_boundary: str

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested."""
        spec, definition = self.spec, self.spec.definition
        return {
            "id": self.id,
            "metric": spec.metric,
            "layer_type": spec.layer_type,
            "percentile": spec.percentile,
            "stratum": spec.stratum,
            "direction": definition.direction,
            "unit": definition.unit,
            "scale": definition.scale,
            "margin": spec.margin,
            "blocking": spec.blocking,
            "disproof_criterion": self.disproof_criterion,
            "rollback_boundary": self.rollback_boundary,
            **({} if spec.of is None else {"of": spec.of}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """The claims about one cell, with the figures that decide them."""

    spec: CellSpec
    claims: tuple[PlannedClaim, ...]
    policy: PolicySpec
    seed: int
    drift: CellDrift | None = None
    """What its blocking claims bring along from the history, where the policy has a budget for drift."""

    @property
    def replayed(self) -> PlannedCell:
        """The cell without claims about quality, which no replay tells; they are the last ones."""
        return replace(self, claims=tuple(claim for claim in self.claims if claim.spec.definition.basis != "quality_items"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a gate will decide, and how; independent of the candidate."""

    cells: tuple[PlannedCell, ...]
    policy: PolicySpec
    seed: int
    as_of: str | None = None
    """The moment ages are counted from, where one was given."""
    rules: Mapping[str, str] = field(default_factory=lambda: RULES)
    archive_digest: str | None = None
    """Of the archived runs that say how much measured runs differ."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested."""
        policy = self.policy
        return {
            "policy_digest": policy.digest,
            "as_of": self.as_of,
            "seed": str(self.seed),
            "alpha": policy.alpha,
            "replicates": policy.replicates,
            "resimulations": policy.resimulations,
            "max_resimulations": policy.max_resimulations,
            "blocks": policy.blocks,
            "minimum_beyond": policy.minimum_beyond,
            "warning_beyond": policy.warning_beyond,
            "minimum_windows": policy.minimum_windows,
            "allow_synthetic": policy.allow_synthetic,
            "max_trace_age_days": policy.max_trace_age_days,
            "max_rejected_ratio": policy.max_rejected_ratio,
            "strata": sorted({claim.spec.stratum for cell in self.cells for claim in cell.claims}),
            "slo": None if policy.slo is None else {name: getattr(policy.slo, name) for name in policy.slo.__slots__},
            "run_effect_sd": policy.run_effect_sd,
            "archive_digest": self.archive_digest,
            "rules": dict(self.rules),
            "cells": [
                {
                    "trace": cell.spec.trace,
                    "trace_digest": cell.spec.trace_digest,
                    "trace_kind": cell.spec.trace_kind,
                    "hardware": cell.spec.hardware,
                    "hardware_digest": cell.spec.hardware_digest,
                    "model": cell.spec.model,
                    "model_digest": cell.spec.model_digest,
                    "baseline_mapping_digest": cell.spec.baseline_mapping_digest,
                    **({} if cell.spec.reference_digest is None else {"reference_digest": cell.spec.reference_digest}),
                    **({} if cell.spec.quality_digest is None else {"quality_digest": cell.spec.quality_digest}),
                    "claims": [claim.to_document() for claim in cell.claims],
                    **({} if cell.drift is None else {"drift": cell.drift.to_document()}),
                }
                for cell in self.cells
            ],
        }

    @property
    def digest(self) -> str:
        """Digest of the canonical JSON."""
        return digest_document(self.to_document())


def cell_of(
    baseline: Run, *, trace_kind: str | None = None, hardware_digest: str | None = None, model_digest: str | None = None
) -> CellSpec:
    """Return the cell that a baseline run stands for; waiting for the host is no layer type.

    A run names its trace, accelerator and model; what the names stand for is told beside it.
    """
    from replay.assembly.layers import HOST_LAYER

    return CellSpec(
        trace=baseline.trace,
        trace_digest=baseline.trace_digest,
        hardware=baseline.hardware,
        model=baseline.model,
        layer_types=tuple(layer for layer in baseline.layers["layer_type"].to_pylist() if layer != HOST_LAYER),
        trace_kind=trace_kind,
        hardware_digest=hardware_digest,
        model_digest=model_digest,
        baseline_mapping_digest=baseline.mapping_digest,
    )


def make_plan(
    policy: PolicySpec, cells: Sequence[CellSpec], seed: int, *, as_of: str | None = None, rules: Mapping[str, str] = RULES
) -> Plan:
    """Return the plan: the policy's claims written out for every cell.

    Raises:
        SpecError: the policy has too few replicates for as many blocking claims, or two cells are the same.
    """
    planned = []
    for cell in cells:
        claims = tuple(_planned(spec, cell, policy.alpha) for spec in _specs(policy, cell))
        _check_resolution(policy, sum(claim.spec.blocking for claim in claims))
        planned.append(PlannedCell(spec=cell, claims=claims, policy=policy, seed=seed))
    names = [(cell.trace, cell.hardware) for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        got = f"trace {twice[0]} on {twice[1]} is given twice"
        raise SpecError("the plan", got, "each cell once", "name every trace and accelerator once")
    return Plan(cells=tuple(planned), policy=policy, seed=seed, as_of=as_of, rules=rules)


def _specs(policy: PolicySpec, cell: CellSpec) -> Iterator[ClaimSpec]:
    yield from policy.claims
    for spec in policy.layer_claims:
        for layer_type in cell.layer_types:
            yield replace(spec, layer_type=layer_type)
    yield from cell.quality_claims


def _check_resolution(policy: PolicySpec, blocking_count: int) -> None:
    """Refuse a plan in which Holm could never reject: the smallest p-value is 1 / (replicates + 1)."""
    needed = round(blocking_count / policy.alpha)
    if policy.replicates < needed:
        got = f"replicates is {policy.replicates} for {blocking_count} blocking claims at alpha {policy.alpha:g}"
        raise SpecError("the policy", got, f"at least {needed} replicates", "raise replicates, or make some claims advisory")


def _planned(spec: ClaimSpec, cell: CellSpec, alpha: float) -> PlannedClaim:
    subject = subject_phrase(spec.metric, layer_type=spec.layer_type, percentile=spec.percentile, stratum=spec.stratum, of=spec.of)
    return PlannedClaim(
        id=f"{cell.trace}/{cell.hardware}/{spec.key}",
        spec=spec,
        disproof_criterion=_disproof_criterion(spec, cell, alpha, subject),
        rollback_boundary=_rollback_boundary(spec, subject),
    )


def _disproof_criterion(spec: ClaimSpec, cell: CellSpec, alpha: float, subject: str) -> str:
    definition = spec.definition
    lower_is_better = definition.direction == "lower"
    sign = 1 if lower_is_better else -1
    if definition.scale == "ratio":
        compared, no_change, limit = "candidate/baseline", "1", f"{1 + sign * spec.margin:g}"
    else:
        compared, no_change, limit = "candidate - baseline", "0", f"{sign * spec.margin:g}"
    good, bad, beyond = ("lower", "upper", "above") if lower_is_better else ("upper", "lower", "below")
    adjusted = f", with a Holm-adjusted p of at most {alpha:g}" if spec.blocking else ""
    return (
        f"{subject}, trace {cell.trace}, {cell.hardware}: the candidate is no more than {_worse(spec.margin, definition)}. "
        f"Disproved when the one-sided {100 * (1 - alpha):g} % {bad} bound of {compared} is {beyond} {limit} "
        f"and the {good} bound is {beyond} {no_change}{adjusted}."
    )


def _worse(margin: float, definition: MetricDefinition) -> str:
    amount = format_margin(margin, definition)
    return (
        f"{amount} worse"
        if definition.scale == "ratio"
        else f"{amount} {'above' if definition.direction == 'lower' else 'below'} the baseline"
    )


def _rollback_boundary(spec: ClaimSpec, subject: str) -> str:
    definition = spec.definition
    lower_is_better = definition.direction == "lower"
    moves = "rises above" if lower_is_better else "falls below"
    if definition.scale == "ratio":
        return f"Roll back when {subject} {moves} {1 + (1 if lower_is_better else -1) * spec.margin:g} x the baseline's."
    return f"Roll back when {subject} {moves} the baseline's {'+' if lower_is_better else '-'} {format_margin(spec.margin, definition)}."
