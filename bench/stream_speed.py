"""Speed and peak memory of a replay in pieces: ten million requests that never are in memory together.

    python bench/stream_speed.py [REQUESTS [REPLICAS]]

Requests are drawn piece by piece (Poisson arrivals, lognormal lengths as in public conversation traces: about 1,000 prompt and 200 output
tokens) and served by Llama-3.1-8B on A100-SXM-80GB, at most 128 running sequences and 512 tokens a step; tables are looked at and
dropped. Without arguments: 10,000,000 requests on one replica, then as many on eight. Seconds of one core and of one process.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from replay_speed import HARDWARE, MAPPING, MODEL

from replay.catalog.hardware import read_hardware
from replay.execution.stream import PIECE_REQUESTS, replay_pieces
from replay.ingress.trace import TRACE_SCHEMA
from replay.pipeline import compile_mapping
from replay.seeds import stream

REQUESTS, REPLICAS = 10_000_000, (1, 8)
RATE_PER_S = 5.5
"""Of one replica."""
TARGET_S, TARGET_BYTES = 90.0, 3e9


def pieces(count: int, rate_per_s: float) -> Iterator[pa.Table]:
    """Yield `count` requests in pieces of TRACE_SCHEMA."""
    draw, last_s = stream(1, "bench/stream"), 0.0
    for first in range(0, count, PIECE_REQUESTS):
        size = min(PIECE_REQUESTS, count - first)
        arrival_s = last_s + np.cumsum(draw.exponential(1.0 / rate_per_s, size))
        last_s = float(arrival_s[-1])
        columns = {
            "request_id": pa.array(np.arange(first, first + size)).cast(pa.string()),
            "arrival_s": pa.array(arrival_s),
            "prompt_tokens": pa.array(np.clip(draw.lognormal(6.6, 0.8, size), 1, 32_000).astype(np.int64)),
            "output_tokens": pa.array(np.clip(draw.lognormal(5.1, 0.7, size), 1, 4_000).astype(np.int64)),
        }
        yield pa.table({field.name: columns.get(field.name, pa.nulls(size, field.type)) for field in TRACE_SCHEMA}, schema=TRACE_SCHEMA)


def report(count: int, replicas: int) -> None:
    """Print what one replay takes."""
    table = compile_mapping(MODEL, read_hardware(HARDWARE), MAPPING).table
    table = replace(table, limits=replace(table.limits, replicas_count=replicas))
    requests = steps = 0
    start_s = time.perf_counter()
    for piece in replay_pieces(pieces(count, RATE_PER_S * replicas), table, None):
        requests, steps = requests + piece.requests.num_rows, steps + piece.steps.num_rows
    took_s, peak_bytes = time.perf_counter() - start_s, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert requests == count
    print(f"{count:,} requests in pieces, {replicas} replicas: {took_s:.1f} s, peak {peak_bytes / 1e9:.2f} GB, {steps:,} steps")
    speed = took_s / (TARGET_S * count / REQUESTS)
    print(f"  {speed:.2f} of the target time (90 s for 10,000,000), {peak_bytes / TARGET_BYTES:.2f} of 3 GB")
    print(f"  {requests / took_s:,.0f} requests/s, {steps / took_s:,.0f} steps/s")


if __name__ == "__main__":
    counts = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    for number in [int(sys.argv[2])] if len(sys.argv) > 2 else REPLICAS:
        report(counts, number)
