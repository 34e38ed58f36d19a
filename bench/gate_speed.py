"""Time of a whole gate with 200 paired replicates on W2, the conversation workload of `replay_speed.py`: target 30 s on two cores.

    python bench/gate_speed.py [--jobs 2]

One mapping against others: a change that is never felt, one whose tail moves, and one that changes kernels. Everything of a gate but
reading files and writing artifacts is timed, in a process whose compiled code is loaded; both the wall time and the time of all cores are
printed, for a busy machine stretches the former.
"""

from __future__ import annotations

import argparse
import time

from replay_speed import CONVERSATION, HARDWARE, MAPPING, MAPPING_TEXT, MODEL, common_workload, synthetic_trace

from gates.gate import gate
from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import Arm, Cell, GateRequest
from replay.catalog.hardware import read_hardware
from replay.ingress.reader import read_trace
from replay.specs.mapping import MappingSpec, parse_mapping

TARGET_S = 30.0
POLICY = parse_policy("resimulations = 200\nmax_resimulations = 200\nallow_synthetic = true\n", "bench")
CANDIDATES = {
    "more seats than are ever taken": MAPPING_TEXT.replace("= 128", "= 512"),
    "a larger token budget": MAPPING_TEXT.replace("= 512", "= 640"),
    "other tiles of multiplies": MAPPING_TEXT + "[gemm]\ntile = [128, 128, 32]\n",
}


def request_of(cell: Cell, candidate: MappingSpec, jobs: int) -> GateRequest:
    """Return the request of one change."""
    return GateRequest(
        baseline=Arm(mapping=MAPPING, label="baseline"),
        candidate=Arm(mapping=candidate, label="candidate"),
        cells=(cell,),
        policy=POLICY,
        policy_name="bench",
        owners=Owners(),
        owners_name=None,
        owners_digest=None,
        seed=1,
        jobs=jobs,
    )


def conversation_cell() -> Cell:
    """Return W2 on the accelerator of `replay_speed.py`, or a synthetic trace there where it is not at hand."""
    if CONVERSATION.is_file():
        whole = read_trace(CONVERSATION)
        trace = common_workload("W2", whole, whole.requests.num_rows)
    else:
        trace = synthetic_trace()
    return Cell(trace=trace, trace_name=trace.name, model=MODEL, hardware=read_hardware(HARDWARE))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    jobs = parser.parse_args().jobs
    cell = conversation_cell()
    mappings = {name: parse_mapping(text, "bench") for name, text in CANDIDATES.items()}
    gate(request_of(cell, MAPPING, jobs), lambda _: None)  # loads what is compiled
    print(f"{cell.trace.name}: {cell.trace.requests.num_rows} requests, {POLICY.resimulations} replicates, {jobs} jobs")
    for name, mapping in mappings.items():
        start_s, cores_s = time.perf_counter(), time.process_time()
        result = gate(request_of(cell, mapping, jobs), lambda _: None)
        wall_s, cores_s = time.perf_counter() - start_s, time.process_time() - cores_s
        times = f"{wall_s:6.1f} s ({cores_s:.1f} s of all cores)  {wall_s / TARGET_S:5.2f} of the target"
        print(f"  {name:<34} {times}  {result.verdict.decision}")


if __name__ == "__main__":
    main()
