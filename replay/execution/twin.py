"""The replay again, in plain Python with the obvious data structures: the oracle of the compiled loop.

It shares no code with the loop; for the same input the two give equal tables, bit by bit. Slow: about 10^5 tokens a second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replay.execution.cache_arrays import trace_block_tokens
from replay.execution.engine import check_arrivals
from replay.execution.step_costs import check_factors
from replay.execution.tables import REQUESTS_SCHEMA, STEPS_SCHEMA, TOKEN_GAPS_SCHEMA, Replay
from replay.execution.twin_engine import Engine, Request
from replay.execution.twin_fleet import Replica, Senders
from replay.execution.twin_prices import Prices
from replay.ingress.trace import Trace
from replay.provenance import Load
from replay.tiling.step_table import StepTable


def replay_twin(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> Replay:
    """Return what `replay.execution.engine.replay` returns, and raise what it raises for a trace or a factor.

    The gaps between tokens have one row for each value, in no order.
    """
    check_arrivals(trace)
    prices = Prices(table, check_factors(table, kernel_factors))
    blocks = trace_block_tokens(trace) if table.limits.prefix_cache else 1
    replicas = [Replica(Engine(table, blocks), prices) for _ in range(table.limits.replicas_count)]
    requests = [Request(row=row, due_s=row["arrival_s"] or 0.0) for row in trace.requests.to_pylist()]
    able = [request for request in requests if _can_fit(request.row, table)]
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


def _can_fit(row: dict[str, Any], table: StepTable) -> bool:
    tokens = row["prompt_tokens"] + row["output_tokens"]
    blocks = math.ceil((tokens - 1) / table.pool.block_tokens)
    return bool(tokens <= table.limits.max_context_tokens and blocks <= table.pool.blocks_count - table.watermark_blocks)
