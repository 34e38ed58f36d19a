"""`replay map`: the operator-to-kernel mapping sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.inputs import chosen_mapping, chosen_model, current_project, load_hardware, measurements_option, say_unused
from gates.cli.table_cache import cache_option, user_cache

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_COLUMNS = (
    ("kernel", 24), ("tile", 12), ("split", 5), ("formats", 10), ("flops", 12), ("bytes", 10), ("compute", 9), ("memory", 9),
    ("launch", 9), ("sync", 9), ("time", 9), ("share", 6), ("bound by", 16),
    ("source", 10),
)  # fmt: skip


@click.command("map")
@click.option("--mapping", metavar="FILE", help="Mapping file (default: the project's).")
@click.option("--model", metavar="NAME|FILE", help="Catalog name or Hugging Face config.json (default: the project's).")
@click.option("--hardware", metavar="NAME|FILE", help="Catalog name or description (default: the project's first).")
@click.option("--sequences", type=click.IntRange(min=1), default=32, show_default=True, help="Sequences of the decode step shown.")
@click.option("--context", type=click.IntRange(min=1), default=1024, show_default=True, help="Their context length in tokens.")
@click.option("--prompt", type=click.IntRange(min=1), default=1024, show_default=True, help="Prompt tokens of the prefill step shown.")
@measurements_option
@cache_option
@click.option("--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
def command(
    mapping: str | None,
    model: str | None,
    hardware: str | None,
    sequences: int,
    context: int,
    prompt: int,
    measurements: tuple[Path, ...],
    no_cache: bool,
    form: str,
) -> None:
    """Print which kernel runs each operator: tile, fusion group, formats, bytes, FLOPs, time split and what bounds it.

    Two steps are shown: a decode step of --sequences sequences at --context tokens, and the prefill of one --prompt. Their
    costs come from the same table that the replay runs on.
    """
    from replay.mapping_sheet import StepShape, mapping_sheet
    from replay.pipeline import compile_mapping

    project = current_project()
    arm = chosen_mapping(mapping, project)
    spec = chosen_model(model, arm, project)
    device = load_hardware([hardware] if hardware else [], project, measurements)[0]
    compiled = compile_mapping(spec, device, arm.mapping, cache=user_cache(no_cache))
    say_unused(device, compiled.table)
    limits = compiled.table.limits
    steps = (
        StepShape(name="decode", decode_sequences=min(sequences, limits.max_running, limits.max_batched_tokens), context_tokens=context),
        StepShape(name="prefill", prefill_tokens=min(prompt, limits.max_batched_tokens)),
    )
    sheet = mapping_sheet(compiled, device, arm.mapping, steps)
    decisions = [{"knob": d.knob, "requested": d.requested, "effective": d.effective, "reason": d.reason} for d in compiled.decisions]
    click.echo(_render(sheet, decisions, form), nl=False)


def _render(sheet: pa.Table, decisions: list[dict[str, Any]], form: str) -> str:
    from replay.documents import pretty_json

    if form == "json":
        return pretty_json({"kernels": sheet.to_pylist(), "decisions": decisions})
    if form == "csv":
        return _csv(sheet)
    return _text(sheet.to_pylist(), decisions)


def _csv(sheet: pa.Table) -> str:
    import csv
    import io

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(sheet.column_names)
    writer.writerows(row.values() for row in sheet.to_pylist())
    return stream.getvalue()


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
        f"{row['share_ratio']:.1%}", row["bottleneck_class"], row["source"],
    ]  # fmt: skip
    return " ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, _TEXT_COLUMNS, strict=True)).rstrip()
