"""The replay again, in plain Python with the obvious data structures: the oracle of the compiled loop.

It shares no code with the loop; for the same input the two give equal tables, bit by bit. Slow: about 10^5 tokens a second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from replay.execution.cache_arrays import trace_block_tokens
from replay.execution.pools import check_open_loop
from replay.execution.replica import StepNoise, check_arrivals, check_noise
from replay.execution.step_costs import check_factors
from replay.execution.tables import REQUESTS_SCHEMA, STEPS_SCHEMA, TOKEN_GAPS_SCHEMA, Replay
from replay.execution.twin_engine import Engine, Request
from replay.execution.twin_fleet import Replica, Senders
from replay.execution.twin_prices import Prices
from replay.ingress.trace import Trace
from replay.provenance import Load
from replay.tiling.step_table import StepTable


def replay_twin(
    trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None, noise: StepNoise | None = None
) -> Replay:
    """Return what `replay.execution.engine.replay` returns, and raise what it raises for a trace or a factor.

    The gaps between tokens have one row for each value, in no order.
    """
    check_arrivals(trace)
    if noise is not None:
        check_noise(trace, table, noise)
    prices = Prices(table, check_factors(table, kernel_factors), noise)
    blocks = trace_block_tokens(trace) if table.limits.prefix_cache else 1
    requests = [Request(row=row, due_s=row["arrival_s"] or 0.0) for row in trace.requests.to_pylist()]
    able = [request for request in requests if _can_fit(request.row, table)]
    if table.limits.prefill_replicas_count:
        check_open_loop(trace, table)
        replicas = _run_pools(able, table, prices, blocks)
    else:
        replicas = _new_replicas(table, table.limits.replicas_count, prices, blocks)
        Senders(able, replicas, trace.provenance.load or Load(), closed=not trace.has_arrivals).run()
    gaps = Counter(gap_s for request in requests for gap_s in request.gaps_s)
    rows = [request.result(_can_fit(request.row, table)) for request in requests]
    steps = [step | {"replica": number} for number, replica in enumerate(replicas) for step in replica.steps]
    steps.sort(key=lambda step: float(step["start_s"]))
    return Replay(
        requests=pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA),
        steps=pa.Table.from_pylist(steps, schema=STEPS_SCHEMA),
        token_gaps=pa.table({"gap_s": list(gaps), "tokens": list(gaps.values())}, schema=TOKEN_GAPS_SCHEMA),
    )


def _new_replicas(table: StepTable, count: int, prices: Prices, trace_block_tokens: int) -> list[Replica]:
    return [Replica(Engine(table, trace_block_tokens), prices) for _ in range(count)]


def _run_pools(requests: list[Request], table: StepTable, prices: Prices, trace_block_tokens: int) -> list[Replica]:
    """Serve requests in two pools and write down what each went through; return the replicas, those that compute prompts last."""
    bare = replace(table, limits=replace(table.limits, prefix_cache=False))
    decoding = _new_replicas(bare, table.limits.replicas_count, prices, 1)
    prefilling = _new_replicas(table, table.limits.prefill_replicas_count, prices, trace_block_tokens)
    prompts = [Request(row=request.row | {"output_tokens": 1}, due_s=request.due_s) for request in requests]
    Senders(prompts, prefilling, Load(), closed=False).run()
    answers = {}
    for request, prompt in zip(requests, prompts, strict=True):
        [first_token_s] = request.token_times_s = prompt.token_times_s
        request.sent_s, request.first_scheduled_s = prompt.sent_s, prompt.first_scheduled_s
        request.preemptions, request.prefix_hit = prompt.preemptions, prompt.prefix_hit
        request.replica = request.prefill_replica = len(decoding) + (prompt.replica or 0)
        tokens, output = request.row["prompt_tokens"], request.row["output_tokens"]
        if output > 1:
            row = request.row | {"prompt_tokens": tokens + 1, "output_tokens": output - 1}
            send_s = math.ceil(tokens / table.pool.block_tokens) * table.pool.block_send_s + table.pool.send_latency_s
            sending = (prompt.replica or 0, send_s)
            answers[request] = Request(row=row, due_s=first_token_s, kept=tokens, reached=tokens, sending=sending)
    Senders(list(answers.values()), decoding, Load(), closed=False).run()
    for request, answer in answers.items():
        request.token_times_s = request.token_times_s + answer.token_times_s
        request.replica, request.kv_transfer_s = answer.replica, answer.sent_s - answer.due_s
        request.preemptions += answer.preemptions
    return decoding + prefilling


def _can_fit(row: dict[str, Any], table: StepTable) -> bool:
    tokens = row["prompt_tokens"] + row["output_tokens"]
    blocks = math.ceil((tokens - 1) / table.pool.block_tokens)
    return bool(tokens <= table.limits.max_context_tokens and blocks <= table.pool.blocks_count - table.watermark_blocks)
