"""`replay map`: the mapping sheet of a mapping, what changes between two, or the operators of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gates.cli.arms import ArmSource, read_arm
from gates.cli.inputs import (
    chosen_mapping,
    chosen_model,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    model_source,
    project_folder,
    say_unused,
)
from gates.cli.map_graph import is_graph, parse_axes, parse_batches, render_graph
from gates.cli.table_cache import cache_option, user_cache
from gates.cli.table_csv import table_csv
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.project import Project
    from replay.mapping_sheet import StepShape
    from replay.specs.hardware import HardwareSpec
    from replay.specs.model import ModelSpec
    from replay.specs.routing import ExpertLoad
    from replay.tiling.schedule import Schedule

_OF_A_MAPPING = ("mapping", "diff", "trace", "sequences", "context", "prompt", "measurements", "no_cache")
_OF_A_GRAPH = ("batch", "axes", "fusion")


@click.command("map")
@click.option("--mapping", metavar="FILE", help="Mapping file (default: the project's).")
@click.option("--diff", nargs=2, metavar="A B", help="Two mappings: print only what changes from A to B and which operators it moves.")
@click.option("--model", metavar="NAME|FILE", help="Catalog name, Hugging Face config.json or ONNX file (default: the project's).")
@click.option("--hardware", metavar="NAME|FILE", help="Catalog name or description (default: the project's first).")
@click.option(
    "--trace", metavar="FILE", help="Trace whose expert load is used (default: the project's first, where the model has experts)."
)
@click.option("--sequences", type=click.IntRange(min=1), default=32, show_default=True, help="Sequences of the decode step shown.")
@click.option("--context", type=click.IntRange(min=1), default=1024, show_default=True, help="Their context length in tokens.")
@click.option("--prompt", type=click.IntRange(min=1), default=1024, show_default=True, help="Prompt tokens of the prefill step shown.")
@click.option("--batch", metavar="N,N...", help="ONNX: batch sizes (default: 1).")
@click.option("--axis", "axes", multiple=True, metavar="NAME=SIZE", help="ONNX: size of a dynamic axis, or NAME=batch; repeat for several.")
@click.option("--fusion/--no-fusion", default=True, show_default=True, help="ONNX: run what follows a product in its epilogue.")
@measurements_option
@cache_option
@click.option("--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, model: str | None, hardware: str | None, form: str, **options: Any) -> None:
    """Print which kernel runs each operator: tile, resources, fusion group, formats, bytes, FLOPs, time split, what bounds it, its source.

    Two steps are shown: a decode step of --sequences sequences at --context tokens, and the prefill of one --prompt. Their
    costs come from the same table that the replay runs on. --diff A B shows both mappings on the same two steps. Of an ONNX
    model every operator is shown, for each --batch; no mapping file has a part in it.
    """
    project = current_project()
    source = model_source(model, project) if model or (project and project.model) else ""
    graph = is_graph(source)
    _refuse(ctx, _OF_A_MAPPING if graph else _OF_A_GRAPH, graph)
    if graph:
        batches, axes = parse_batches(options["batch"]), parse_axes(options["axes"])
        device = load_hardware([hardware] if hardware else [], project)[0]
        click.echo(render_graph(source, device, batches, axes, fuse=options["fusion"], form=form), nl=False)
    else:
        click.echo(_render_mappings(model, hardware, options, form), nl=False)


def _refuse(ctx: click.Context, names: tuple[str, ...], graph: bool) -> None:
    """Refuse options that have no effect on this kind of model.

    Raises:
        SpecError: one of them is given.
    """
    for parameter in ctx.command.params:
        if parameter.name in names and ctx.get_parameter_source(parameter.name) != ParameterSource.DEFAULT:
            got = f"{parameter.opts[0]} and a model that {'is' if graph else 'is not'} an ONNX file"
            raise SpecError("the command line", got, "options that have an effect on the model", f"leave {parameter.opts[0]} out")


def _render_mappings(model: str | None, hardware: str | None, options: dict[str, Any], form: str) -> str:
    """Return the sheet of one mapping, or what changes between two."""
    from replay.pipeline import compile_mapping

    mapping, diff = options["mapping"], options["diff"]
    if diff is not None and mapping is not None:
        raise SpecError("the command line", "both --mapping and --diff", "one of them", "leave out --mapping, as --diff names both files")
    project = current_project()
    folder = project_folder(project)
    arms = [chosen_mapping(mapping, project)] if diff is None else [read_arm(source, role="diff", folder=folder) for source in diff]
    spec = chosen_model(model, arms[0], project)
    device, cache = load_hardware([hardware] if hardware else [], project, options["measurements"])[0], user_cache(options["no_cache"])
    routing = _routing(options["trace"], spec, project)
    compiled = [compile_mapping(spec, device, arm.mapping, routing=routing, cache=cache) for arm in arms]
    say_unused(device, *(done.table for done in compiled))
    asked = {name: options[name] for name in ("sequences", "context", "prompt")}
    steps = _steps(compiled, **asked)
    _say_limits(compiled, asked, steps)
    if diff is None:
        return _sheet(arms[0], compiled[0], device, steps, form)
    return _diff(arms, compiled, spec, device, steps, form)


def _routing(trace: str | None, model: ModelSpec, project: Project | None) -> ExpertLoad | None:
    """Return the expert load of the trace named on the command line, else of the project's first; None where the model has no experts."""
    named = trace is not None or (project is not None and project.traces)
    if model.experts is None or not named:
        return None
    return load_traces([trace] if trace else [], project)[0][0].expert_load


def _steps(compiled: Sequence[Schedule], *, sequences: int, context: int, prompt: int) -> tuple[StepShape, ...]:
    """Return the two steps, no larger than any of the mappings allows."""
    from replay.mapping_sheet import StepShape

    running = min(min(done.table.limits.max_running, done.table.limits.max_batched_tokens) for done in compiled)
    batched = min(done.table.limits.max_batched_tokens for done in compiled)
    longest = min(done.table.limits.max_context_tokens for done in compiled)
    return (
        StepShape(name="decode", decode_sequences=min(sequences, running), context_tokens=min(context, longest)),
        StepShape(name="prefill", prefill_tokens=min(prompt, batched, longest)),
    )


def _say_limits(compiled: Sequence[Schedule], asked: dict[str, int], steps: tuple[StepShape, ...]) -> None:
    """Say on stderr which of the asked steps do not exist, and where the cache cannot hold the one that is shown."""
    decode, prefill = steps
    shown = {"sequences": decode.decode_sequences, "context": decode.context_tokens, "prompt": prefill.prefill_tokens}
    for name, most in shown.items():
        if most < asked[name]:
            click.echo(f"replay: --{name} {asked[name]} is shown as {most}, the most that the mapping and model allow in a step", err=True)
    for done in compiled:
        pool = done.table.pool
        held = pool.blocks_count * pool.block_tokens
        if held < decode.decode_sequences * decode.context_tokens:
            needs = f"{decode.decode_sequences} sequences of {decode.context_tokens} tokens"
            click.echo(f"replay: the cache holds {held} tokens, fewer than {needs} need: the decode step shown cannot run", err=True)


def _sheet(arm: ArmSource, compiled: Schedule, device: HardwareSpec, steps: tuple[StepShape, ...], form: str) -> str:
    from gates.render.sheet import render_sheet
    from replay.documents import pretty_json
    from replay.mapping_sheet import imbalance_ratios, mapping_sheet, step_totals

    sheet = mapping_sheet(compiled, device, arm.mapping, steps)
    if form == "csv":
        return table_csv(sheet)
    totals = [{**asdict(total), "time_s": total.time_s} for total in step_totals(compiled.table, steps)]
    decisions = [{"knob": d.knob, "requested": d.requested, "effective": d.effective, "reason": d.reason} for d in compiled.decisions]
    if form == "json":
        by_layer = [ratio for kernel in compiled.plan.kernels for ratio in imbalance_ratios(kernel)]
        document = {"kernels": sheet.to_pylist(), "steps": totals, "decisions": decisions, "expert_imbalance_ratios": by_layer}
        return pretty_json(document)
    return render_sheet(sheet.to_pylist(), totals, decisions)


def _diff(
    arms: Sequence[ArmSource], compiled: Sequence[Schedule], model: ModelSpec, device: HardwareSpec, steps: tuple[StepShape, ...], form: str
) -> str:
    from gates.render.mapping_diff import diff_rows, render_diff
    from replay.documents import pretty_json
    from replay.mapping_diff import Side, mapping_diff

    baseline, candidate = (Side(mapping=arm.mapping, schedule=done) for arm, done in zip(arms, compiled, strict=True))
    found = mapping_diff(baseline, candidate, device, steps)
    document: dict[str, Any] = {
        "schema_version": "1",
        "model": model.name,
        "hardware": device.name,
        "baseline": _arm(arms[0]),
        "candidate": _arm(arms[1]),
        "identical": found.is_empty,
        **found.to_document(),
    }
    if form == "json":
        return pretty_json(document)
    return _csv(diff_rows(document)) if form == "csv" else render_diff(document)


def _arm(arm: ArmSource) -> dict[str, str]:
    return {"label": arm.label, "name": arm.mapping.name, "digest": arm.mapping.digest}


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    import csv
    import io

    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
