"""Patch that sets knobs back in the candidate's mapping file: a unified diff that applies with ``git apply``."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, replace

from replay.documents import parse_toml
from replay.errors import InvariantError
from replay.specs.knobs import Value
from replay.specs.mapping import MappingSpec, Setting, parse_mapping
from replay.specs.scopes import parse_scope
from replay.specs.tile_table import TileTable, TileTables
from replay.specs.toml_text import toml_key, toml_value
from replay.toml_lines import Statement, statements


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingFile:
    """The candidate's mapping file as it stands: its name relative to the project and its text, byte-order mark and line ends included."""

    name: str
    text: str
    tables: tuple[TileTable, ...] = ()
    """Tuned tables that it names."""


def revert_patch(file: MappingFile, knobs: tuple[str, ...], baseline: MappingSpec, scoped: tuple[Setting, ...] = ()) -> str | None:
    """Return the unified diff that gives the named knobs the baseline's setting, or None where the text needs no change.

    `scoped` are settings to add beside that, for reverts narrower than a knob.

    None as well where a tuned table has to go back whose path stays: its content is no part of the text. Everything else in the
    file (comments, order, spelling, line ends) stays. The patched text parses to the same settings as
    ``candidate.reverted(knobs, baseline)`` and those added.

    Raises:
        InvariantError: the edited text does not parse to that mapping.
    """
    old = {setting.knob: setting.value for setting in baseline.settings}
    now = {table.path: table for table in file.tables}
    if any(now.get(table.path, table) != table for knob in knobs for table in _tables(old.get(knob))):
        return None
    edits = {knob: old.get(knob) for knob in knobs} | {setting.knob: setting.value for setting in scoped}
    text = file.text
    for knob, value in edits.items():
        text = _edited(text, knob, value)
    _verify(file, text, knobs, baseline, scoped)
    return _unified(file, text) if text != file.text else None


def _edited(text: str, knob: str, value: Value | None) -> str:
    """Return the text with one knob set to a value, or not set at all (None)."""
    section, key = knob.split(".", 1)
    inline = None
    for statement in statements(text):
        if statement.is_header:
            continue
        if statement.path == (section,):
            inline = statement
        elif len(statement.path) == 2 and _knob_id(*statement.path) == knob:
            if value is None:
                return text[: statement.first] + text[statement.after :]
            return _replaced(text, statement, toml_value(value))
    if inline is not None:
        return _replaced(text, inline, _inline_table(text, inline, knob, value))
    return text if value is None else _inserted(text, section, key, value)


def _knob_id(section: str, key: str) -> str:
    """Return the canonical knob id of a key of a mapping file, however its scope is spelled."""
    name, marker, scope = key.partition("@")
    return f"{section}.{name}" + (f"@{parse_scope(scope)}" if marker else "")


def _replaced(text: str, statement: Statement, value: str) -> str:
    start, end = statement.value
    return text[:start] + value + text[end:]


def _inline_table(text: str, statement: Statement, knob: str, value: Value | None) -> str:
    """Return a section written as an inline table, with one knob changed."""
    start, end = statement.value
    section = statement.path[0]
    written = parse_toml(f"{section} = {text[start:end]}\n", section)[section]
    values = {_knob_id(section, key): tuple(kept) if isinstance(kept, list) else kept for key, kept in written.items()}
    if value is None:
        values.pop(knob, None)
    else:
        values[knob] = value
    pairs = [f"{toml_key(name.split('.', 1)[1])} = {toml_value(setting)}" for name, setting in values.items()]
    return "{ " + ", ".join(pairs) + " }" if pairs else "{}"


def _inserted(text: str, section: str, key: str, value: Value) -> str:
    """Return the text with a new line at the end of its section, which is made at the end of the file where there is none."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    last = [statement for statement in statements(text) if statement.path[:1] == (section,)]
    text += "" if text.endswith("\n") else line_end
    if not last:
        return f"{text}{line_end}[{section}]{line_end}{toml_key(key)} = {toml_value(value)}{line_end}"
    dotted = f"{section}." if len(last[-1].written) == 2 else ""  # the section's keys stand at the top: gemm.tile = ...
    at = last[-1].after + (len(line_end) if last[-1].after and text[last[-1].after - 1] != "\n" else 0)
    return f"{text[:at]}{dotted}{toml_key(key)} = {toml_value(value)}{line_end}{text[at:]}"


def _tables(value: Value | None) -> tuple[TileTable, ...]:
    return value.tables if isinstance(value, TileTables) else ()


def _verify(file: MappingFile, text: str, knobs: tuple[str, ...], baseline: MappingSpec, scoped: tuple[Setting, ...]) -> None:
    bodies = {table.path: table.text for table in (*baseline.tables, *file.tables)}
    before, after = (parse_mapping(version.removeprefix("\ufeff"), file.name, bodies.__getitem__) for version in (file.text, text))
    reverted = before.reverted(knobs, baseline)
    if after.digest != replace(reverted, settings=(*reverted.settings, *scoped)).digest:
        raise InvariantError(f"the patch that reverts {', '.join(knobs)} in {file.name} does not give the mapping that was replayed")


def _unified(file: MappingFile, text: str) -> str:
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", version) for version in (file.text, text))
    lines = difflib.unified_diff(before, after, _path("a", file.name), _path("b", file.name))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _path(side: str, name: str) -> str:
    """Return a file name as git spells it in a patch: quoted where it must be, ended by a tab where it holds a space."""
    path = f"{side}/{name.removeprefix('./')}"
    if re.search(r'["\\\x00-\x1f]', path):
        return json.dumps(path, ensure_ascii=False)
    return path + ("\t" if " " in path else "")
