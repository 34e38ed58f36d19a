"""The load both arms met: what was asked for, what was sent, when latencies start to count, cache and warm-up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.finding import Finding
from gates.measure.pairing import in_arrival_order
from replay.ingress.measured.measured_run import COMPLETED

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.ingress.measured.measured_run import MeasuredRun

RATE_TOLERANCE = 0.01
"""Largest relative difference of offered rates."""
SENT_TOLERANCE = 0.10
"""Largest shortfall of the rate sent against the rate offered, beside what a Poisson process of so few requests explains."""
ACHIEVED_TOLERANCE = 0.05
"""Largest relative difference of the rates sent, where the offered ones are not recorded."""
OVERLOAD_RATIO = 0.75
"""Share of the offered rate below which a server that completes no more counts as overloaded."""
CACHE_TOLERANCE = 0.05
"""Largest difference of the shares of prompt tokens found in the cache."""
WARM_UP_REQUESTS, WARM_UP_RATIO, STEADY_RATIO = 10, 2.0, 1.25
"""The first requests; how much slower than the rest they are after a cold start, and at most without one."""


def offered_load(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find arms that were asked for different loads."""
    first = evidence.baseline[0].facts
    for name, run in list(evidence.runs)[1:]:
        rates = first.offered_rate_per_s, run.facts.offered_rate_per_s
        if rates[0] is not None and rates[1] is not None and not _close(rates[0], rates[1], RATE_TOLERANCE):
            message = (
                f"{name} was offered {_rate(rates[1])} and the baseline {_rate(rates[0])}: their latencies are those of different loads"
            )
            yield about_runs("offered_load_differs", message)
        if first.concurrency != run.facts.concurrency:
            message = f"{name} had {_cap(run.facts.concurrency)} and the baseline {_cap(first.concurrency)}: the loads differ"
            yield about_runs("concurrency_differs", message)
        yield from _achieved_alike(evidence.baseline[0], run, name)


def _achieved_alike(first: MeasuredRun, run: MeasuredRun, name: str) -> Iterator[Finding]:
    if not met_alike(first, run):
        rates = [_rate(_sent_rate(one) or _scheduled_rate(one)) for one in (first, run)]
        message = f"{name} was sent {rates[1]} and the baseline {rates[0]}; no file says what was offered, so the loads may differ"
        yield about_runs("achieved_load_differs", message)


def met_alike(first: MeasuredRun, run: MeasuredRun) -> bool:
    """Return whether two runs met the same rate as far as their requests tell; True where files say what was offered, or none tells."""
    if any(one.facts.offered_rate_per_s is not None or one.facts.concurrency is not None for one in (first, run)):
        return True
    rates, tolerance = [_sent_rate(one) for one in (first, run)], ACHIEVED_TOLERANCE
    if None in rates:
        rates = [_scheduled_rate(one) for one in (first, run)]
        # Each run may have drawn its own arrivals: of so many requests of a Poisson process the rate is known to 1 / sqrt(n).
        tolerance = max(tolerance, 3.0 * math.sqrt(sum(1.0 / max(1, one.requests.num_rows) for one in (first, run))))
    return rates[0] is None or rates[1] is None or _close(rates[0], rates[1], tolerance)


def load_was_sent(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find runs whose load generator did not send what it was asked to, and servers that did not keep up with it."""
    for name, run in evidence.runs:
        offered, facts = run.facts.offered_rate_per_s, run.facts
        if offered is None or math.isinf(offered):
            continue
        sent, n = _sent_rate(run), run.requests.num_rows or facts.expected_count or 0
        if sent is not None and n and sent < offered * (1 - max(SENT_TOLERANCE, 3 / math.sqrt(n))):
            message = f"{name} was to send {_rate(offered)} and sent {_rate(sent)}: the load was not the one it is called by"
            yield about_runs("offered_load_not_reached", message)
        elif (
            sent is None
            and facts.duration_s
            and facts.expected_count
            and facts.expected_count < OVERLOAD_RATIO * offered * facts.duration_s
        ):
            served = facts.expected_count / facts.duration_s
            message = f"{name} was offered {_rate(offered)} and completed {_rate(served)}: its percentiles depend on how long the run was"
            yield Finding(code="overloaded", message=message, effect="informs", stage="release_decision", bottleneck_class="queueing")


def arrivals(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find latencies that leave out the wait before sending (coordinated omission), or that start at different moments."""
    kinds = {run.facts.arrivals for _, run in evidence.runs}
    if len(kinds) > 1:
        message = f"latencies count from different moments in the runs ({', '.join(sorted(kinds))})"
        yield about_runs("arrival_meaning_differs", message)
    for name, run in evidence.runs:
        facts = run.facts
        capped = facts.offered_rate_per_s is not None and math.isfinite(facts.offered_rate_per_s) and facts.concurrency is not None
        if facts.arrivals != "scheduled" and capped:
            message = (
                f"{name} sent {_rate(facts.offered_rate_per_s)} with {_cap(facts.concurrency)} and counts latencies from the sending: "
                "what waited at the client is left out. Record scheduled arrivals, or send without the cap"
            )
            yield about_runs("coordinated_omission", message)
    if kinds == {"sent"}:
        yield about_runs(
            "arrivals_sent", "latencies count from the sending; whether the client sent on schedule is not recorded", "informs"
        )
    elif kinds == {"none"} and not evidence.baseline[0].is_summary:
        message = "the files record no arrivals: blocks follow the order of the file, and the load cannot be checked"
        yield about_runs("arrivals_unknown", message, "informs")


def cache_state(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find arms whose prompts were found in the cache to different shares: a benchmark sent again measures the cache."""
    first = _hit_share(evidence.baseline[0])
    for name, run in list(evidence.runs)[1:]:
        share = _hit_share(run)
        if first is not None and share is not None and abs(share - first) > CACHE_TOLERANCE:
            message = (
                f"cache state differs between arms: {100 * first:.0f} % of the baseline's prompt tokens were found in the cache and "
                f"{100 * share:.0f} % of those of {name}. Reset the cache before each run"
            )
            yield about_runs("cache_state_differs", message)
    if first is None and any(run.requests.num_rows for _, run in evidence.runs):
        message = "no file records what was found in the prefix cache: that both arms started alike is not shown"
        yield about_runs("cache_state_unknown", message, "informs")


def warm_up(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find runs that began cold: one arm alone makes the arms differ, both make the tail that of the start."""
    ratios = {name: ratio for name, run in evidence.runs if (ratio := _start_ratio(run)) is not None}
    cold = [name for name, ratio in ratios.items() if ratio > WARM_UP_RATIO]
    if not cold:
        return
    times = ", ".join(f"{ratios[name]:.1f} x the rest in {name}" for name in cold)
    message = f"the first {WARM_UP_REQUESTS} requests took long to their first token ({times}): a cold start. Send warm-up requests first"
    alone = any(ratio < STEADY_RATIO for ratio in ratios.values())
    yield about_runs("cold_start_in_one_arm" if alone else "cold_start", message, "invalidates" if alone else "informs")


def _sent_rate(run: MeasuredRun) -> float | None:
    """Return requests per second that were sent, as the tool measured or as the rows say; None where neither is recorded."""
    if run.facts.achieved_rate_per_s is not None:
        return run.facts.achieved_rate_per_s
    return _rate_of(run.requests["arrival_s" if run.facts.arrivals != "scheduled" else "sent_s"])


def _scheduled_rate(run: MeasuredRun) -> float | None:
    """Return requests per second by the arrivals that latencies count from, None where they are not recorded."""
    return _rate_of(run.requests["arrival_s"])


def _rate_of(times: pa.ChunkedArray) -> float | None:
    import pyarrow.compute as pc

    if len(times) < 2 or times.null_count:
        return None
    span = pc.subtract(pc.max(times), pc.min(times)).as_py()
    return None if span <= 0 else (len(times) - 1) / float(span)


def _hit_share(run: MeasuredRun) -> float | None:
    import pyarrow.compute as pc

    hits, prompts = (run.requests[name] for name in ("prefix_hit_tokens", "prompt_tokens"))
    if not len(hits) or hits.null_count or prompts.null_count:
        return None
    total = pc.sum(prompts).as_py()
    return float(pc.sum(hits).as_py()) / total if total else None


def _start_ratio(run: MeasuredRun) -> float | None:
    """Return the median TTFT of the first requests over that of the rest; None for runs ten times as short as that takes."""
    import numpy as np
    import pyarrow.compute as pc

    if run.facts.arrivals == "none":
        return None
    done = in_arrival_order(run.requests.filter(pc.equal(run.requests["status"], COMPLETED)))
    if done.num_rows < 10 * WARM_UP_REQUESTS or done["ttft_s"].null_count:
        return None
    values = done["ttft_s"].to_numpy()
    rest = float(np.median(values[WARM_UP_REQUESTS:]))
    return float(np.median(values[:WARM_UP_REQUESTS])) / rest if rest > 0 else None


def _close(first: float, second: float, tolerance: float) -> bool:
    if math.isinf(first) or math.isinf(second):
        return first == second
    return abs(first - second) <= tolerance * max(first, second)


def _rate(rate: float | None) -> str:
    return "all requests at once" if rate is not None and math.isinf(rate) else f"{rate:.4g} requests/s"


def _cap(concurrency: int | None) -> str:
    return "no cap on concurrency" if concurrency is None else f"at most {concurrency} requests under way"
