"""`replay tune`: a mapping file tuned for a trace's shape mix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gates.cli.arms import ArmSource, relative_name
from gates.cli.inputs import chosen, chosen_mapping, chosen_model, chosen_seed, current_project, load_hardware, load_traces, project_folder
from gates.cli.progress import note
from gates.cli.table_cache import cache_option, user_cache
from gates.project import Project
from replay.errors import SpecError

if TYPE_CHECKING:
    from replay.ingress.trace import Trace
    from replay.pipeline import Replayer

DEFAULT_REPLAYS = 40


@click.command("tune")
@click.option("--trace", metavar="FILE", help="Request trace (default: the project's first).")
@click.option("--mapping", metavar="FILE", help="Mapping to start from (default: the project's, else every knob's default).")
@click.option("--model", metavar="NAME|FILE", help="Catalog name or Hugging Face config.json (default: the project's).")
@click.option("--hardware", metavar="NAME|FILE", help="Catalog name or description (default: the project's first).")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Mapping file to write (default: it is printed).")
@click.option("--objective", type=click.Choice(["time", "p99"]), default="time", show_default=True, help="What is made small.")
@click.option("--replays", type=click.IntRange(min=1), help=f"Most replays of the trace (--objective p99; default {DEFAULT_REPLAYS}).")
@cache_option
@click.option("--seed", type=click.IntRange(min=0), help="Seed of every random draw (default: the project's, else 0).")
def command(
    trace: str | None,
    mapping: str | None,
    model: str | None,
    hardware: str | None,
    out: Path | None,
    objective: str,
    replays: int | None,
    no_cache: bool,
    seed: int | None,
) -> None:
    """Write a mapping tuned for a trace on one accelerator: tiles, splits, graph sizes, all-reduce threshold; every line says why.

    With --objective time the trace is replayed once and the steps that it made are shortened, weighted by how often they occur.
    The result is never slower on them; rows that the trace never has keep `auto`. With --objective p99 batching.max_batched_tokens
    (the chunk of prompts) and batching.max_running are tried too, and every change is replayed: it is kept if the p99s of E2E,
    TTFT and TPOT improve on average and none is worse than before.

    What to expect: for dense products `auto` already is the model's own optimum for every row count, so a pinned tile can only go
    back to `auto`. Tuning matters where a software stack follows fixed rules (tiles of experts, attention tiles and key splits) and
    for graph sizes. Tiles that a stack does not have are beyond what any calibration has seen: gains are predictions - judge
    the change with `replay gate`, and measure it.
    """
    from replay.documents import check_file_place, write_atomic
    from replay.pipeline import Replayer

    if replays is not None and objective != "p99":
        raise SpecError("--replays", f"it is {replays} with --objective {objective}", "--objective p99, which replays", "leave it out")
    project = current_project()
    arm = _start(mapping, project)
    spec = chosen_model(model, arm, project)
    if out is not None:
        check_file_place(out)
        _check_tables(arm, out)
    device = load_hardware([hardware] if hardware else [], project)[0]
    requests, _ = load_traces([trace] if trace else [], project)[0]
    note(f"replaying {arm.label} on {requests.name}, {device.name}")
    replayer = Replayer(trace=requests, model=spec, hardware=device, seed=chosen_seed(seed, project), cache=user_cache(no_cache))
    text = _tuned(arm, replayer, requests, objective, replays or DEFAULT_REPLAYS)
    if out is None:
        click.echo(text, nl=False)
        return
    write_atomic(out, text.encode())
    heading = text.partition("name = ")[0].splitlines()
    click.echo("\n".join(line.removeprefix("# ") for line in heading))
    click.echo(f"wrote {relative_name(out, project_folder(project))}")


def _start(mapping: str | None, project: Project | None) -> ArmSource:
    """Return the mapping to start from; without any, that of every knob's default."""
    from replay.specs.mapping import MappingSpec

    if chosen(mapping, project.mapping if project else None, project) is None:
        return ArmSource(mapping=MappingSpec(name="defaults"), label="the defaults")
    return chosen_mapping(mapping, project)


def _check_tables(arm: ArmSource, out: Path) -> None:
    """Refuse a place from which the tables that the mapping names are not to be found."""
    if arm.mapping.tables and arm.path is not None and arm.path.resolve().parent != out.resolve().parent:
        want = f"a file beside {arm.label}, which names its tables by relative paths"
        raise SpecError("--out", f"it is {out}", want, "write it there")


def _tuned(arm: ArmSource, replayer: Replayer, trace: Trace, objective: str, replays: int) -> str:
    from replay.tuning.tails import TailTuner
    from replay.tuning.text import tail_text, tuned_text
    from replay.tuning.tune import Tuner

    steps_count = replayer.run(arm.mapping).steps.num_rows
    if steps_count == 0:
        want = "a mapping that serves at least one request of the trace"
        raise SpecError(arm.label, f"no request of {trace.name} can ever run", want, "see `replay run` for the reason of each")
    origin = f"{trace.requests.num_rows} {trace.provenance.kind} requests, {steps_count} steps"
    heading = [f"{arm.label} tuned by `replay tune` for {replayer.model.name} on {replayer.hardware.name}, {trace.name} ({origin})."]
    name = f"{arm.mapping.name}, tuned for {trace.name}"
    if objective == "p99":
        return tail_text(TailTuner(replayer, most_replays=replays, progress=note).tune(arm.mapping), name, heading)
    steps = replayer.run(arm.mapping).steps
    tuner = Tuner(model=replayer.model, hardware=replayer.hardware, steps=steps, progress=note, routing=trace.expert_load)
    return tuned_text(tuner.tune(arm.mapping), name, heading)
