"""Time of a whole gate with 200 paired replicates on W2, the conversation workload of `replay_speed.py`: target 30 s on two cores; of one
with five changed knobs, its cause (Shapley values of 32 mixes on 17 traces), verified revert and packet: 90 s, and 30 s by a quick policy.

    python bench/gate_speed.py [--jobs 2]

One mapping against others: a change that is never felt, one whose tail moves, and one that changes kernels. Everything of a gate but
reading files and writing artifacts is timed, in a process whose compiled code is loaded; both the wall time and the time of all cores are
printed, for a busy machine stretches the former. The gate with five knobs is a whole process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replay_speed import CONVERSATION, HARDWARE, MAPPING, MAPPING_TEXT, MODEL, common_workload, synthetic_trace

from gates.gate import gate
from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import Arm, Cell, GateRequest
from replay.catalog.hardware import read_hardware
from replay.ingress.native import write_trace
from replay.ingress.reader import read_trace
from replay.ingress.trace import Trace
from replay.specs.mapping import MappingSpec, parse_mapping

TARGET_S = 30.0
POLICY = parse_policy("resimulations = 200\nmax_resimulations = 200\nallow_synthetic = true\n", "bench")
CANDIDATES = {
    "more seats than are ever taken": MAPPING_TEXT.replace("= 128", "= 512"),
    "a larger token budget": MAPPING_TEXT.replace("= 512", "= 640"),
    "other tiles of multiplies": MAPPING_TEXT + "[gemm]\ntile = [128, 128, 32]\n",
}

FIVE_KNOBS = MAPPING_TEXT.replace("= 128", "= 24") + (
    '[kv]\nblock_tokens = 32\nmemory_ratio = 0.88\n[attention]\nkv_split = 4\n[graph]\nmode = "decode"\n'
)
QUICK = (
    'resimulations = 40\nmax_resimulations = 40\nallow_synthetic = true\n[blocking]\nttft_s = { p95 = "3 %" }\ntpot_s = { p95 = "3 %" }\n'
)
"""Two blocking claims, of which 40 replicates are enough to disprove one."""
FIVE_TARGETS_S = {"the default policy": ("allow_synthetic = true\n", 90.0), "a quick policy": (QUICK, 30.0)}


def time_five_knobs(trace: Trace, jobs: int) -> None:
    """Print the time of the command with its packet, by policy."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_trace(trace, place / "trace.parquet")
        (place / "baseline.toml").write_text(MAPPING_TEXT, encoding="utf-8")
        (place / "candidate.toml").write_text(FIVE_KNOBS, encoding="utf-8")
        for name, (policy, target_s) in FIVE_TARGETS_S.items():
            (place / "policy.toml").write_text(policy, encoding="utf-8")
            command = [
                str(Path(sys.executable).with_name("replay")), "gate", "--baseline", "baseline.toml", "--candidate", "candidate.toml",
                "--trace", "trace.parquet", "--model", MODEL.name, "--hardware", HARDWARE, "--policy", "policy.toml", "--jobs", str(jobs),
                "--packet", "packet.zip", "--format", "json",
            ]  # fmt: skip
            start_s = time.perf_counter()
            done = subprocess.run(command, cwd=place, capture_output=True, check=False)
            wall_s = time.perf_counter() - start_s
            if done.returncode != 10:
                sys.exit(f"exit code {done.returncode}: {done.stderr.decode()}")
            print(f"  five knobs, packet, {name:<19} {wall_s:6.1f} s  {wall_s / target_s:5.2f} of the target of {target_s:g} s")


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
    time_five_knobs(cell.trace, jobs)


if __name__ == "__main__":
    main()
