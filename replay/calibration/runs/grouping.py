"""Whether steps hold the requests that they held: a replay whose clock is set to the ends of the log's steps.

Left to itself, a replay that is a few milliseconds off soon lets a request into another step, and everyone behind it: that says little
about the rules it composes steps by. So here a step out of which a request's first or last token comes ends when the log says, and
the steps between, of whose ends a log knows nothing, take what the step model says.

Prompts that begin alike decide which others fit a step beside them: where the log's prefixes are unknown, one step holds fewer prompts
than it did, and so do those behind it until the queue is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import hypot
from statistics import mode

import numpy as np

from replay.calibration.runs.log import RunLog
from replay.calibration.runs.server import Server
from replay.calibration.runs.step_model import StepTables, captured_tokens
from replay.execution.cache_arrays import trace_block_tokens
from replay.execution.twin_engine import Chunk, Engine, Request
from replay.specs.run_calibration import StepGrouping, StepParameters

Token = tuple[str, bool]
"""A request's id, and whether its last token is meant, else its first."""


def forced_grouping(log: RunLog, parameters: StepParameters, first: int) -> StepGrouping:
    """Return how many of the log's steps give exactly the first and last tokens that they gave, of requests from row `first` on.

    Equal stamps share a step. Every request must fit the server (see `LogReplay.latencies`), and runs from the log's start.
    """
    stamps = _stamps(log)
    judged = set(log.observed["request_id"].to_pylist()[first:])
    steps: dict[float, set[Token]] = {}
    for token, stamp_s in stamps.items():
        steps.setdefault(stamp_s, set()).add(token)
    wanted = {frozenset(tokens) for tokens in steps.values() if any(name in judged for name, _ in tokens)}
    return StepGrouping(steps_count=len(wanted), alike_count=len(wanted & set(_forced_steps(log, parameters, stamps))))


def _stamps(log: RunLog) -> dict[Token, float]:
    names, firsts, lasts = (log.observed[name].to_pylist() for name in ("request_id", "first_token_s", "last_token_s"))
    return {(name, last): stamp_s for last, stamps in ((False, firsts), (True, lasts)) for name, stamp_s in zip(names, stamps, strict=True)}


def _forced_steps(log: RunLog, parameters: StepParameters, stamps: dict[Token, float]) -> list[frozenset[Token]]:
    """Return the first and last tokens that come out of each step; the scheduler is that of `replay.execution.twin`."""
    table = StepTables(log.server).build(parameters)
    times, engine = _StepTimes(log.server, parameters), Engine(table, trace_block_tokens(log.trace) if table.limits.prefix_cache else 1)
    coming = deque(Request(row=row) for row in log.trace.requests.to_pylist())
    in_flight: deque[tuple[float, list[Request]]] = deque()
    most_in_flight = 2 if table.limits.async_scheduling else 1
    steps, now_s, busy_until_s, stall_s = list[frozenset[Token]](), 0.0, 0.0, parameters.startup_s
    while coming or not engine.is_empty:
        if not in_flight and engine.is_empty:
            now_s = max(now_s, coming[0].row["arrival_s"])
        while coming and coming[0].row["arrival_s"] <= now_s:
            engine.waiting.append(coming.popleft())
        chunks = engine.schedule(now_s)
        if chunks:
            start_s, tokens = max(now_s, busy_until_s), _first_and_last(chunks)
            steps.append(tokens)
            stamp_s = mode(sorted(stamps[token] for token in tokens)) if tokens else start_s + stall_s + times.step_s(chunks)
            busy_until_s, stall_s = max(start_s, stamp_s), 0.0
            in_flight.append((busy_until_s, [chunk.request for chunk in chunks if chunk.emits]))
        if not chunks or len(in_flight) == most_in_flight:
            now_s, emitting = in_flight.popleft()
            engine.finish(emitting, now_s)
    return steps


def _first_and_last(chunks: Sequence[Chunk]) -> frozenset[Token]:
    """Return which first and last tokens come out of a step that has just been composed."""
    emitting = [chunk.request for chunk in chunks if chunk.emits]
    firsts = {(str(request.row["request_id"]), False) for request in emitting if request.promised == 1}
    return frozenset(firsts | {(str(request.row["request_id"]), True) for request in emitting if request.last_is_promised})


class _StepTimes:
    """What steps of a server take under some parameters."""

    def __init__(self, server: Server, parameters: StepParameters) -> None:
        self.parameters = parameters
        most = server.limits.max_batched_tokens
        tokens = np.arange(most + 1)
        captured = captured_tokens(tokens, server.captured_sizes, most)
        self._computed = np.where(captured > 0, captured, tokens).tolist()

    def step_s(self, chunks: Sequence[Chunk]) -> float:
        """Return the seconds of a step: the formula of `replay.calibration.runs.step_model`."""
        one, prefills = self.parameters, [chunk for chunk in chunks if not chunk.is_decode]
        keys = sum(chunk.before + 1 for chunk in chunks if chunk.is_decode)
        prompt = sum(chunk.tokens for chunk in prefills)
        pairs = sum(chunk.tokens * chunk.before + chunk.tokens * (chunk.tokens + 1) // 2 for chunk in prefills)
        products_s = hypot(one.base_s, one.per_token_s * self._computed[sum(chunk.tokens for chunk in chunks)])
        attention_s = one.per_context_token_s * keys + one.per_pair_s * pairs
        prompts_s = one.per_prefill_token_s * prompt + (one.per_mixed_step_s if prefills else 0.0)
        return products_s + one.per_sequence_s * len(chunks) + attention_s + prompts_s
