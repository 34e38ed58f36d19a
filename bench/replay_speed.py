"""Speed of the replay: requests and steps per second of the replay and of its assembly, and the same work done by other simulators.

    python bench/replay_speed.py                 # W1 and W2, where the Azure conversation trace is at hand, and a synthetic trace
    python bench/replay_speed.py TRACE [TRACE..] # recorded traces in any format that `replay trace info` reads

Llama-3.1-8B on one A100-SXM-80GB with at most 128 running sequences and 512 tokens a step. W1 is the first 4,000 and W2 all 19,366
requests of the Azure LLM trace 2023 "conversation" as Vidur ships it, prompts cut so that prompt and output are at most 4,096 tokens.
Each figure is the best of several repetitions in one process, after the first, which may compile; in seconds of one core.
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
from replay.specs.mapping import parse_mapping
from replay.specs.model import ModelSpec

REPETITIONS = 7
HARDWARE = "a100-sxm-80gb"
MAPPING_TEXT = 'name = "bench"\n[batching]\nmax_running = 128\nmax_batched_tokens = 512\n'
MAPPING = parse_mapping(MAPPING_TEXT, "bench")
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
CONVERSATION = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "vidur_processed" / "splitwise_conv.csv"
MOST_TOKENS = 4096
W1_REQUESTS = 4_000
PEERS_S = {
    "W1": {
        "Dynamo 1.6.1, polynomial": 0.32,
        "Dynamo 1.2.1, A100 tables": 14.0,
        "BLIS (process)": 8.3,
        "Vidur, Sarathi": 9.2,
    },
    "W2": {"Dynamo 1.6.1, polynomial (process)": 1.48, "BLIS (process)": 51.5, "Vidur, Sarathi": 50.4},
}
"""Seconds of other simulators for the same work, measured side by side on one two-core x86-64 machine: simulation alone unless marked."""
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


def common_workload(name: str, trace: Trace, count: int) -> Trace:
    """The first requests of a trace in the form in which all simulators replayed them."""
    requests = trace.requests.slice(0, count)
    outputs = requests["output_tokens"].to_numpy()
    prompts = np.minimum(requests["prompt_tokens"].to_numpy(), np.maximum(MOST_TOKENS - outputs, 1))
    requests = requests.set_column(requests.column_names.index("prompt_tokens"), "prompt_tokens", pa.array(prompts))
    return build_trace(name=name, requests=requests, provenance=trace.provenance)


def best(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """The result of some work, and the seconds of one core that its quickest repetition took."""
    result, quickest_s = work(), float("inf")
    for _ in range(REPETITIONS):
        start_s = time.process_time()
        result = work()
        quickest_s = min(quickest_s, time.process_time() - start_s)
    return result, quickest_s


def report(trace: Trace) -> None:
    hardware = read_hardware(HARDWARE)
    schedule, compile_s = best(lambda: compile_mapping(MODEL, hardware, MAPPING))
    table = schedule.table
    replayed, replay_s = best(lambda: replay(trace, table))
    _, assemble_s = best(
        lambda: assemble(
            trace=trace, table=table, replayed=replayed, model=MODEL.name, hardware=HARDWARE, mapping_digest=MAPPING.digest, seed=0
        )
    )
    requests, steps = trace.requests.num_rows, replayed.steps.num_rows
    sequences = int(replayed.steps["sequences"].to_numpy().sum())
    both_s = replay_s + assemble_s
    print(f"{trace.name}: {requests} requests, {steps} steps, {sequences / steps:.1f} sequences a step")
    print(f"  compile mapping  {compile_s:8.3f} s")
    print(f"  replay           {replay_s:8.3f} s  {requests / replay_s:12,.0f} requests/s  {steps / replay_s:12,.0f} steps/s")
    print(f"  assemble         {assemble_s:8.3f} s")
    print(f"  replay, assemble {both_s:8.3f} s  {requests / both_s:12,.0f} requests/s  {steps / both_s:12,.0f} steps/s")
    for peer, peer_s in PEERS_S.get(trace.name, {}).items():
        print(f"    {peer:<52} {peer_s:6.2f} s  {peer_s / both_s:8,.0f} times as long")


def main() -> None:
    traces = [read_trace(Path(name)) for name in sys.argv[1:]]
    if not traces:
        if CONVERSATION.is_file():
            whole = read_trace(CONVERSATION)
            traces = [common_workload("W1", whole, W1_REQUESTS), common_workload("W2", whole, whole.requests.num_rows)]
        traces.append(synthetic_trace())
    for trace in traces:
        report(trace)


if __name__ == "__main__":
    main()
