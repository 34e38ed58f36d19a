"""Whole-process times of the command line on a trace: start-up, reading, compiling, replaying and writing included.

    python bench/whole_process.py TRACE        # any format that `replay trace info` reads

Llama-3.1-8B on one A100-SXM-80GB. Each command runs once to fill the cache of compiled code, then five times; the median is printed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replay.documents import shipped_path

REPETITIONS = 5


def seconds(command: list[str], folder: Path) -> float:
    """Return the median wall time of a command; any verdict will do, a crash or a usage error will not."""
    times = []
    for repetition in range(REPETITIONS + 1):
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        if done.returncode not in (0, 10, 20, 30):
            sys.exit(done.stderr.decode())
        if repetition:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(trace: Path) -> None:
    """Print the table."""
    demo = shipped_path("traces") / "demo"
    on = ["--trace", str(trace.resolve()), "--model", "llama-3.1-8b", "--hardware", "a100-sxm-80gb"]
    base, worse = str(demo / "mapping.toml"), str(demo / "mapping.candidate.toml")
    commands = {
        "replay run": ["replay", "run", "--mapping", base, *on, "--out", "runs"],
        "replay gate, same mapping twice": ["replay", "gate", "--baseline", base, "--candidate", base, *on, "--out", "out"],
        "replay gate, three knobs changed, one for the worse": [
            "replay",
            "gate",
            "--baseline",
            base,
            "--candidate",
            worse,
            *on,
            "--out",
            "out",
        ],
        "replay --help": ["replay", "--help"],
        "replay validate": ["replay", "validate", base],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, command in commands.items():
            executable = str(Path(sys.executable).with_name("replay"))
            print(f"{name:<52} {seconds([executable, *command[1:]], Path(folder)):6.2f} s")


if __name__ == "__main__":
    default = shipped_path("traces") / "demo" / "trace.parquet"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
