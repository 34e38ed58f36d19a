"""Evidence validity: whether two runs can be compared at all, and what a release would rest on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gates.checks.check import Evidence
from gates.finding import Finding

_P99_MINIMUM = 1000  # 10 samples beyond p99


def requests_present(evidence: Evidence) -> Iterator[Finding]:
    """Find traces that are empty or too short for any claim about p99."""
    n = evidence.baseline.requests.num_rows
    if n == 0:
        yield _invalid("no_requests", f"trace {evidence.baseline.trace} has no requests, so it shows nothing")
    elif n < _P99_MINIMUM:
        message = f"trace {evidence.baseline.trace} has {n} requests; no claim about p99 can be decided below {_P99_MINIMUM}"
        yield Finding(code="too_few_requests_for_p99", message=message, effect="informs", stage="release_decision")


def arms_comparable(evidence: Evidence) -> Iterator[Finding]:
    """Find arms that did not replay the same requests on the same accelerator and model."""
    baseline, candidate = evidence.baseline, evidence.candidate
    if baseline.trace_digest != candidate.trace_digest:
        names = [f"{run.trace} ({run.trace_digest})" for run in (baseline, candidate)]
        yield _invalid("trace_differs", f"the arms replayed different traces: {names[0]} and {names[1]}")
    for name in ("hardware", "model", "window_s"):
        of_baseline, of_candidate = getattr(baseline, name), getattr(candidate, name)
        if of_baseline != of_candidate:
            yield _invalid(f"{name}_differs", f"the arms were replayed with {name} {of_baseline} and {of_candidate}")
    yield from _same_requests(evidence)


def _same_requests(evidence: Evidence) -> Iterator[Finding]:
    baseline, candidate = (run.requests["request_id"].to_pylist() for run in (evidence.baseline, evidence.candidate))
    if baseline == candidate:
        yield from _same_shapes(evidence)
        return
    counts = Counter(baseline), Counter(candidate)
    only_baseline, only_candidate = (counts[0] - counts[1]).total(), (counts[1] - counts[0]).total()
    if only_baseline or only_candidate:
        message = (
            f"the arms hold different requests: {only_baseline} of {len(baseline)} only in the baseline, "
            f"{only_candidate} of {len(candidate)} only in the candidate; what is missing may be the tail"
        )
        yield _invalid("requests_differ", message)
    else:
        yield _invalid("request_order_differs", "the arms hold the same requests in different order, so the arrivals differ")


def _same_shapes(evidence: Evidence) -> Iterator[Finding]:
    baseline, candidate = evidence.baseline.requests, evidence.candidate.requests
    clients_wait = evidence.provenance.load is not None  # for answers, so that the arms' arrivals may differ
    for column in ("prompt_tokens", "output_tokens") if clients_wait else ("arrival_s", "prompt_tokens", "output_tokens"):
        if not baseline[column].equals(candidate[column]):
            yield _invalid("request_shapes_differ", f"the arms hold the same request ids with different {column}")


def trace_provenance(evidence: Evidence) -> Iterator[Finding]:
    """Find traces that are not recordings: a synthetic one needs the policy's permission, and the verdict says so."""
    trace, provenance = evidence.baseline.trace, evidence.provenance
    if provenance.kind == "synthetic" and not evidence.policy.allow_synthetic:
        message = (
            f"trace {trace} is synthetic ({provenance.origin}) and the policy does not allow it: "
            "it cannot by itself support a release. Replay a recorded trace, or set allow_synthetic = true"
        )
        yield _invalid("synthetic_trace_not_allowed", message)
    elif provenance.kind == "synthetic":
        message = f"every claim here is about the synthetic trace {trace} ({provenance.origin}), not about production"
        yield Finding(code="synthetic_trace", message=message, effect="informs", stage="ingress")
    elif provenance.kind == "reconstructed":
        notes = "; ".join(provenance.notes) or provenance.origin
        message = f"trace {trace} is reconstructed, so part of it was derived and not observed: {notes}"
        yield Finding(code="reconstructed_trace", message=message, effect="informs", stage="ingress")
    yield from _origin(evidence)


def _origin(evidence: Evidence) -> Iterator[Finding]:
    """Say where nothing, or only somebody's word, stands for the rows being a recording."""
    trace, provenance = evidence.baseline.trace, evidence.provenance
    if provenance.origin_unstated:
        message = (
            f"nothing says where the rows of trace {trace} come from ({provenance.origin}): they may be synthetic, "
            "and the verdict is about production only if they are not. Import the recording itself, or state its origin with --origin"
        )
        yield Finding(code="origin_unstated", message=message, effect="informs", stage="ingress")
    elif provenance.origin_stated_on_import:
        message = f"that trace {trace} was recorded rests on what a person stated on import: {provenance.origin}"
        yield Finding(code="origin_stated_on_import", message=message, effect="informs", stage="ingress")


def _invalid(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")
