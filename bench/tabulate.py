"""Time from a model and a mapping to the StepTable: every kernel priced for every step of up to 8,192 tokens.

    python bench/tabulate.py

First the wall and CPU time of the first compilation of a case, imports done; then the quickest wall time of five more.
"""

from __future__ import annotations

import time

from replay.catalog.hardware import read_hardware
from replay.ingress.model_config import read_model
from replay.pipeline import compile_mapping
from replay.specs.mapping import MappingSpec, parse_mapping

REPETITIONS = 5
CASES = (("llama-3.1-8b", "a100-sxm-80gb", 1), ("deepseek-v3", "h200-sxm", 8), ("deepseek-v3", "b200-sxm", 8))
"""Model, accelerator, tensor-parallel ranks."""


def mapping(ranks: int) -> MappingSpec:
    return parse_mapping(f'name = "bench"\n[batching]\nmax_batched_tokens = 8192\n[parallelism]\ntensor = {ranks}\n', "bench")


def seconds(model: str, hardware: str, ranks: int) -> list[tuple[float, float]]:
    """Wall and CPU times of the compilations of one case, in order."""
    spec, device, asked = read_model(model), read_hardware(hardware), mapping(ranks)
    times = []
    for _ in range(REPETITIONS + 1):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        compile_mapping(spec, device, asked)
        times.append((time.perf_counter() - start_s, time.process_time() - start_cpu_s))
    return times


def main() -> None:
    for case in CASES:
        (first_s, first_cpu_s), *more = seconds(*case)
        model, hardware, ranks = case
        print(f"{model} on {ranks} x {hardware}: {first_s:.2f} s ({first_cpu_s:.2f} s of CPU), then {min(more)[0]:.2f} s")


if __name__ == "__main__":
    main()
