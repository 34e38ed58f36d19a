"""`replay fidelity`: how far the hardware model is off measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gates.cli.progress import note
from replay.errors import SpecError


@click.command("fidelity")
@click.option(
    "--measurements",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured kernels, or whole layers, passes or servers (CSV); repeat for several.",
)
@click.option("--hardware", metavar="NAME", help="Only this accelerator.")
@click.option("--stack", metavar="NAME", help="Only this software stack.")
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE", help="Calibration to judge (default: the shipped ones).")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(files: tuple[Path, ...], hardware: str | None, stack: str | None, calibration: Path | None, form: str) -> None:
    """Compare predicted with measured kernel times; errors are over shape groups that the calibration has not seen.

    Whole layers, forward passes and servers are predicted from the calibrated kernels and never fitted. The kind of a file is
    recognised by its columns.
    """
    from replay.calibration.fidelity import compare, report
    from replay.calibration.reader import read_measurements
    from replay.catalog.calibration import read_calibration, shipped_calibration
    from replay.documents import pretty_json

    given = read_calibration(calibration) if calibration is not None else None
    compared = []
    for path in files:
        note(f"reading {path}")
        for kind, measured in read_measurements(path):
            if hardware in (None, measured.hardware) and stack in (None, measured.stack):
                compared.append(compare(kind, measured, shipped_calibration if given is None else lambda _: given))
    if not compared:
        raise SpecError("--hardware/--stack", "no measured row matches them", "a device and stack of the files", "leave one out")
    rows = report(compared)
    click.echo(pretty_json(rows) if form == "json" else "\n".join(_lines(rows)) + "\n", nl=False)


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
