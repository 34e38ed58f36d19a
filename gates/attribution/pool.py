"""The cache pool and what its want of room does to requests: preemptions, refusals, queueing."""

from __future__ import annotations

import pyarrow.compute as pc

from gates.rejections import KV_CAPACITY
from replay.assembly.run import Run
from replay.tiling.step_table import StepTable


def pool_failure(baseline: Run, candidate: Run, before: StepTable, after: StepTable) -> str | None:
    """Return how the cache pool shrank where the candidate also preempts, rejects or waits more, else None."""
    tokens_before, tokens_after = pool_tokens(before), pool_tokens(after)
    if tokens_after >= tokens_before:
        return None
    preempted = preemptions_count(candidate) - preemptions_count(baseline)
    rejected = rejected_count(candidate, KV_CAPACITY) - rejected_count(baseline, KV_CAPACITY)
    queued_s = mean_queue_s(candidate) - mean_queue_s(baseline)
    if preempted <= 0 and rejected <= 0 and queued_s <= 0:
        return None
    return (
        f"the cache pool shrinks from {tokens_before} to {tokens_after} tokens; on replay {preempted:+d} preemptions, "
        f"{rejected:+d} requests that never fit, {queued_s:+.4g} s of queueing on average"
    )


def demand_failure(before: Run, after: Run, pool: StepTable) -> str | None:
    """Return how the demand for cache outgrew a pool that is as large as it was, else None."""
    preempted = preemptions_count(before), preemptions_count(after)
    rejected = rejected_count(after, KV_CAPACITY) - rejected_count(before, KV_CAPACITY)
    if preempted[1] <= preempted[0] and rejected <= 0:
        return None
    wasted = recomputed_ratio(after)
    return (
        f"the demand for cache outgrows the pool of {pool_tokens(pool)} tokens: {preempted[1]} preemptions instead of {preempted[0]}, "
        f"{rejected:+d} requests that never fit; {wasted:.1%} of the prefill tokens are computed again"
    )


def pool_tokens(table: StepTable) -> int:
    """Return the tokens that fit in the cache pool."""
    return table.pool.blocks_count * table.pool.block_tokens


def recomputed_ratio(run: Run) -> float:
    """Return the share of a replay's prefill tokens that had been computed before and were lost to a preemption."""
    prefill = int(pc.sum(run.steps["prefill_tokens"]).as_py() or 0)
    return int(pc.sum(run.steps["recomputed_tokens"]).as_py() or 0) / prefill if prefill else 0.0


def preemptions_count(run: Run) -> int:
    """Return the preemptions of a whole replay."""
    return int(pc.sum(run.requests["preemptions_per_request"]).as_py() or 0)


def rejected_count(run: Run, reason: str) -> int:
    """Return the requests that one limit refuses."""
    return dict(run.rejected).get(reason, 0)


def refused_count(run: Run) -> int:
    """Return the requests that any limit refuses."""
    return sum(count for _, count in run.rejected)


def mean_queue_s(run: Run) -> float:
    """Return the mean queueing time of the requests that were served; 0 where none was."""
    return mean_s(run, "queue_s")


def mean_s(run: Run, column: str) -> float:
    """Return the mean of a time of the requests that have it; 0 where none has."""
    return float(pc.mean(run.requests[column]).as_py() or 0.0)
