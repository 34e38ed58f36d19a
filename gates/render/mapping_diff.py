"""Text and CSV of a mapping diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gates.render.sheet import wrapped
from replay.units import format_bytes, format_seconds, format_si

Document = dict[str, Any]

NO_DIFFERENCE = "no difference"
_SECTIONS = (("knobs", "knobs"), ("decisions", "decisions"), ("operators", "operators in another kernel"), ("serving", "serving"))


def render_diff(document: Document) -> str:
    """Return the text of a diff's JSON form."""
    title = f"{document['baseline']['label']} -> {document['candidate']['label']}: {document['model']} on {document['hardware']}"
    if document["identical"]:
        return f"{title}: {NO_DIFFERENCE}\n"
    lines = [title]
    for key, heading in _SECTIONS:
        if document[key]:
            lines += ["", heading, *(line for row in document[key] for line in wrapped(_in_words(row)))]
    changed = {row["step"]: row["fields"] for row in document["steps"]}
    for step in dict.fromkeys([*changed, *(row["step"] for row in document["kernels"])]):
        lines += ["", f"{step} step: {'; '.join(_fields(changed.get(step, ()))) or 'the same time as a whole'}"]
        lines += [line for row in document["kernels"] if row["step"] == step for line in _kernel(row)]
    return "\n".join(lines) + "\n"


def diff_rows(document: Document) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the CSV form, the header first; decisions and kernels have a row for each value that differs."""
    yield "kind", "step", "name", "field", "baseline", "candidate"
    for key, _ in _SECTIONS:
        for row in document[key]:
            for field, before, after in _flat(row):
                yield key, "", row["name"], field, before, after
    for kind, name in (("steps", ""), ("kernels", "kernel")):
        for row in document[kind]:
            for field in row["fields"]:
                yield kind, row["step"], row.get(name, ""), field["name"], _cell(field["baseline"]), _cell(field["candidate"])


def _flat(row: Document) -> Iterator[tuple[str, str, str]]:
    before, after = row["baseline"], row["candidate"]
    if not isinstance(before, dict) and not isinstance(after, dict):
        yield "", _cell(before), _cell(after)
        return
    for field in before or after:
        cells = [_cell(None if side is None else side[field]) for side in (before, after)]
        if cells[0] != cells[1]:
            yield field, cells[0], cells[1]


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _in_words(row: Document) -> str:
    return f"{row['name']}: {_value(row['name'], row['baseline'])} -> {_value(row['name'], row['candidate'])}"


def _kernel(row: Document) -> Iterator[str]:
    """Yield the lines of a kernel: what it runs and how its time changes, then everything else that does."""
    runs = "" if list(row["ops"]) == [row["kernel"]] else f" ({', '.join(row['ops'])})"
    if row["change"] != "changes":
        side = "candidate" if row["change"] == "appears" else "baseline"
        there = [field for field in row["fields"] if field[side] not in (None, "", 0.0) and field["name"] != "ops"]
        values = (f"{_name(field['name'])} {_value(field['name'], field[side])}" for field in there)
        yield from wrapped(f"{row['kernel']}{runs} {row['change']}", *values)
        return
    yield from wrapped(f"{row['kernel']}{runs}", *_fields([field for field in row["fields"] if field["name"] != "ops"]))


def _fields(fields: Iterable[Document]) -> list[str]:
    """Return the parts of a line: the time first."""
    return [f"{_name(field['name'])} {_both(field)}" for field in sorted(fields, key=lambda field: bool(field["name"] != "time_s"))]


def _both(field: Document) -> str:
    before, after = field["baseline"], field["candidate"]
    change = ""
    if field["name"] in ("time_s", "bytes") and before and after is not None:
        change = f" ({after / before - 1.0:+.1%})"
    return f"{_value(field['name'], before)} -> {_value(field['name'], after)}{change}"


def _name(name: str) -> str:
    for suffix in ("_s", "_bytes", "_ratio", "_count"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _value(name: str, value: Any) -> str:
    """Return a value with its unit, which its name ends in."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        reason = f" ({value['reason']})" if value["reason"] else ""
        asked = "" if value["effective"] == value["requested"] else f"{value['requested']} gives "
        return f"{asked}{value['effective']}{reason}"
    if isinstance(value, float):
        if name.endswith("_bytes_per_s"):
            return format_si(value, "B/s")
        if name.endswith("_s"):
            return format_seconds(value) if value else "-"
        if name.endswith("bytes"):
            return format_bytes(value)
        if name.endswith("_ratio"):
            return f"{value:.1%}"
        return format_si(value, "FLOP") if name == "flops" else f"{value:.4g}"
    return str(value)
