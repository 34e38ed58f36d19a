"""`replay map`: the operator-to-kernel mapping sheet, or the operators of an ONNX model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gates.cli.inputs import chosen_mapping, chosen_model, current_project, load_hardware, model_source
from gates.cli.map_graph import is_graph, parse_axes, parse_batches, render_graph
from gates.cli.table_csv import table_csv
from replay.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.specs.hardware import HardwareSpec
    from replay.specs.mapping import MappingSpec
    from replay.specs.model import ModelSpec

_TEXT_COLUMNS = (
    ("kernel", 24), ("tile", 12), ("split", 5), ("formats", 10), ("flops", 12), ("bytes", 10), ("compute", 9), ("memory", 9),
    ("launch", 9), ("sync", 9), ("time", 9), ("share", 6), ("bound by", 16),
)  # fmt: skip


_OF_A_MAPPING, _OF_A_GRAPH = ("mapping", "sequences", "context", "prompt"), ("batch", "axes", "fusion")


@click.command("map")
@click.option("--mapping", metavar="FILE", help="Mapping file (default: the project's).")
@click.option("--model", metavar="NAME|FILE", help="Catalog name, Hugging Face config.json or ONNX file (default: the project's).")
@click.option("--hardware", metavar="NAME|FILE", help="Catalog name or description (default: the project's first).")
@click.option("--sequences", type=click.IntRange(min=1), default=32, show_default=True, help="Sequences of the decode step shown.")
@click.option("--context", type=click.IntRange(min=1), default=1024, show_default=True, help="Their context length in tokens.")
@click.option("--prompt", type=click.IntRange(min=1), default=1024, show_default=True, help="Prompt tokens of the prefill step shown.")
@click.option("--batch", metavar="N,N...", help="ONNX: batch sizes (default: 1).")
@click.option("--axis", "axes", multiple=True, metavar="NAME=SIZE", help="ONNX: size of a dynamic axis, or NAME=batch; repeat for several.")
@click.option("--fusion/--no-fusion", default=True, show_default=True, help="ONNX: run what follows a product in its epilogue.")
@click.option("--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, model: str | None, hardware: str | None, form: str, **options: Any) -> None:
    """Print which kernel runs each operator: tile, fusion group, formats, bytes, FLOPs, time split and what bounds it.

    Two steps are shown: a decode step of --sequences sequences at --context tokens, and the prefill of one --prompt. Their
    costs come from the same table that the replay runs on. Of an ONNX model every operator is shown, for each --batch; no
    mapping file has a part in it.
    """
    project = current_project()
    source = model_source(model, project) if model or (project and project.model) else ""
    graph = is_graph(source)
    _refuse(ctx, _OF_A_MAPPING if graph else _OF_A_GRAPH, graph)
    if graph:
        batches, axes = parse_batches(options["batch"]), parse_axes(options["axes"])
        device = load_hardware([hardware] if hardware else [], project)[0]
        click.echo(render_graph(source, device, batches, axes, fuse=options["fusion"], form=form), nl=False)
        return
    arm = chosen_mapping(options["mapping"], project)
    spec = chosen_model(model, arm, project)
    device = load_hardware([hardware] if hardware else [], project)[0]
    click.echo(_render_mapping(arm.mapping, spec, device, options, form), nl=False)


def _refuse(ctx: click.Context, names: tuple[str, ...], graph: bool) -> None:
    """Refuse options that have no effect on this kind of model.

    Raises:
        SpecError: one of them is given.
    """
    for parameter in ctx.command.params:
        if parameter.name in names and ctx.get_parameter_source(parameter.name) != ParameterSource.DEFAULT:
            got = f"{parameter.opts[0]} and a model that {'is' if graph else 'is not'} an ONNX file"
            raise SpecError("the command line", got, "options that have an effect on the model", f"leave {parameter.opts[0]} out")


def _render_mapping(mapping: MappingSpec, model: ModelSpec, device: HardwareSpec, options: dict[str, Any], form: str) -> str:
    from replay.mapping_sheet import StepShape, mapping_sheet
    from replay.pipeline import compile_mapping

    compiled = compile_mapping(model, device, mapping)
    limits = compiled.table.limits
    sequences = min(options["sequences"], limits.max_running, limits.max_batched_tokens)
    steps = (
        StepShape(name="decode", decode_sequences=sequences, context_tokens=options["context"]),
        StepShape(name="prefill", prefill_tokens=min(options["prompt"], limits.max_batched_tokens)),
    )
    sheet = mapping_sheet(compiled, device, mapping, steps)
    decisions = [{"knob": d.knob, "requested": d.requested, "effective": d.effective, "reason": d.reason} for d in compiled.decisions]
    return _render(sheet, decisions, form)


def _render(sheet: pa.Table, decisions: list[dict[str, Any]], form: str) -> str:
    from replay.documents import pretty_json

    if form == "json":
        return pretty_json({"kernels": sheet.to_pylist(), "decisions": decisions})
    if form == "csv":
        return table_csv(sheet)
    return _text(sheet.to_pylist(), decisions)


def _text(rows: list[dict[str, Any]], decisions: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    for step in dict.fromkeys(row["step"] for row in rows):
        lines += ["", f"{step} step", "".join(f"{title:<{width}} " for title, width in _TEXT_COLUMNS).rstrip()]
        lines += [_text_row(row) for row in rows if row["step"] == step]
    changed = [decision for decision in decisions if decision["reason"]]
    if changed:
        lines += ["", "requested and not effective"]
        lines += [f"  {d['knob']}: {d['requested']} -> {d['effective']} ({d['reason']})" for d in changed]
    return "\n".join(lines[1:]) + "\n"


def _text_row(row: dict[str, Any]) -> str:
    from replay.units import format_bytes, format_seconds, format_si

    formats = "/".join(filter(None, (row["weights_format"], row["activations_format"], row["kv_format"])))
    times = [format_seconds(row[name]) if row[name] else "-" for name in ("compute_s", "memory_s", "launch_s", "sync_s", "time_s")]
    flops = format_si(row["flops"], "FLOP") if row["flops"] else "-"
    cells = [
        row["kernel"], row["tile"] or "-", row["split"] or "-", formats or "-", flops, format_bytes(row["bytes"]), *times,
        f"{row['share_ratio']:.1%}", row["bottleneck_class"],
    ]  # fmt: skip
    return " ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, _TEXT_COLUMNS, strict=True)).rstrip()
