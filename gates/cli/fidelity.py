"""`replay fidelity`: how far the hardware model is off measured kernels, or a step model off a server's request log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gates.cli.progress import note
from gates.cli.run_log import fidelity_text, judge_run, refuse_together
from replay.errors import SpecError


@click.command("fidelity")
@click.option(
    "--measurements",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured kernels, or whole layers, passes or servers (CSV); repeat for several.",
)
@click.option("--run", type=click.Path(path_type=Path), metavar="LOG", help="Per-request log of a server (vLLM, JSON Lines).")
@click.option("--meta", type=click.Path(path_type=Path), metavar="FILE", help="The run's settings (default: the meta.json beside LOG).")
@click.option("--prefixes", type=click.Path(path_type=Path), metavar="TRACE", help="Trace of the run's requests with prefix blocks.")
@click.option("--startup-s", type=click.FloatRange(min=0), help="What the run's first step took longer, cold (default: as calibrated).")
@click.option("--hardware", metavar="NAME", help="Only this accelerator.")
@click.option("--stack", metavar="NAME", help="Only this software stack.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Calibration to judge (default: the shipped ones; of a log, its own first half).",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    files: tuple[Path, ...],
    run: Path | None,
    meta: Path | None,
    prefixes: Path | None,
    startup_s: float | None,
    hardware: str | None,
    stack: str | None,
    calibration: Path | None,
    form: str,
) -> None:
    """Compare predicted with measured times of kernels, or with --run latencies of a server's request log.

    Kernels: errors are over shape groups that the calibration has not seen. Whole layers, forward passes and servers are predicted
    from the calibrated kernels and never fitted. The kind of a file is recognised by its columns.

    A log: its own arrivals are replayed under a calibration made by `replay calibrate --from-run`, and percentiles are compared with
    what was observed; of the log that was fitted, over the second half. Without --calibration its first half is fitted.
    """
    from replay.documents import pretty_json

    if (run is None) == (not files):
        raise click.UsageError("give either --measurements or --run")
    if run is not None:
        refuse_together("--run", {"--hardware": hardware, "--stack": stack})
        found = judge_run(run, meta, prefixes, calibration, startup_s)
        click.echo(pretty_json(found.to_document()) if form == "json" else fidelity_text(found), nl=False)
        return
    refuse_together("--measurements", {"--meta": meta, "--prefixes": prefixes, "--startup-s": startup_s is not None})
    rows = _judge_kernels(files, hardware, stack, calibration)
    click.echo(pretty_json(rows) if form == "json" else "\n".join(_lines(rows)) + "\n", nl=False)


def _judge_kernels(files: tuple[Path, ...], hardware: str | None, stack: str | None, calibration: Path | None) -> list[dict[str, Any]]:
    from replay.calibration.fidelity import compare, report
    from replay.calibration.reader import read_measurements
    from replay.catalog.calibration import read_calibration, shipped_calibration

    given = read_calibration(calibration) if calibration is not None else None
    compared = []
    for path in files:
        note(f"reading {path}")
        for kind, measured in read_measurements(path):
            if hardware in (None, measured.hardware) and stack in (None, measured.stack):
                compared.append(compare(kind, measured, shipped_calibration if given is None else lambda _: given))
    if not compared:
        raise SpecError("--hardware/--stack", "no measured row matches them", "a device and stack of the files", "leave one out")
    return report(compared)


_FIGURES = (("MAPE", "mape_percent"), ("median", "median_ape_percent"), ("p90", "p90_ape_percent"), ("bias", "bias_percent"))
_NAMES = (("kind", 22), ("family", 18), ("hardware", 16), ("stack", 20), ("variant", 24))


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    titles = [f"{name:<{width}}" for name, width in _NAMES] + [f"{'n':>6}", f"{'fitted':>7}"] + [f"{title:>7}" for title, _ in _FIGURES]
    return [" ".join(titles), *(_line(row) for row in rows)]


def _line(row: dict[str, Any]) -> str:
    cells = [f"{row[name]:<{width}}" for name, width in _NAMES] + [f"{row['n']:>6}", f"{row['n_fitted']:>7}"]
    cells += [f"{'-':>7}" if row[name] is None else f"{row[name]:>6.1f}%" for _, name in _FIGURES]
    for sign in row.get("sign_accuracy", ()):
        cells.append(f" sign right {sign['right_ratio']:.0%} of {sign['n']} against {sign['against']}")
    cells += [f" ({left['rows']} left out: {left['reason']})" for left in row["skipped"]]
    if row["source"] != "calibrated":
        cells.append(f" ({row['source']})")
    return " ".join(cells)
