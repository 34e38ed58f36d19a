"""Text of a mapping sheet: for each step, which kernel runs each operator and how, then what that costs and how well that is known."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from replay.units import format_bytes, format_seconds, format_si

Row = dict[str, Any]
Columns = tuple[tuple[str, int], ...]

_RUNS: Columns = (
    ("kernel", 24), ("operators", 27), ("calls", 5), ("rows", 6), ("backend", 7), ("tile", 12), ("tile from", 9), ("split", 5),
    ("waves", 6), ("padding", 7), ("formats", 9), ("memory+registers, fit", 29),
)  # fmt: skip
_COSTS: Columns = (
    ("kernel", 24), ("flops", 12), ("bytes", 10), ("compute", 9), ("memory", 9), ("launch", 9), ("sync", 9), ("time", 9), ("share", 6),
    ("bound by", 16), ("source", 17), ("stack", 16),
)  # fmt: skip
NOTHING = "-"
WIDTH = 160
_HARD_SPACE = "\N{NO-BREAK SPACE}"


def render_sheet(rows: Sequence[Row], totals: Sequence[Row], decisions: Iterable[Row]) -> str:
    """Return the text of a sheet's rows, the totals of its steps, and the decisions that do not give what is asked for."""
    lines: list[str] = []
    for total in totals:
        here = [row for row in rows if row["step"] == total["step"]]
        lines += ["", f"{total['step']} step: {_step_text(total)}"]
        lines += ["", *_table(_RUNS, [_runs(row) for row in here]), "", *_table(_COSTS, [_costs(row) for row in here])]
    changed = [decision for decision in decisions if decision["reason"]]
    if changed:
        lines += ["", "requested and not effective"]
        lines += [line for decision in changed for line in wrapped(_decision_text(decision))]
    return "\n".join(lines[1:]) + "\n"


def _step_text(total: Row) -> str:
    graph = f"graph of {total['captured_tokens']} tokens" if total["captured_tokens"] else "eager"
    device, host = format_seconds(total["device_s"]), format_seconds(total["host_s"])
    return f"{format_seconds(total['time_s'])} (device {device}, host {host}, {graph})"


def wrapped(head: str, *parts: str) -> list[str]:
    """Return the lines of a text and its parts; no part is broken that fits on a line."""
    text = head + (": " + "; ".join(part.replace(" ", _HARD_SPACE) for part in parts) if parts else "")
    options: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "      ", "break_long_words": False, "break_on_hyphens": False}
    return [line.replace(_HARD_SPACE, " ") for line in textwrap.wrap(text, WIDTH, **options)]


def _decision_text(decision: Row) -> str:
    return f"{decision['knob']}: {decision['requested']} -> {decision['effective']} ({decision['reason']})"


def _runs(row: Row) -> list[str]:
    formats = "/".join(dict.fromkeys(filter(None, (row["weights_format"], row["activations_format"], row["kv_format"]))))
    waves = NOTHING if row["waves"] is None else f"{row['waves']:.4g}"
    padding = NOTHING if row["padding_ratio"] is None else f"{row['padding_ratio']:.1%}"
    return [
        row["kernel"], row["ops"], str(row["calls_count"]), str(row["rows_count"]), row["backend"], row["tile"] or NOTHING,
        row["tile_source"] or NOTHING, row["split"] or NOTHING, waves, padding, formats or NOTHING, _resources(row),
    ]  # fmt: skip


def _resources(row: Row) -> str:
    if row["unit_memory_bytes"] is None:
        return NOTHING
    memory, registers = format_bytes(row["unit_memory_bytes"]), format_bytes(row["accumulator_bytes"])
    threads = f", {row['threads_count']} thr" if row["threads_count"] else ""
    return f"{memory}+{registers} x{row['tiles_per_unit']}{threads}"


def _costs(row: Row) -> list[str]:
    times = [format_seconds(row[name]) if row[name] else NOTHING for name in ("compute_s", "memory_s", "launch_s", "sync_s", "time_s")]
    flops = format_si(row["flops"], "FLOP") if row["flops"] else NOTHING
    return [
        row["kernel"], flops, format_bytes(row["bytes"]), *times, f"{row['share_ratio']:.1%}", row["bottleneck_class"],
        f"{row['source']} +-{row['error_ratio']:.0%}", row["stack"] or NOTHING,
    ]  # fmt: skip


def _table(columns: Columns, rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [[title for title, _ in columns], *rows]
    return [" ".join(f"{cell:<{width}}" for cell, (_, width) in zip(line, columns, strict=True)).rstrip() for line in lines]
