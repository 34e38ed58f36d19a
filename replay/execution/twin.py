"""The replay again, in plain Python with the obvious data structures: the oracle of the compiled loop.

It shares no code with the loop; for the same input the two give equal tables, bit by bit. Slow: about 10^5 tokens a second.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replay.execution.cache_arrays import trace_block_tokens
from replay.execution.engine import check_arrivals
from replay.execution.step_costs import check_factors
from replay.execution.tables import REQUESTS_SCHEMA, STEPS_SCHEMA, TOKEN_GAPS_SCHEMA, Replay
from replay.execution.twin_engine import Chunk, Engine, Request
from replay.execution.twin_power import Board
from replay.execution.twin_prices import Prices
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable


def replay_twin(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> Replay:
    """Return what `replay.execution.engine.replay` returns, and raise what it raises for a trace or a factor.

    The gaps between tokens have one row for each value, in no order.
    """
    check_arrivals(trace)
    prices = Prices(table, check_factors(table, kernel_factors))
    board = Board(prices, table.power) if table.power else None
    engine = Engine(table, trace_block_tokens(trace) if table.limits.prefix_cache else 1)
    requests = [Request(row=row) for row in trace.requests.to_pylist()]
    able = [request for request in requests if _can_fit(request.row, table)]
    coming = deque(sorted(able, key=lambda request: float(request.row["arrival_s"])))
    steps: list[dict[str, Any]] = []
    in_flight: deque[tuple[float, list[Request]]] = deque()
    most_in_flight = 2 if table.limits.async_scheduling else 1
    now_s = 0.0
    while coming or not engine.is_empty:
        if not in_flight and engine.is_empty:
            now_s = max(now_s, coming[0].row["arrival_s"])
        while coming and coming[0].row["arrival_s"] <= now_s:
            engine.waiting.append(coming.popleft())
        chunks = engine.schedule(now_s)
        if chunks:
            step = _counts(chunks, engine)
            idle_since_s = steps[-1]["end_s"] if steps else 0.0
            start_s = max(now_s, idle_since_s)
            step |= board.run(step, start_s - idle_since_s) if board else prices.price(step)
            step |= {"scheduled_s": now_s, "start_s": start_s, "end_s": start_s + max(step["device_s"], step["host_s"])}
            steps.append(step)
            in_flight.append((step["end_s"], [chunk.request for chunk in chunks if chunk.emits]))
        if not chunks and not in_flight:
            arrives_s = coming[0].row["arrival_s"] if coming else math.inf
            wakes_s = min(arrives_s, engine.batch_starts_at(now_s))
            assert wakes_s > now_s, "nothing can run"
            now_s = wakes_s
        elif not chunks or len(in_flight) == most_in_flight:
            now_s, emitting = in_flight.popleft()
            engine.finish(emitting, now_s)
    gaps = Counter(gap_s for request in requests for gap_s in request.gaps_s)
    rows = [request.result(_can_fit(request.row, table)) for request in requests]
    return Replay(
        requests=pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA),
        steps=pa.Table.from_pylist(steps, schema=STEPS_SCHEMA),
        token_gaps=pa.table({"gap_s": list(gaps), "tokens": list(gaps.values())}, schema=TOKEN_GAPS_SCHEMA),
    )


def _can_fit(row: dict[str, Any], table: StepTable) -> bool:
    tokens = row["prompt_tokens"] + row["output_tokens"]
    blocks = math.ceil((tokens - 1) / table.pool.block_tokens)
    return bool(tokens <= table.limits.max_context_tokens and blocks <= table.pool.blocks_count - table.watermark_blocks)


def _counts(chunks: list[Chunk], engine: Engine) -> dict[str, Any]:
    window = engine.table.limits.attention_window_tokens
    prefills = [chunk for chunk in chunks if not chunk.is_decode]
    decodes = [chunk for chunk in chunks if chunk.is_decode]
    preemptions, engine.preempted_since_last_step = engine.preempted_since_last_step, 0
    return {
        "tokens": sum(chunk.tokens for chunk in chunks),
        "sequences": len(chunks),
        "decode_sequences": len(decodes),
        "decode_context_tokens": sum(sum(chunk.keys_of_each_token(window)) for chunk in decodes),
        "prefill_tokens": sum(chunk.tokens for chunk in prefills),
        "prefill_pairs": sum(sum(chunk.keys_of_each_token(window)) for chunk in prefills),
        "recomputed_tokens": sum(chunk.recomputed for chunk in prefills),
        "running": len(engine.running),
        "waiting": len(engine.preempted) + len(engine.waiting),
        "prefix_hit_tokens": engine.prefix_hit_now,
        "kv_blocks": engine.pool.count - engine.pool.free_count,
        "preemptions": preemptions,
        "output_tokens": sum(chunk.emits for chunk in chunks),
    }
