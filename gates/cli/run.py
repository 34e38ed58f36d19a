"""`replay run`: replay one mapping on traces and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.arms import ArmSource, locator
from gates.cli.inputs import (
    chosen_mapping,
    chosen_model,
    chosen_out,
    chosen_seed,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    named_traces,
    project_folder,
    say_fallbacks,
    say_unused,
    work_options,
)
from gates.cli.progress import count, note
from gates.cli.table_cache import cache_option, user_cache
from replay.errors import SpecError

if TYPE_CHECKING:
    from replay.ingress.streamed import StreamedTrace
    from replay.ingress.trace import Trace
    from replay.pipeline import PieceReplayer, Replayer


@click.command("run")
@click.option("--mapping", metavar="FILE", help="Mapping file (default: the project's).")
@work_options
@measurements_option
@cache_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for the run directories (default: the project's).")
@click.option("--stream", is_flag=True, help="Read, replay and write piece by piece: for native Parquet traces larger than memory.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    mapping: str | None,
    traces: tuple[str, ...],
    model: str | None,
    hardware: tuple[str, ...],
    seed: int | None,
    measurements: tuple[Path, ...],
    no_cache: bool,
    out: Path | None,
    stream: bool,
    form: str,
) -> None:
    """Replay a mapping on every trace and accelerator; write DIR/<trace>-<hardware>/ with run.json and the tables."""
    from replay.assembly.store import check_place
    from replay.documents import pretty_json
    from replay.ingress.streamed import open_streamed

    project = current_project()
    arm = chosen_mapping(mapping, project)
    spec = chosen_model(model, arm, project)
    target = chosen_out(out, project)
    devices = load_hardware(hardware, project, measurements)
    found = named_traces(open_streamed, traces, project) if stream else load_traces(traces, project)
    pairs = [(trace, path, device) for trace, path in found for device in devices]
    folders = run_folders(target, [(trace.name, device.name) for trace, _, device in pairs])
    for folder in folders:
        check_place(folder)
    runs = []
    cache = user_cache(no_cache)
    for folder, (trace, path, device) in zip(folders, pairs, strict=True):
        note(f"replaying {arm.label} on {trace.name}, {device.name}")
        replayer = _replayer(trace, model=spec, hardware=device, seed=chosen_seed(seed, project), cache=cache)
        say_unused(device, replayer.table(arm.mapping))
        say_fallbacks(replayer.schedule(arm.mapping).decisions)
        runs.append(_write(replayer, arm, folder, locator(path, project_folder(project))))
        if form == "text":
            click.echo("\n".join(_lines(runs[-1], folder)))
    if form == "json":
        click.echo(pretty_json(runs), nl=False)


def _replayer(trace: Trace | StreamedTrace, **work: Any) -> Replayer | PieceReplayer:
    from replay.ingress.streamed import StreamedTrace
    from replay.pipeline import PieceReplayer, Replayer

    return PieceReplayer(trace=trace, **work) if isinstance(trace, StreamedTrace) else Replayer(trace=trace, **work)


def _write(replayer: Replayer | PieceReplayer, arm: ArmSource, folder: Path, locator: str) -> dict[str, Any]:
    """Replay a mapping, write its run directory and return its run.json."""
    from replay.assembly.store import write_run
    from replay.pipeline import PieceReplayer

    manifest = run_manifest(arm, replayer, locator)
    if isinstance(replayer, PieceReplayer):
        return replayer.write(arm.mapping, folder, manifest, say=count)
    return write_run(replayer.run(arm.mapping), folder, manifest)


def run_folders(target: Path, pairs: Sequence[tuple[str, str]]) -> list[Path]:
    """Return the run directory of each (trace, accelerator).

    Raises:
        SpecError: two pairs would share one.
    """
    folders = [target / f"{trace}-{hardware}" for trace, hardware in pairs]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise SpecError(str(twice), "the place of two runs", "a folder for each trace and accelerator", "run them into different folders")
    return folders


def run_manifest(arm: ArmSource, replayer: Replayer | PieceReplayer, locator: str) -> dict[str, Any]:
    """Return what a run directory or bundle embeds so that the run can be repeated: mapping, model, hardware, trace."""
    trace = replayer.trace
    return {
        "mapping": arm.mapping.to_document(),
        "model": replayer.model.to_document(),
        "cells": [
            {
                "trace": {"name": trace.name, "digest": trace.digest, "locator": locator, "kind": trace.provenance.kind},
                "hardware": replayer.hardware.to_document(),
            }
        ],
        "seed": str(replayer.seed),
    }


def _lines(run: dict[str, Any], folder: Path) -> list[str]:
    from replay.units import format_seconds, format_si

    of, summary, kind = run["run"], run["summary"], run["cells"][0]["trace"]["kind"]
    lines = [f"{of['trace']} ({kind}, {summary['requests_count']} requests) on {of['hardware']}, {of['model']}"]
    for metric in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        shown = "  ".join(
            f"{point} {'-' if value is None else format_seconds(value)}" for point, value in summary["percentiles"][metric].items()
        )
        lines.append(f"  {metric:<8} {shown}")
    lines.append(
        f"  MFU {summary['mfu_ratio']:.1%} of {format_si(of['reference_flops_per_s'], 'FLOP/s')} while busy"
        f" ({summary['busy_ratio']:.1%} of the time), {summary['steps_count']} steps, {summary['preemptions_count']} preemptions"
    )
    if summary["joules_per_token"] is not None:
        lines.append(f"  {format_si(summary['joules_per_token'], 'J')} a token, {format_si(summary['energy_j'], 'J')} in all")
    lines += [f"  {requests} requests can never fit: {reason}" for reason, requests in summary["rejected"].items()]
    return [*lines, f"  files: {folder}"]
