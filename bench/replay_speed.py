"""Speed of the replay: requests and steps per second of the loop, of a whole replay and of its assembly.

    python bench/replay_speed.py                 # a synthetic trace of 20,000 requests
    python bench/replay_speed.py TRACE [TRACE..] # recorded traces in any format that `replay trace info` reads

Llama-3.1-8B on one A100-SXM-80GB under the default mapping. Each figure is the best of several repetitions in one process, after
the first, which may compile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from replay.assembly.assemble import assemble
from replay.catalog.hardware import read_hardware
from replay.execution.engine import replay
from replay.ingress.reader import read_trace
from replay.ingress.trace import Trace, build_trace
from replay.pipeline import compile_mapping
from replay.provenance import TraceProvenance, digest_bytes
from replay.seeds import stream
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec

REPETITIONS = 5
HARDWARE = "a100-sxm-80gb"
MODEL = ModelSpec(
    name="llama-3.1-8b",
    layers_count=32,
    hidden_size=4096,
    query_heads=32,
    kv_heads=8,
    head_size=128,
    intermediate_size=14336,
    vocabulary_size=128256,
    max_context_tokens=131072,
    weights_format="bf16",
)
_Result = TypeVar("_Result")


def synthetic_trace(count: int = 20_000, rate_per_s: float = 5.5) -> Trace:
    """Poisson arrivals and lognormal lengths: about 1,000 prompt and 200 output tokens, as in public conversation traces."""
    draw = stream(1, "bench")
    arrival_s = np.cumsum(draw.exponential(1.0 / rate_per_s, count))
    columns = {
        "request_id": [f"r{index}" for index in range(count)],
        "arrival_s": arrival_s - arrival_s[0],
        "prompt_tokens": np.clip(draw.lognormal(6.6, 0.8, count), 1, 32_000).astype(np.int64),
        "output_tokens": np.clip(draw.lognormal(5.1, 0.7, count), 1, 4_000).astype(np.int64),
    }
    provenance = TraceProvenance(
        kind="synthetic", origin="bench/replay_speed.py", source_digest=digest_bytes(b""), rows_read=count, rows_kept=count
    )
    return build_trace(name="synthetic", requests=pa.table(columns), provenance=provenance)


def best(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """The result of some work, and the seconds of its quickest repetition."""
    result, quickest_s = work(), float("inf")
    for _ in range(REPETITIONS):
        start_s = time.perf_counter()
        result = work()
        quickest_s = min(quickest_s, time.perf_counter() - start_s)
    return result, quickest_s


def report(trace: Trace) -> None:
    mapping, hardware = MappingSpec(name="default"), read_hardware(HARDWARE)
    schedule, compile_s = best(lambda: compile_mapping(MODEL, hardware, mapping))
    table = schedule.table
    replayed, replay_s = best(lambda: replay(trace, table))
    _, assemble_s = best(
        lambda: assemble(
            trace=trace, table=table, replayed=replayed, model=MODEL.name, hardware=HARDWARE, mapping_digest=mapping.digest, seed=0
        )
    )
    requests, steps = trace.requests.num_rows, replayed.steps.num_rows
    sequences = int(replayed.steps["sequences"].to_numpy().sum())
    print(f"{trace.name}: {requests} requests, {steps} steps, {sequences / steps:.1f} sequences a step")
    print(f"  compile mapping  {compile_s:8.3f} s")
    print(f"  replay           {replay_s:8.3f} s  {requests / replay_s:12,.0f} requests/s  {steps / replay_s:12,.0f} steps/s")
    print(f"  assemble         {assemble_s:8.3f} s")
    both_s = replay_s + assemble_s
    print(f"  replay, assemble {both_s:8.3f} s  {requests / both_s:12,.0f} requests/s  {steps / both_s:12,.0f} steps/s")


def main() -> None:
    traces = [read_trace(Path(name)) for name in sys.argv[1:]] or [synthetic_trace()]
    for trace in traces:
        report(trace)


if __name__ == "__main__":
    main()
