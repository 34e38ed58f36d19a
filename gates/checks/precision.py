"""Precision: number formats that change what the model computes, which no replay of latencies can judge."""

from __future__ import annotations

from collections.abc import Iterator

from gates.checks.check import Evidence
from gates.finding import Finding
from replay.lowering.kernel_plan import FORMAT_BYTES, KernelPlan
from replay.specs.mapping import MappingSpec, diff

SPARSE, DENSE = "2:4", "dense"


def quality_evidence(evidence: Evidence) -> Iterator[Finding]:
    """Find formats that really change and do not get wider: a gain in speed needs evidence about the quality of the answers.

    What counts is what runs, not what was asked for. A wider format keeps every value of the narrower one.
    """
    if evidence.plans is None or evidence.has_quality:
        return
    changes = format_changes(*evidence.plans)
    if evidence.mappings is not None:
        changes += setting_changes(*evidence.mappings)
    if changes:
        message = (
            f"{'; '.join(changes)}: latencies cannot show what that does to the answers, and no quality evidence was given. "
            "Revert the formats, or judge their quality before this change ships"
        )
        yield Finding(
            code="quality_evidence_missing", message=message, effect="invalidates", stage="quality_sla", bottleneck_class="measurement"
        )


def format_changes(baseline: KernelPlan, candidate: KernelPlan) -> list[str]:
    """Return each change of an operand's effective format to one that is not wider, in words, by layer type and operand."""
    before, after = _formats(baseline), _formats(candidate)
    return [
        f"{operand} of {layer} {before[layer, operand]} -> {name}"
        for (layer, operand), name in after.items()
        if before.get((layer, operand), name) != name and _loses_values(before[layer, operand], name)
    ]


def setting_changes(baseline: MappingSpec, candidate: MappingSpec) -> list[str]:
    """Return each change, in words, of a knob that changes numbers and no price; sums in fp32 keep every value of narrower ones."""
    changes = (change for change in diff(baseline, candidate) if not change.definition.priced)
    return [
        f"{change.knob} {change.baseline} -> {change.candidate}"
        for change in changes
        if (change.definition.name, change.candidate) != ("formats.accumulation", "fp32")
    ]


def _loses_values(before: str, after: str) -> bool:
    """Return whether values may change: the format does not get wider, or weights become sparse."""
    return after == SPARSE if SPARSE in (before, after) else FORMAT_BYTES[after] <= FORMAT_BYTES[before]


def _formats(plan: KernelPlan) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for kernel in plan.kernels:
        if kernel.backends:
            found[kernel.layer_type, "weights"] = kernel.weights_format
            found[kernel.layer_type, "sparsity of weights"] = SPARSE if kernel.sparse else DENSE
            found[kernel.layer_type, "activations"] = kernel.activations_format
        if kernel.phase is not None:
            found[kernel.layer_type, "key-value cache"] = kernel.kv_format
    return found
