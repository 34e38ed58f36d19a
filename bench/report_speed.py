"""Time and size of the page of a verdict on W2, the conversation workload of `replay_speed.py`: targets 2 s and 1.5 MB.

    python bench/report_speed.py

A gate is run, its packet is written, and then the page alone is drawn again, in a process that has matplotlib loaded, as a gate's own is.
A busy machine stretches the wall time, so that of all cores is printed, too.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from gate_speed import CANDIDATES, conversation_cell, request_of

from gates.gate import gate
from gates.packet.outcome import write_outcome
from gates.packet.packet import open_packet
from gates.report.report import read_verdict, render_report
from replay.specs.mapping import parse_mapping

TARGET_S, TARGET_BYTES = 2.0, 1_500_000
REPEATS = 5


def main() -> None:
    """Print the figures."""
    cell = conversation_cell()
    candidate = parse_mapping(CANDIDATES["other tiles of multiplies"], "bench")
    result = gate(request_of(cell, candidate, 2), lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        write_outcome(result, Path(folder))
        wall_s = time.perf_counter() - start_s
        print(f"{cell.trace.name}: {cell.trace.requests.num_rows} requests; the whole packet is written in {wall_s:.1f} s")
        packet = open_packet(Path(folder))
        times_s, cores_s = [], []
        for _ in range(REPEATS):
            start_s, used_s = time.perf_counter(), time.process_time()
            data = render_report(read_verdict(packet), packet)
            times_s.append(time.perf_counter() - start_s)
            cores_s.append(time.process_time() - used_s)
    times = f"{min(times_s):.2f} to {max(times_s):.2f} s ({min(cores_s):.2f} s of all cores; target {TARGET_S:g} s)"
    print(f"  the page: {times}, {len(data) / 1e3:.0f} kB (target {TARGET_BYTES / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
