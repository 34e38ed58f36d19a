"""MappingSpec: the thing under test - every knob's value, with the scope it is set for and the line that sets it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from replay import documents
from replay.errors import SpecError, nearest
from replay.provenance import digest_document
from replay.specs.knobs import KNOBS, TABLES, KnobDefinition, Value
from replay.specs.scopes import EVERYWHERE, Scope, parse_scope
from replay.specs.tile_table import TableReader, TileTable, TileTables, read_tables, tables_from_document
from replay.toml_lines import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of a mapping file."""

    name: str
    scope: Scope
    value: Value
    line: int | None = None

    @property
    def knob(self) -> str:
        """The knob's id: `name` or `name@scope`."""
        return self.name if self.scope == EVERYWHERE else f"{self.name}@{self.scope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChange:
    """A knob that differs between two mappings; a value of None means that the mapping does not set it there."""

    knob: str
    baseline: Value | None
    candidate: Value | None
    line: int | None
    """Line of the candidate's file that sets it."""

    @property
    def definition(self) -> KnobDefinition:
        """The knob's definition."""
        return KNOBS[self.knob.split("@", 1)[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSpec:
    """A mapping: settings in file order; whatever is not set has the knob's default."""

    name: str
    settings: tuple[Setting, ...] = ()
    chip: str | None = None
    """The accelerator that values are asked for (see `on`); settings scoped to a chip apply only once it is named."""

    def on(self, chip: str) -> MappingSpec:
        """Return this mapping as it applies to one accelerator: every value asked of it is that chip's."""
        return replace(self, chip=chip)

    def only_on(self, chip: str) -> MappingSpec:
        """Return the same without the settings of other accelerators, which decide nothing there."""
        return replace(self, chip=chip, settings=tuple(setting for setting in self.settings if setting.scope.chip in (None, chip)))

    def value(self, name: str, *, layer: str | None = None, phase: str | None = None, rows: int | None = None) -> Value:
        """Return a knob's value at a place: that of the narrowest setting that covers it, else the default."""
        covering = [
            setting
            for setting in self.settings
            if setting.name == name and setting.scope.covers(layer=layer, phase=phase, rows=rows, chip=self.chip)
        ]
        return max(covering, key=lambda setting: setting.scope.narrowness).value if covering else KNOBS[name].default

    def count(self, name: str) -> int:
        """Return a whole-number knob of the whole model."""
        value = self.value(name)
        assert isinstance(value, int)
        return value

    def number(self, name: str, *, layer: str | None = None) -> float:
        """Return a knob that is a number, of the whole model or a layer type."""
        value = self.value(name, layer=layer)
        assert isinstance(value, int | float)
        return float(value)

    def row_bins(self, name: str, *, layer: str | None, phase: str | None, rows_to: int) -> Iterator[tuple[int, int, Value]]:
        """Yield (first row, last row, value) over 1..`rows_to`, cut where a scope's row bound changes the value."""
        edges = {1, rows_to + 1}
        for setting in self.settings:
            if setting.name == name:
                edges.add(max(1, setting.scope.rows_from))
                edges.add((setting.scope.rows_to or rows_to) + 1)
        cuts = sorted(edge for edge in edges if edge <= rows_to)
        values = [self.value(name, layer=layer, phase=phase, rows=first) for first in cuts]
        starts = [index for index, value in enumerate(values) if index == 0 or value != values[index - 1]]
        for index, following in zip(starts, [*starts[1:], None], strict=True):
            yield cuts[index], rows_to if following is None else cuts[following] - 1, values[index]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: name and settings by knob id, in file order."""
        return {"name": self.name, "settings": {setting.knob: plain(setting.value) for setting in self.settings}}

    @classmethod
    def from_document(cls, document: dict[str, Any], where: str) -> MappingSpec:
        """Return the mapping of a JSON form made by `to_document`."""
        settings = [
            _setting(knob, tables_from_document(value, where) if _names_tables(knob, value) else value, where, None)
            for knob, value in document["settings"].items()
        ]
        refuse_conflicts(settings, where)
        return cls(name=document["name"], settings=tuple(settings))

    @property
    def tables(self) -> tuple[TileTable, ...]:
        """Every tuned table that a setting names."""
        return tuple(table for setting in self.settings if isinstance(setting.value, TileTables) for table in setting.value.tables)

    @property
    def digest(self) -> str:
        """Digest of the settings and of the tables they name; the name is a label and does not count."""
        return digest_document([(setting.knob, setting.value) for setting in sorted(self.settings, key=lambda setting: setting.knob)])

    def reverted(self, knobs: Iterable[str], baseline: MappingSpec) -> MappingSpec:
        """Return this mapping with the named knob ids as the baseline has them (set, or not set at all)."""
        wanted = set(knobs)
        old = {setting.knob: setting for setting in baseline.settings}
        kept = [
            old[setting.knob] if setting.knob in wanted else setting
            for setting in self.settings
            if setting.knob not in wanted or setting.knob in old
        ]
        present = {setting.knob for setting in kept}
        kept += [setting for knob, setting in old.items() if knob in wanted and knob not in present]
        return replace(self, settings=tuple(kept))


def diff(baseline: MappingSpec, candidate: MappingSpec) -> tuple[KnobChange, ...]:
    """Return the knobs that differ, in the candidate's file order, those only the baseline sets last.

    A setting without scope that repeats the default equals one that is not written.
    """
    old = {setting.knob: setting for setting in baseline.settings}
    new = {setting.knob: setting for setting in candidate.settings}
    changes = []
    for knob in [*new, *(knob for knob in old if knob not in new)]:
        before, after = _set_value(old.get(knob), knob), _set_value(new.get(knob), knob)
        if before != after:
            changes.append(KnobChange(knob=knob, baseline=before, candidate=after, line=new[knob].line if knob in new else None))
    return tuple(changes)


def parse_mapping(text: str, where: str, read: TableReader | None = None) -> MappingSpec:
    """Return the mapping of a TOML text; `read` returns the text of a tuned table that it names.

    Raises:
        SpecError: it is not TOML, names an unknown knob or scope, or sets a value a knob does not take; a table cannot be used.
    """
    document = documents.parse_toml(text, where)
    name = document.pop("name", None)
    if not isinstance(name, str) or not name:
        raise SpecError(where, "it has no name" if name is None else f"name is {name!r}", "a name (text) at the top", 'write name = "..."')
    settings = []
    for section, content in document.items():
        line = locate(text, [section])
        if not isinstance(content, dict):
            known = sorted({knob.split(".")[0] for knob in KNOBS})
            raise SpecError(
                _at(where, line),
                f"the key {section!r} stands outside a section{nearest(section, known)}",
                "name and sections",
                "move it into its section",
            )
        for key, value in content.items():
            line = locate(text, [section, key])
            knob = f"{section}.{key}"
            settings.append(_setting(knob, _with_tables(knob, value, _at(where, line), read), where, line))
    refuse_conflicts(settings, where)
    return MappingSpec(name=name, settings=tuple(settings))


def _set_value(setting: Setting | None, knob: str) -> Value | None:
    if setting is not None:
        return setting.value
    return None if "@" in knob else KNOBS[knob].default


def _with_tables(knob: str, value: Any, place: str, read: TableReader | None) -> Any:
    """Return a value as it is, or the tables that it names."""
    if not _names_tables(knob, value):
        return value
    if read is None:
        raise SpecError(place, f"{knob} names a file, and this mapping was read from none", '"none"', "read it from a file")
    return read_tables(value, place, read)


def _names_tables(knob: str, value: Any) -> bool:
    definition = KNOBS.get(knob.partition("@")[0])
    return definition is not None and definition.values == TABLES and value != definition.default


def _setting(knob: str, value: Any, where: str, line: int | None) -> Setting:
    name, _, scope_text = knob.partition("@")
    place = _at(where, line)
    definition = KNOBS.get(name)
    if definition is None:
        raise SpecError(
            place,
            f"unknown knob {name!r}{nearest(name, KNOBS)}",
            "a knob of the mapping schema",
            "correct or remove the line (`replay validate --knobs FILE` lists them)",
        )
    scope = _scope(definition, knob, scope_text, place)
    frozen = tuple(value) if isinstance(value, list) else value
    want = definition.problem(frozen)
    if want is not None:
        raise SpecError(place, f"{knob} is {value!r}", want, "correct the value")
    return Setting(name=name, scope=scope, value=frozen, line=line)


def _scope(definition: KnobDefinition, knob: str, text: str, place: str) -> Scope:
    if "@" not in knob:
        return EVERYWHERE
    fix = f"narrow {definition.name} only by what it takes"
    try:
        scope = parse_scope(text)
    except ValueError as error:
        raise SpecError(place, str(error), "a scope such as @mlp.decode[rows<=16]", "correct the scope") from error
    if scope.layer is not None and scope.layer not in definition.layers:
        raise SpecError(
            place,
            f"{definition.name} cannot be scoped to the layer type {scope.layer}",
            ", ".join(definition.layers) or "no layer type",
            fix,
        )
    if (scope.layer, scope.phase) == ("lm_head", "prefill"):
        raise SpecError(place, "the LM head has no prefill phase: it runs on the last token of each sequence", "@lm_head", "drop the phase")
    if scope.phase is not None and not definition.phases:
        raise SpecError(place, f"{definition.name} cannot be scoped to a phase", "no phase", fix)
    if (scope.rows_from or scope.rows_to is not None) and not definition.rows:
        raise SpecError(place, f"{definition.name} cannot be scoped to rows", "no row bound", fix)
    return scope


def refuse_conflicts(settings: list[Setting], where: str) -> None:
    """Raise SpecError where two settings have one knob id."""
    seen: dict[str, Setting] = {}
    for setting in settings:
        if setting.knob in seen:
            raise SpecError(
                _at(where, setting.line),
                f"{setting.knob} is set twice (two spellings of one scope)",
                "each knob once",
                "remove one of them",
            )
        seen[setting.knob] = setting


def _at(where: str, line: int | None) -> str:
    return f"{where}:{line}" if line else where


def plain(value: Value | None) -> Any:
    """Return a knob's value as JSON has it, the content of tuned tables included."""
    if isinstance(value, TileTables):
        return value.to_document()
    return list(value) if isinstance(value, tuple) else value


def shown(value: Value | None) -> Any:
    """Return a knob's value for people: tuned tables by path and the start of their digest."""
    return str(value) if isinstance(value, TileTables) else plain(value)
