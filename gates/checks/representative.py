"""Representativeness: whether the trace has the request shapes and the load of recent traffic, the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gates.checks.check import Evidence
from gates.finding import Finding

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.policy import Representativeness
    from replay.ingress.trace import Trace

_LOADS = {"mean_rate_per_s": "requests per second on average", "peak_60s_requests": "requests in the fullest minute"}


def represents(evidence: Evidence) -> Iterator[Finding]:
    """Find a trace whose shapes or load are further from the reference than the policy accepts."""
    limits, name = evidence.policy.representativeness, evidence.baseline.trace
    if evidence.reference is None:
        yield from without_reference(limits, name)
        return
    yield from shapes_alike(limits, name, evidence.baseline.requests, evidence.reference)
    if evidence.trace is not None:
        yield from load_alike(limits, evidence.trace, evidence.reference)


def without_reference(limits: Representativeness, name: str) -> Iterator[Finding]:
    """Find that there is no reference where the policy makes one count."""
    if limits.effect == "invalidates":
        message = f"the policy asks how far trace {name} is from recent traffic and no reference was given: name one with --reference"
        yield _finding("reference_missing", message, limits)


def shapes_alike(limits: Representativeness, name: str, requests: pa.Table, reference: Trace) -> Iterator[Finding]:
    """Find requests (with `prompt_tokens` and `output_tokens`) whose mix of shapes is too far from the reference's, or lacks too much."""
    from replay.ingress.shape_mix import compare_shapes

    if not requests.num_rows or not reference.requests.num_rows:
        yield _finding("reference_unusable", f"trace {name} or its reference {reference.name} has no requests to compare", limits)
        return
    mix = compare_shapes(requests, reference.requests)
    if mix.distance_ratio > limits.max_shape_distance + mix.chance_ratio:
        message = (
            f"{mix.distance_ratio:.1%} of the requests of trace {name} would need other lengths to have the mix of the reference "
            f"{reference.name} (total variation over octaves of prompt and output; {mix.chance_ratio:.1%} by chance); "
            f"the policy accepts {limits.max_shape_distance:.1%} beyond chance"
        )
        yield _finding("shape_mix_differs", message, limits)
    if mix.coverage_ratio < limits.min_coverage_ratio:
        message = (
            f"trace {name} has only {mix.coverage_ratio:.1%} of the shapes of the reference {reference.name} by requests, and the policy "
            f"wants {limits.min_coverage_ratio:.1%}: {mix.missing}"
        )
        yield _finding("shapes_not_covered", message, limits)


def load_alike(limits: Representativeness, trace: Trace, reference: Trace) -> Iterator[Finding]:
    """Find a trace whose load is further from the reference's than the policy accepts, or cannot be compared."""
    from replay.ingress.shape_mix import load_ratios

    ratios = load_ratios(trace, reference)
    if ratios is None:
        message = f"trace {trace.name} or its reference {reference.name} does not say when requests arrived: their loads cannot be compared"
        yield _finding("load_not_comparable", message, limits)
        return
    most = limits.max_load_ratio
    apart = [f"{ratio:.3g} x its {_LOADS[name]}" for name, ratio in ratios.items() if not 1.0 / most <= ratio <= most]
    if apart:
        message = f"trace {trace.name} has {' and '.join(apart)} of the reference {reference.name}; the policy accepts a factor of {most:g}"
        yield _finding("load_differs_from_reference", message, limits)


def _finding(code: str, message: str, limits: Representativeness) -> Finding:
    return Finding(code=code, message=message, effect=limits.effect, stage="ingress", bottleneck_class="measurement")
