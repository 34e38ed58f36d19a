"""Rules of the plain replay that only some schedulers and queues have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.execution.twin_engine import Chunk, Engine, Request


def continue_by_priority(engine: Engine, budget: int) -> list[Chunk]:
    """Compute more of running requests, preempting the worst where blocks run out, even if it had its share."""
    shares: dict[Request, int] = {}
    left = [request for request in engine.running if engine.may_compute(request)]
    while left and budget:
        tokens = min(left[0].known - left[0].computed, budget)
        wanted = sum(engine.missing(request, share) for request, share in shares.items()) + engine.missing(left[0], tokens)
        if wanted <= engine.pool.free_count:
            shares[left.pop(0)] = tokens
            budget -= tokens
            continue
        worst = max(engine.running, key=lambda request: request.rank)
        gives_up = worst is left[0] and bool(shares)
        budget += shares.pop(worst, 0)
        left = [request for request in left if request is not worst]
        engine.preempt(worst)
        if gives_up:
            break
    chunks = []
    for request, tokens in shares.items():
        request.blocks += [engine.pool.take() for _ in range(engine.missing(request, tokens))]
        chunks.append(engine.compute(request, tokens, is_decode=request.computed >= request.prompt_now))
    return chunks


def batch_is_full(engine: Engine) -> bool:
    """Whether nobody could join a static batch of all that wait, or somebody in it was preempted."""
    tokens = sum(request.row["prompt_tokens"] for request in engine.waiting)
    full = len(engine.waiting) >= engine.limits.max_running or tokens >= engine.limits.max_batched_tokens
    return full or any(request.preemptions for request in (*engine.preempted, *engine.waiting))


def preferred_size(engine: Engine) -> int:
    """The largest preferred size of a batch that those that wait can form, else 0."""
    return max((size for size in engine.limits.preferred_sizes if size <= len(engine.waiting)), default=0)


def batch_seats(engine: Engine) -> int:
    """How many requests a static batch may have that starts now."""
    return engine.limits.max_running if batch_is_full(engine) else preferred_size(engine) or engine.limits.max_running
