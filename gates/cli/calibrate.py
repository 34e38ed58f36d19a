"""`replay calibrate`: fit the hardware model to measured kernels, or a step model to a server's request log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gates.cli.progress import note
from gates.cli.run_log import calibrate_run, refuse_together, require_scipy
from replay.catalog.calibration import read_calibration
from replay.documents import check, write_atomic
from replay.errors import SpecError
from replay.provenance import canonical_json
from replay.specs.calibration import CalibrationDocument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.calibration.measured import MeasuredSet
    from replay.calibration.whole import MeasuredWhole


@click.command("calibrate")
@click.option(
    "--measurements",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured kernels (CSV); repeat for several.",
)
@click.option("--from-run", "run", type=click.Path(path_type=Path), metavar="LOG", help="Per-request log of a server (vLLM, JSON Lines).")
@click.option("--meta", type=click.Path(path_type=Path), metavar="FILE", help="The run's settings (default: the meta.json beside LOG).")
@click.option("--prefixes", type=click.Path(path_type=Path), metavar="TRACE", help="Trace of the run's requests with prefix blocks.")
@click.option("--hardware", metavar="NAME", help="Only this accelerator.")
@click.option("--stack", metavar="NAME", help="Only this software stack.")
@click.option("--family", metavar="NAME", help="Only this kernel family.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder for <accelerator>.json or <log>.json.")
@click.option("--update", is_flag=True, help="Keep what DIR/<accelerator>.json holds of kernels that are not fitted now.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), help="Fits at once (default: the processors).")
def command(
    files: tuple[Path, ...],
    run: Path | None,
    meta: Path | None,
    prefixes: Path | None,
    out: Path,
    update: bool,
    seed: int,
    jobs: int | None,
    **only: str | None,
) -> None:
    """Fit few physical parameters to measured kernels, or with --from-run to a server's request log.

    Kernels: per device, stack and family, by robust log error, and a small residual. Six tenths of the shape groups are fitted; the
    errors written are over the others. A log: what a step costs, in seven numbers and the start-up of the run, fitted on the first half
    of its requests; the errors written are over the second half. Needs scipy (`pip install replay-gate[calibrate]`).
    """
    if (run is None) == (not files):
        raise click.UsageError("give either --measurements or --from-run")
    if run is not None:
        refuse_together("--from-run", {"--update": update, "--jobs": jobs, **{f"--{name}": value for name, value in only.items()}})
        calibrate_run(run, out, meta, prefixes)
        return
    refuse_together("--measurements", {"--meta": meta, "--prefixes": prefixes})
    require_scipy()
    _calibrate_kernels(files, out, update, seed, jobs, only)


def _calibrate_kernels(files: tuple[Path, ...], out: Path, update: bool, seed: int, jobs: int | None, only: dict[str, str | None]) -> None:
    from replay.calibration.calibrate import calibrate
    from replay.calibration.measured import MeasuredSet, joined
    from replay.calibration.reader import read_measurements

    found = [pair for path in files for pair in read_measurements(path) if _wanted(pair[1], only)]
    if not found:
        raise SpecError("--hardware/--stack/--family", "no measured row matches them", "what the files hold", "leave one out")
    for kind, one in found:
        if not isinstance(one, MeasuredSet):
            rows = f"{len(one.seconds)} rows of {kind} on {one.hardware}"
            click.echo(f"skipped {rows}: wholes are predicted from calibrated kernels, never fitted")
        elif one.is_pinned:
            click.echo(f"skipped {len(one.seconds)} rows of {kind} {one.variant} on {one.hardware}: the library did not choose their tile")
    kernels = (one for _, one in found if isinstance(one, MeasuredSet))
    sets = _with_enough_rows(joined(one for one in kernels if not one.is_pinned))
    if not sets:
        want = "at least as many timings of a kernel as its family has parameters"
        raise SpecError("--measurements", "nothing that can be fitted", want, "time more shapes; `replay fidelity` judges wholes")
    paths = {one.hardware: out / f"{one.hardware}.json" for one in sets}
    kept = {name: read_calibration(path) for name, path in paths.items() if update and path.is_file()}  # before the long fit
    for fitted in calibrate(sets, seed=seed, jobs=jobs or os.cpu_count() or 1, progress=note):
        _write(kept[fitted.hardware].updated(fitted) if fitted.hardware in kept else fitted, paths[fitted.hardware])


def _with_enough_rows(sets: Iterable[MeasuredSet]) -> list[MeasuredSet]:
    """Return the sets whose parameters their fitted rows can decide, and say which cannot."""
    from replay.calibration.split import fitted_mask

    found = []
    for one in sets:
        rows, parameters = int(fitted_mask(one.group_key).sum()), len(one.family.parameters)
        if rows >= parameters:
            found.append(one)
        else:
            name = " ".join(part for part in (one.family_name, one.stack, one.variant) if part)
            click.echo(f"skipped {name} on {one.hardware}: {rows} rows to fit its {parameters} parameters on")
    return found


def _wanted(measured: MeasuredSet | MeasuredWhole, only: dict[str, str | None]) -> bool:
    names = {"hardware": measured.hardware, "stack": measured.stack, "family": measured.family_name}
    return all(wanted in (None, names[option]) for option, wanted in only.items())


def _write(calibration: CalibrationDocument, path: Path) -> None:
    document = calibration.to_document()
    check(document, "calibration.v1", str(path))
    write_atomic(path, canonical_json(document) + b"\n")  # compact: residuals are long lists
    click.echo(f"wrote {path}: {len(calibration.families)} kernel families")
