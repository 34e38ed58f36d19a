"""Processor time to tabulate a mapping, and to have its table from the user's kind of cache.

    python bench/tabulate.py [HARDWARE ...]      # default: the accelerators with shipped calibrations

Llama-3.1-8B, every token count up to 8192, one thread if OMP_NUM_THREADS=1 says so. The first tabulation of a process and the best of
five later ones; `cached` starts from an accelerator whose digest is not known yet, as a new process does, and reads a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gates.cli.table_cache import UserCache
from replay.catalog.calibration import shipped_calibration
from replay.catalog.hardware import hardware_names, read_hardware
from replay.ingress.model_config import read_model
from replay.pipeline import compile_mapping
from replay.specs.mapping import parse_mapping

REPETITIONS = 5
MAPPING = parse_mapping('name = "bench"\n[batching]\nmax_batched_tokens = 8192\n', "bench")


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def report(name: str, folder: Path) -> None:
    """Print a line for an accelerator."""
    model, device = read_model("llama-3.1-8b"), read_hardware(name)
    cache = UserCache(folder=folder, limit_bytes=10**9, edition="bench")
    first_s = seconds(lambda: compile_mapping(model, device, MAPPING))
    cold_s = min(seconds(lambda: compile_mapping(model, device, MAPPING)) for _ in range(REPETITIONS))
    compile_mapping(model, device, MAPPING, cache=cache)
    fresh = [replace(device) for _ in range(REPETITIONS)]
    cached_s = min(seconds(lambda one=one: compile_mapping(model, one, MAPPING, cache=cache)) for one in fresh)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:<18} first {first_s:6.3f} s   again {cold_s:6.3f} s   cached {cached_s:6.3f} s   file {size_bytes / 1e6:.1f} MB")


def main() -> None:
    """Print the table."""
    for name in sys.argv[1:] or [name for name in hardware_names() if shipped_calibration(name) is not None]:
        with tempfile.TemporaryDirectory() as folder:
            report(name, Path(folder))


if __name__ == "__main__":
    main()
