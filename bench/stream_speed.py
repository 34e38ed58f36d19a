"""Speed and peak memory of a replay in pieces: ten million requests that never are in memory together.

    python bench/stream_speed.py [REQUESTS [REPLICAS]]

Requests are drawn piece by piece (Poisson arrivals, lognormal lengths as in public conversation traces: about 1,000 prompt and 200 output
tokens) and served by Llama-3.1-8B on A100-SXM-80GB, at most 128 running sequences and 512 tokens a step. First `replay run --stream` on a
file of them, the whole process, with the run directory written (in a second thread); then the replay alone, in one process and thread,
tables looked at and dropped. Without arguments: 10,000,000 requests on one replica, then as many on eight.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from replay_speed import HARDWARE, MAPPING, MAPPING_TEXT, MODEL

from replay.catalog.hardware import read_hardware
from replay.execution.stream import PIECE_REQUESTS, replay_pieces
from replay.ingress.native import write_trace
from replay.ingress.trace import TRACE_SCHEMA, build_trace
from replay.pipeline import compile_mapping
from replay.provenance import TraceProvenance, digest_bytes
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
        gaps_s = draw.exponential(1.0 / rate_per_s, size)
        gaps_s[0] *= first > 0
        arrival_s = last_s + np.cumsum(gaps_s)
        last_s = float(arrival_s[-1])
        columns = {
            "request_id": pa.array(np.arange(first, first + size)).cast(pa.string()),
            "arrival_s": pa.array(arrival_s),
            "prompt_tokens": pa.array(np.clip(draw.lognormal(6.6, 0.8, size), 1, 32_000).astype(np.int64)),
            "output_tokens": pa.array(np.clip(draw.lognormal(5.1, 0.7, size), 1, 4_000).astype(np.int64)),
        }
        yield pa.table({field.name: columns.get(field.name, pa.nulls(size, field.type)) for field in TRACE_SCHEMA}, schema=TRACE_SCHEMA)


def write_requests(path: Path, count: int, rate_per_s: float) -> None:
    """Write a trace of as many requests."""
    provenance = TraceProvenance(
        kind="synthetic", origin="bench/stream_speed.py", source_digest=digest_bytes(b""), rows_read=count, rows_kept=count
    )
    write_trace(build_trace(name="drawn", requests=pa.concat_tables(pieces(count, rate_per_s)), provenance=provenance), path)


def report_run(count: int, replicas: int) -> None:
    """Print what one `replay run --stream` takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = multiprocessing.get_context("spawn").Process(
            target=write_requests, args=(folder / "drawn.parquet", count, RATE_PER_S * replicas)
        )
        maker.start()
        maker.join()
        (folder / "mapping.toml").write_text(f"{MAPPING_TEXT}[fleet]\nreplicas = {replicas}\n")
        on = ["--mapping", "mapping.toml", "--trace", "drawn.parquet", "--model", MODEL.name, "--hardware", HARDWARE]
        command = [sys.executable, "-c", "from gates.cli import main; main()", "run", "--stream", *on, "--out", "out"]
        start_s = time.perf_counter()
        child = subprocess.Popen(command, cwd=name, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])})
        _, status, used = os.wait4(child.pid, 0)
        took_s = time.perf_counter() - start_s
        assert status == 0
        run = json.loads((folder / "out" / f"drawn-{HARDWARE}" / "run.json").read_text())
        size_bytes = sum(path.stat().st_size for path in (folder / "out").rglob("*.parquet"))
    assert run["summary"]["requests_count"] == count
    steps = run["summary"]["steps_count"]
    print(f"replay run --stream, {count:,} requests, {replicas} replicas: {took_s:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of cores)")
    _against_target(took_s, 1024.0 * used.ru_maxrss, count)
    print(f"  {steps:,} steps, {size_bytes / 1e9:.2f} GB written")


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
    print(f"replay alone, {count:,} requests, {replicas} replicas: {took_s:.1f} s, {steps:,} steps")
    _against_target(took_s, peak_bytes, count)
    print(f"  {requests / took_s:,.0f} requests/s, {steps / took_s:,.0f} steps/s")


def _against_target(took_s: float, peak_bytes: float, count: int) -> None:
    speed = took_s / (TARGET_S * count / REQUESTS)
    print(
        f"  {speed:.2f} of the target time (90 s for 10,000,000); peak {peak_bytes / 1e9:.2f} GB, {peak_bytes / TARGET_BYTES:.2f} of 3 GB"
    )


if __name__ == "__main__":
    counts = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    numbers = [int(sys.argv[2])] if len(sys.argv) > 2 else REPLICAS
    for number in numbers:  # before this process itself grows, which a child's peak would show
        report_run(counts, number)
    for number in numbers:
        report(counts, number)
