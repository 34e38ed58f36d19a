"""Scenario: the arguments of a gate, what its verdict should say, and the same for near twins that must not be flagged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay import documents
from replay.errors import SpecError

Document = dict[str, Any]
FILE_NAME = "scenario.toml"
_WHAT = "a scenario (TOML)"
_MADE = ("files", "traces", "runs", "evaluations")
"""Tables whose entries are made under their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One gate of a scenario: the change itself, or a control."""

    name: str
    gate: Mapping[str, Any]
    """Arguments of `replay gate` by option."""
    expect: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a scenario folder describes."""

    path: Path
    about: str
    cases: tuple[Case, ...]
    """The change first, then its controls."""
    files: Mapping[str, Document]
    """Contents by file name, to be written before the gate; ``of`` names what one is laid over."""
    traces: Mapping[str, Document]
    """Recipes by the name of the trace."""
    runs: Mapping[str, Document]
    """Measured runs to make, by name."""
    evaluations: Mapping[str, Document]
    """Recipes of evaluations of answers, by name."""

    @property
    def folder(self) -> Path:
        """The folder that file names are relative to."""
        return self.path.parent


def find_scenarios(folder: Path) -> tuple[Path, ...]:
    """Return the scenario files in a folder and below it, sorted.

    Raises:
        SpecError: there is none.
    """
    found = tuple(sorted(folder.rglob(FILE_NAME)))
    if not found:
        raise SpecError(str(folder), f"no {FILE_NAME} in it or below it", "a folder of scenarios", "check the path")
    return found


def read_scenario(path: Path) -> Scenario:
    """Return the scenario of a file (schema `scenario.v1`).

    Raises:
        SpecError: it cannot be read or violates the schema.
    """
    text = documents.decode(documents.read_bytes(path, _WHAT), str(path), _WHAT)
    document = documents.parse_toml(text, str(path))
    documents.check(document, "scenario.v1", str(path), text)
    _check_names(document, str(path))
    cases = (Case(name=path.parent.name, gate=document["gate"], expect=document["expect"]), *_controls(document, path.parent.name))
    return Scenario(
        path=path,
        about=document["about"],
        cases=cases,
        files=document.get("files", {}),
        traces=document.get("traces", {}),
        runs=document.get("runs", {}),
        evaluations=document.get("evaluations", {}),
    )


def _check_names(document: Document, where: str) -> None:
    """Refuse a name that stands for two things: an argument could mean either."""
    counted = Counter(name for table in _MADE for name in document.get(table, {}))
    for name, count in counted.items():
        if count > 1:
            got = f"{name!a} stands in {' and '.join(table for table in _MADE if name in document.get(table, {}))}"
            raise SpecError(where, got, "each name once among files, traces, runs and evaluations", "rename one")


def _controls(document: Document, name: str) -> Iterator[Case]:
    """Yield the near twins: the change's own arguments but for those that a control names."""
    given = document.get("control", [])
    for index, control in enumerate(given if isinstance(given, list) else [given], start=1):
        gate = {**document["gate"], **control["gate"]}
        yield Case(name=f"{name} control {index}: {control['about']}", gate=gate, expect=control["expect"])
