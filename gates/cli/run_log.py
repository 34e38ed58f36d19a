"""What `calibrate --from-run` and `fidelity --run` share: a server's log in, a fitted step model or its errors out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gates.cli.progress import note
from replay.errors import SpecError
from replay.units import format_seconds

if TYPE_CHECKING:
    from replay.calibration.runs.judge import RunFidelity
    from replay.calibration.runs.log import RunLog
    from replay.specs.run_calibration import LatencyError


def require_scipy() -> None:
    """Raise SpecError where scipy, which fits need, is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise SpecError("scipy", "it is not installed", "scipy, which fits need", "pip install 'replay-gate[calibrate]'")


def refuse_together(mode: str, options: dict[str, object]) -> None:
    """Raise UsageError where an option was given that has no meaning beside `mode`."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"{name} has no meaning with {mode}")


def read_log(path: Path, meta: Path | None, prefixes: Path | None) -> RunLog:
    """Return the run in a log, with the beginnings of prompts that a trace of the same requests knows."""
    from replay.calibration.runs.log import read_run_log
    from replay.ingress.reader import read_trace

    return read_run_log(path, meta=meta, prefixes=None if prefixes is None else read_trace(prefixes))


def calibrate_run(path: Path, out: Path, meta: Path | None, prefixes: Path | None) -> None:
    """Fit a step model to the first half of a log, write it to <out>/<log>.json and print its errors on the second half."""
    from replay.calibration.runs.fit import calibrate_run
    from replay.documents import check, check_file_place, write_json

    require_scipy()
    log = read_log(path, meta, prefixes)
    place = out / f"{log.trace.name}.json"
    check_file_place(place)
    note(f"fitting {log.origin.requests_count // 2} requests of {path}")
    fitted = calibrate_run(log)
    document = fitted.to_document()
    check(document, "run-calibration.v1", str(place))
    write_json(place, document)
    click.echo(f"wrote {place}: fitted on {fitted.fitted_requests_count} of {log.origin.requests_count} requests; errors on the others:")
    click.echo("\n".join(_error_lines(fitted.errors)))


def judge_run(path: Path, meta: Path | None, prefixes: Path | None, calibration: Path | None, startup_s: float | None) -> RunFidelity:
    """Return how far a calibration is off a log; without one, the log's first half is fitted first."""
    from replay.calibration.runs.fit import calibrate_run
    from replay.calibration.runs.judge import judge_run
    from replay.catalog.calibration import read_run_calibration

    given = None if calibration is None else read_run_calibration(calibration)
    log = read_log(path, meta, prefixes)
    if given is None:
        require_scipy()
        note(f"fitting {log.origin.requests_count // 2} requests of {path}")
        given = calibrate_run(log)
    return judge_run(log, given, startup_s=startup_s)


def fidelity_text(found: RunFidelity) -> str:
    """Return the report for people."""
    log, grouping = found.log, found.grouping
    source = "its own first half" if found.fitted_on.digest == log.digest else f"{found.fitted_on.file_name} ({found.fitted_on.server})"
    server = ", ".join(part for part in (log.model, log.server, log.hardware) if part)
    lines = [
        f"{log.file_name}: {server}",
        f"fitted on {source}; judged on requests {found.first_judged + 1} to {log.requests_count} of {log.requests_count}",
        *_error_lines(found.errors),
        f"steps that give the same first and last tokens, on the log's clock: {grouping.alike_count} of {grouping.steps_count}",
        "a correlation near 1 shows little: servers whose latencies are wrong by half reach 0.99",
        *(f"note: {text}" for text in found.notes),
    ]
    return "\n".join(lines) + "\n"


def _error_lines(errors: tuple[LatencyError, ...]) -> list[str]:
    titles = ("metric", "n", "at", "observed", "predicted", "error", "median per request", "correlation")
    lines = [f"{titles[0]:<6} {titles[1]:>5}  {titles[2]:<4} {titles[3]:>9} {titles[4]:>9} {titles[5]:>7}  {titles[6]:>18}  {titles[7]}"]
    for error in errors:
        for index, one in enumerate(error.percentiles):
            named = f"{error.metric.removesuffix('_s').upper():<6} {error.requests_count:>5}" if index == 0 else " " * 12
            figures = f"{format_seconds(one.observed_s):>9} {format_seconds(one.predicted_s):>9} {one.error_ratio:>+7.1%}"
            shown = "-" if error.correlation is None else f"{error.correlation:.3f}"
            whole = f"  {error.median_error_ratio:>18.1%}  {shown:>11}" if index == 0 else ""
            lines.append(f"{named}  p{100 * one.percentile_ratio:<3.0f} {figures}{whole}")
    return lines
