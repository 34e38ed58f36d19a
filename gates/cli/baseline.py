"""`replay baseline`: freeze a mapping with all that is needed to replay it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gates.cli.arms import locator
from gates.cli.inputs import (
    chosen_mapping,
    chosen_model,
    chosen_seed,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    project_folder,
    say_unused,
    work_options,
)
from gates.cli.progress import note
from gates.cli.run import run_manifest
from gates.cli.table_cache import cache_option, user_cache


@click.command("baseline")
@click.option("--mapping", metavar="FILE", help="Mapping file (default: the project's).")
@work_options
@measurements_option
@cache_option
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Bundle to write (.json).")
def command(
    mapping: str | None,
    traces: tuple[str, ...],
    model: str | None,
    hardware: tuple[str, ...],
    seed: int | None,
    measurements: tuple[Path, ...],
    no_cache: bool,
    out: Path,
) -> None:
    """Write a baseline bundle: mapping, model, hardware, each trace's digest and place, and the replayed figures.

    `replay gate --baseline FILE` replays it again with the current engine; the figures are for reading.
    """
    from replay.assembly.assemble import summary
    from replay.documents import check, check_file_place, write_json
    from replay.pipeline import Replayer

    project = current_project()
    folder = project_folder(project)
    arm = chosen_mapping(mapping, project)
    spec = chosen_model(model, arm, project)
    check_file_place(out)
    devices = load_hardware(hardware, project, measurements)
    bundle: dict[str, Any] = {}
    cache = user_cache(no_cache)
    for trace, path in load_traces(traces, project):
        for device in devices:
            note(f"replaying {arm.label} on {trace.name}, {device.name}")
            replayer = Replayer(trace=trace, model=spec, hardware=device, seed=chosen_seed(seed, project), cache=cache)
            manifest = run_manifest(arm, replayer, locator(path, folder))
            cell = {**manifest["cells"][0], "summary": summary(replayer.run(arm.mapping))}
            say_unused(device, replayer.table(arm.mapping))
            bundle = bundle or {"schema_version": "1", **manifest, "cells": []}
            bundle["cells"].append(cell)
    check(bundle, "baseline.v1", str(out))
    write_json(out, bundle)
    click.echo(f"wrote {out}: {arm.mapping.name} on {len(bundle['cells'])} trace and accelerator pairs")
