"""Seconds and peak memory of resampling the tails of a large pair.

    python bench/tail_speed.py [REQUESTS [RESAMPLES]]

p95 and p99 of 6 metrics in 8 strata of both arms: resampled jointly in 25 blocks, and in blocks of sqrt(n) requests; then claim by
claim, as the gate judges measured runs: each draws blocks of its own, as long as the rule says, of its stratum's requests.
"""

from __future__ import annotations

import math
import resource
import sys
import time

import numpy as np

from gates.statistics.blocks import Counts, Floats, block_length, draw_blocks
from gates.statistics.pairs import bootstrap_pair
from gates.statistics.tails import Sample, resampled_percentiles
from replay.seeds import stream

METRICS, STRATA, PERCENTS = 6, 8, (95.0, 99.0)
TARGET_S, TARGET_BYTES = 10.0, 1.5e9


def columns_of(n: int) -> tuple[list[Floats], list[Counts]]:
    """Return [2 x METRICS] the arms' latencies [n], and the requests of each stratum."""
    draw = stream(1, "bench/tails")
    stratum = draw.integers(0, STRATA, n)
    load = np.convolve(draw.standard_normal(n + 999), np.full(1000, 1000**-0.5), mode="valid")  # a slow load, as queues have
    columns = [np.exp(0.3 * load + 0.5 * draw.standard_normal(n)) for _ in range(2 * METRICS)]
    return columns, [np.flatnonzero(stratum == number) for number in range(STRATA)]


def report_joint(n: int, replicates: int, length: int) -> None:
    """Print what one joint resampling takes."""
    columns, members = columns_of(n)
    start_s = time.perf_counter()
    blocks = draw_blocks(n, length=length, replicates=replicates, generator=stream(1, "bench/blocks"))
    samples = [Sample(values=column[chosen], positions=chosen, percents=PERCENTS) for column in columns for chosen in members]
    results = resampled_percentiles(blocks, samples)
    assert len(results) == 2 * METRICS * STRATA
    assert not any(np.isnan(found).any() for found in results)
    tell(f"{n:,} pairs, {replicates:,} joint resamples of {len(blocks.lengths):,} blocks", start_s)


def report_claims(n: int, replicates: int) -> None:
    """Print what as many claims take one by one."""
    columns, members = columns_of(n)
    start_s = time.perf_counter()
    for baseline, candidate in zip(columns[::2], columns[1::2], strict=True):
        for chosen in members:
            for percent in PERCENTS:
                own = stream(1, "bootstrap")
                bootstrap_pair(baseline[chosen], candidate[chosen], percent, alpha=0.05, generator=own, replicates=replicates)
    tell(f"{n:,} pairs, {METRICS * STRATA * len(PERCENTS)} claims with {replicates:,} resamples each", start_s)


def tell(what: str, start_s: float) -> None:
    """Print seconds since `start_s` and the largest memory so far."""
    took_s, peak_bytes = time.perf_counter() - start_s, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{what}: {took_s:.1f} s (target {TARGET_S:g}), peak {peak_bytes / 1e9:.2f} GB (target {TARGET_BYTES / 1e9:g})", flush=True)


if __name__ == "__main__":
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    resamples = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    report_joint(2000, 10, 80)  # compiles
    for size in (block_length(requests, 25), math.isqrt(requests)):
        report_joint(requests, resamples, size)
    report_claims(requests, resamples)
