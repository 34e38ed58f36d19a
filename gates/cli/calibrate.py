"""`replay calibrate`: fit the hardware model to measured kernels."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import click

from gates.cli.progress import note
from replay.errors import SpecError


@click.command("calibrate")
@click.option(
    "--measurements",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured kernels (CSV); repeat for several.",
)
@click.option("--hardware", metavar="NAME", help="Only this accelerator.")
@click.option("--stack", metavar="NAME", help="Only this software stack.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder for <accelerator>.json.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), help="Fits at once (default: the processors).")
def command(files: tuple[Path, ...], hardware: str | None, stack: str | None, out: Path, seed: int, jobs: int | None) -> None:
    """Fit few physical parameters per device, stack and kernel family by robust log error, and a small smooth residual.

    Six tenths of the shape groups are fitted; the errors written are over the others. Needs scipy (`pip install replay-gate[calibrate]`).
    """
    if importlib.util.find_spec("scipy") is None:
        raise SpecError("scipy", "it is not installed", "scipy, which fits need", "pip install 'replay-gate[calibrate]'")
    from replay.calibration.calibrate import calibrate
    from replay.calibration.measured import MeasuredSet
    from replay.calibration.reader import read_measurements
    from replay.documents import check, write_atomic
    from replay.provenance import canonical_json

    found = [pair for path in files for pair in read_measurements(path)]
    found = [(kind, one) for kind, one in found if hardware in (None, one.hardware) and stack in (None, one.stack)]
    if not found:
        raise SpecError("--hardware/--stack", "no measured row matches them", "a device and stack of the files", "leave one out")
    sets = [one for _, one in found if isinstance(one, MeasuredSet)]
    for kind, one in found:
        if not isinstance(one, MeasuredSet):
            click.echo(
                f"skipped {len(one.seconds)} rows of {kind} on {one.hardware}: wholes are predicted from calibrated kernels, never fitted"
            )
    if not sets:
        raise SpecError(
            "--measurements", "no row of single kernels", "at least one", "give kernel timings; `replay fidelity` judges wholes"
        )
    for document in calibrate(sets, seed=seed, jobs=jobs or os.cpu_count() or 1, progress=note):
        path = out / f"{document.hardware}.json"
        check(document.to_document(), "calibration.v1", str(path))
        write_atomic(path, canonical_json(document.to_document()) + b"\n")  # compact: residuals are long lists
        click.echo(f"wrote {path}: {len(document.families)} kernel families")
