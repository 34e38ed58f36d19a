"""Files of a scenario: contents stated in it, traces, runs and evaluations are made, and every argument becomes a path or a name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gates.scenario.evaluations import make_evaluation
from gates.scenario.runs import make_run
from gates.scenario.scenario import Case, Document, Scenario
from gates.scenario.traffic import make_trace
from replay import documents
from replay.errors import SpecError
from replay.ingress.native import write_trace

PATHS = (
    "baseline", "candidate", "trace", "model", "hardware", "measurements", "policy", "owners", "archive", "reference", "quality_baseline",
    "quality_candidate",
)  # fmt: skip
"""Arguments that name files."""
_BARE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Workplace:
    """A folder in which the files of one scenario are made when an argument first names them."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder
        self._made: dict[str, Path] = {}

    def arguments(self, case: Case) -> dict[str, tuple[str, ...]]:
        """Return the arguments of a case by option, each a list of texts.

        Raises:
            InputError: a file cannot be made.
        """
        return {name: tuple(self._named(name, value) for value in _listed(given)) for name, given in case.gate.items()}

    def _named(self, option: str, value: Any) -> str:
        return self.path(str(value)) if option in PATHS else str(value)

    def path(self, name: str) -> str:
        """Return the path of what the scenario makes or holds under a name; other names (of the catalog) stay."""
        if name not in self._made:
            made = self._make(name)
            if made is None:
                beside = self._scenario.folder / name
                return str(beside) if beside.exists() else name
            self._made[name] = made
        return str(self._made[name])

    def _make(self, name: str) -> Path | None:
        scenario = self._scenario
        if name in scenario.files:
            path = self._folder / name
            _write(path, self._content(name))
            return path
        if name in scenario.traces:
            path = self._folder / f"{name}.parquet"
            write_trace(make_trace(name, scenario.traces[name]), path)
            return path
        if name in scenario.evaluations:
            return make_evaluation(name, scenario.evaluations[name], self._folder)
        return make_run(name, scenario.runs[name], self.path, self._folder) if name in scenario.runs else None

    def _content(self, name: str) -> Document:
        """Return a file's content, laid over that of the file or accelerator that ``of`` names."""
        stated = dict(self._scenario.files[name])
        below = stated.pop("of", None)
        if below is None:
            return stated
        return laid_over(self._content(below) if below in self._scenario.files else self._read(below), stated)

    def _read(self, name: str) -> Document:
        from replay.catalog.hardware import hardware_file, hardware_names

        if name in hardware_names():
            return documents.read_toml(hardware_file(name), "an accelerator description (TOML)")
        path = self._scenario.folder / name
        return documents.read_json_object(path, "JSON") if path.suffix == ".json" else documents.read_toml(path, "a file (TOML)")


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """Return a document with the values of another in place of its own, tables merged."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a document as TOML: values first, then its tables."""
    return "\n".join(_toml_lines(document, ())) + "\n"


def _toml_lines(table: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if place:
        yield f"[{'.'.join(map(_key, place))}]"
    yield from (f"{_key(key)} = {json.dumps(value)}" for key, value in table.items() if key not in inner)
    for key, value in inner.items():
        yield from _toml_lines(value, (*place, key))


def _key(name: str) -> str:
    return name if name and set(name) <= _BARE else json.dumps(name)


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _write(path: Path, content: Document) -> None:
    if path.suffix not in (".toml", ".json"):
        raise SpecError(path.name, f"a file of kind {path.suffix!r}", "a name that ends in .toml or .json", "rename it")
    documents.write_atomic(path, (toml_text(content) if path.suffix == ".toml" else documents.pretty_json(content)).encode())
