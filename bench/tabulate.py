"""Processor time to tabulate a mapping - every kernel priced for every step of up to 8,192 tokens - and to read its table from a cache.

    python bench/tabulate.py [MODEL:HARDWARE:RANKS ...]

The first tabulation of a process and the best of five later ones; `cached` starts from an accelerator whose digest is not known yet, as
a new process does, and reads a file. One thread if OMP_NUM_THREADS=1 says so.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gates.cli.table_cache import UserCache
from replay.catalog.hardware import read_hardware
from replay.ingress.model_config import read_model
from replay.pipeline import compile_mapping
from replay.specs.mapping import MappingSpec, parse_mapping

REPETITIONS = 5
CASES = ("llama-3.1-8b:a100-sxm-80gb:1", "llama-3.1-8b:b200-sxm:1", "deepseek-v3:h200-sxm:8", "deepseek-v3:b200-sxm:8")


def mapping(ranks: int) -> MappingSpec:
    """Return a mapping for tensor-parallel ranks."""
    return parse_mapping(f'name = "bench"\n[batching]\nmax_batched_tokens = 8192\n[parallelism]\ntensor = {ranks}\n', "bench")


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def report(case: str, folder: Path) -> None:
    """Print a line for a model on an accelerator."""
    name, hardware, ranks = case.split(":")
    model, device, asked = read_model(name), read_hardware(hardware), mapping(int(ranks))
    cache = UserCache(folder=folder, limit_bytes=10**9, edition="bench")
    first_s = seconds(lambda: compile_mapping(model, device, asked))
    cold_s = min(seconds(lambda: compile_mapping(model, device, asked)) for _ in range(REPETITIONS))
    compile_mapping(model, device, asked, cache=cache)
    fresh = [replace(device) for _ in range(REPETITIONS)]
    cached_s = min(seconds(lambda one=one: compile_mapping(model, one, asked, cache=cache)) for one in fresh)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case:<28} first {first_s:6.3f} s   again {cold_s:6.3f} s   cached {cached_s:6.3f} s   file {size_bytes / 1e6:.1f} MB")


def main() -> None:
    """Print the table."""
    for case in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            report(case, Path(folder))


if __name__ == "__main__":
    main()
