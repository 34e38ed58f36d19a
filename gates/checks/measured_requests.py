"""Same requests on both sides, all of them there, all of them served."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.finding import Finding
from gates.measure.pairing import Pairing, aligned, pair_runs, repeated_ids
from replay.ingress.measured.measured_run import COMPLETED, FAILED, TRUNCATED, ZERO_TOKENS

if TYPE_CHECKING:
    from replay.ingress.measured.measured_run import MeasuredRun

_P99_MINIMUM = 1000  # 10 samples beyond p99
LENGTHS_TOLERANCE = 0.05
"""Largest difference of the arms' mean lengths that still counts as the same load."""
FEWEST_CHANGED, ONE_WAY_RATIO = 20, 0.9
"""Answers of another length from which on their direction says something, and the share of them that no chance brings: sampling and other
number formats make answers longer about as often as shorter."""
_PHRASES = {FAILED: "failed", ZERO_TOKENS: "have no output token though they count as served", TRUNCATED: "were cut off or cancelled"}


def requests_recorded(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find runs without requests, runs of percentiles alone, and runs that hold fewer requests than they say."""
    for name, run in evidence.runs:
        n, facts = run.requests.num_rows, run.facts
        if facts.is_valid is False:
            yield about_runs("run_not_valid", f"{name} ({facts.file_name}) was no valid run by the rules of {facts.tool}")
        if run.is_summary:
            message = f"{name} ({facts.file_name}, {facts.format}) holds percentiles and no requests: no claim can be decided from it"
            yield about_runs("summary_only", message, "informs")
        elif n == 0:
            yield about_runs("no_requests", f"{name} ({facts.file_name}) has no requests, so it shows nothing")
        elif facts.expected_count is not None and n < facts.expected_count:
            message = (
                f"{name} ({facts.file_name}) holds {n} of the {facts.expected_count} requests it speaks of: what is missing may be the tail"
            )
            yield about_runs("rows_missing", message)
        elif n < _P99_MINIMUM:
            message = f"{name} has {n} requests; no claim about p99 can be decided below {_P99_MINIMUM}"
            yield Finding(code="too_few_requests_for_p99", message=message, effect="informs", stage="release_decision")
        if evidence.trace is not None and not run.is_summary and n < evidence.trace.requests.num_rows:
            message = (
                f"{name} holds {n} requests and trace {evidence.trace.name} has {evidence.trace.requests.num_rows}: the tail may be missing"
            )
            yield about_runs("rows_missing", message)


def requests_served(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find requests that failed, were cut off or brought no token: more than the policy accepts leave a run without its tail."""
    accepted = evidence.policy.max_rejected_ratio
    for name, run in evidence.runs:
        n, facts = run.requests.num_rows, run.facts
        if run.is_summary and facts.expected_count and facts.completed_count is not None:
            n, unserved = facts.expected_count, facts.expected_count - facts.completed_count
            counted = f"{unserved} did not complete"
        else:
            counts = {status: run.count(status) for status in (FAILED, ZERO_TOKENS, TRUNCATED)}
            unserved = sum(counts.values())
            counted = ", ".join(f"{count} {_PHRASES[status]}" for status, count in counts.items() if count)
        if unserved <= 0:
            continue
        claimed = "" if facts.completed_count is None else f" (the file calls {facts.completed_count} completed)"
        message = f"of {n} requests of {name} {counted}{claimed}"
        if unserved > accepted * n:
            message += f": more than {100 * accepted:g} %, so its percentiles are not those of the load"
            yield about_runs("requests_not_served", message)
        else:
            yield about_runs("requests_not_served", f"{message}; they are left out", "informs")


def candidate_serves_fewer(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find a candidate that leaves more requests unserved than chance explains: a regression whatever its latencies are."""
    counts = [sum(run.requests.num_rows - run.count(COMPLETED) for run in arm) for arm in (evidence.baseline, evidence.candidate)]
    sizes = [sum(run.requests.num_rows for run in arm) for arm in (evidence.baseline, evidence.candidate)]
    if not all(sizes) or counts[1] == 0:
        return
    chance = _chance_of_as_many(counts[0], counts[1], sizes[1] / sum(sizes))
    if chance <= evidence.policy.alpha:
        message = (
            f"the candidate leaves {counts[1]} of {sizes[1]} requests unserved and the baseline {counts[0]} of {sizes[0]}; "
            f"by chance that happens in {100 * chance:.2g} % of cases"
        )
        yield Finding(code="requests_unserved", message=message, effect="disproves", stage="execution", bottleneck_class="queueing")


def same_requests(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find runs that did not meet the same requests; where they can be told apart at all, a difference is never small enough."""
    repeated = 0
    for name, run in evidence.runs:
        count = repeated_ids(run)
        repeated += count
        if count:
            yield about_runs(
                "duplicate_ids", f"{count} of {run.requests.num_rows} requests of {name} repeat an id, so none can be told apart"
            )
    first = evidence.baseline[0]
    for name, run in list(evidence.runs)[1:]:
        if repeated == 0 and first.requests.num_rows and run.requests.num_rows:
            yield from _against(first, run, name, evidence.policy.max_rejected_ratio)


def _against(first: MeasuredRun, run: MeasuredRun, name: str, accepted: float) -> Iterator[Finding]:
    pairing = pair_runs(first, run)
    sizes = first.requests.num_rows, run.requests.num_rows
    if pairing.kind == "partial":
        message = (
            f"{name} does not hold the requests of the baseline: {pairing.only_baseline} of {sizes[0]} are only in the baseline and "
            f"{pairing.only_candidate} of {sizes[1]} only here; what is missing may be the tail"
        )
        yield about_runs("requests_differ", message)
    elif pairing.kind == "unpaired":
        message = (
            f"nothing tells which request of {name} is which of the baseline: each run is resampled alone, which needs far more requests"
        )
        yield about_runs("requests_unpaired", message, "informs")
        if abs(sizes[0] - sizes[1]) > max(accepted * max(sizes), 1):
            message = f"{name} holds {sizes[1]} requests and the baseline {sizes[0]}: what is missing may be the tail"
            yield about_runs("counts_differ", message)
    if pairing.kind == "paired":
        yield from _paired_lengths(first, run, pairing, name, accepted)
    for column in ("prompt_tokens", "output_tokens"):
        means = [_mean(one, column) for one in (first, run)]
        if means[0] and means[1] and abs(means[1] / means[0] - 1) > LENGTHS_TOLERANCE:
            message = f"{column} are {means[1]:.4g} on average in {name} and {means[0]:.4g} in the baseline: the loads are not the same"
            yield about_runs("request_shapes_differ", message)


def _paired_lengths(first: MeasuredRun, run: MeasuredRun, pairing: Pairing, name: str, accepted: float) -> Iterator[Finding]:
    """Find pairs that are not of the same prompt, and answers that nearly all got shorter, or longer, where they differ at all."""
    before, after = aligned(first, run, pairing)
    prompts, outputs = (
        [table[column].to_numpy().astype(np.float64) for table in (before, after)] for column in ("prompt_tokens", "output_tokens")
    )
    other = int((np.isfinite(prompts[0]) & np.isfinite(prompts[1]) & (prompts[0] != prompts[1])).sum())
    if other > accepted * before.num_rows:
        message = f"{other} of {before.num_rows} requests of {name} have other prompt lengths than the baseline's of the same ids"
        yield about_runs("requests_differ", message)
    change = outputs[1] - outputs[0]
    shorter, longer = int((change < 0).sum()), int((change > 0).sum())
    most = max(shorter, longer)
    if most >= FEWEST_CHANGED and most >= ONE_WAY_RATIO * (shorter + longer):
        way = "shorter" if shorter > longer else "longer"
        message = (
            f"{most} answers are {way} in {name} and {min(shorter, longer)} the other way: chance does not do that, so what is timed is "
            "not the same work"
        )
        yield about_runs("request_shapes_differ", message)


def _mean(run: MeasuredRun, column: str) -> float | None:
    import pyarrow.compute as pc

    found = pc.mean(run.requests.filter(pc.equal(run.requests["status"], COMPLETED))[column]).as_py()
    return None if found is None else float(found)


def _chance_of_as_many(baseline: int, candidate: int, share: float) -> float:
    """Return the chance that of all unserved requests at least `candidate` fall to the candidate, if both arms lose alike (binomial)."""
    total = baseline + candidate
    if total > 10_000:  # the sum below would take long; so many are far beyond any margin of chance or tolerance
        deviation = (candidate - 0.5 - total * share) / math.sqrt(total * share * (1 - share))
        return 0.5 * math.erfc(deviation / math.sqrt(2.0))
    ways = math.lgamma(total + 1)  # as logarithms: the number of ways is larger than a float from about 1030 requests on
    return sum(
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * math.log(share) + (total - k) * math.log1p(-share))
        for k in range(candidate, total + 1)
    )
