"""The project file: `replay.toml`, or ``[tool.replay]`` of `pyproject.toml`, nearest upwards; what the command line leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from replay import documents
from replay.documents import Document
from replay.errors import SpecError

DEFAULT_OUT = "replay-out"
DEFAULT_SEED = 0
_WHAT = "a project file (TOML)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project file as written: texts are not resolved, because some are catalog names or ``git:REF``; `path_of` resolves paths."""

    path: Path
    """The project file."""
    model: str | None = None
    hardware: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    baseline: str | None = None
    mapping: str | None = None
    """The candidate where the command line names none."""
    policy: str | None = None
    owners: str | None = None
    archive: str | None = None
    """Folder of earlier measured runs of one configuration."""
    selfcheck: str | None = None
    history: str | None = None
    """Ledger of verdicts: a path, or an SQLAlchemy URL."""
    reference: str | None = None
    """Trace of recent traffic that the traces are compared with."""
    out: str = DEFAULT_OUT
    seed: int = DEFAULT_SEED

    @property
    def folder(self) -> Path:
        """Folder that the file's paths are relative to."""
        return self.path.parent

    def path_of(self, text: str) -> Path:
        """Return the path that a text of this file means: relative to its folder unless absolute."""
        return self.folder / text


def find_project(start: Path) -> Project | None:
    """Return the nearest project at or above a folder, or None.

    In each folder `replay.toml` comes first, then a `pyproject.toml` that has a table ``[tool.replay]``.

    Raises:
        SpecError: the nearest one cannot be used.
    """
    start = start.resolve()
    return next((project for folder in (start, *start.parents) if (project := project_in(folder, _text_of_file))), None)


def project_in(folder: Path, read: Callable[[Path], str | None]) -> Project | None:
    """Return the project file of one folder, or None; `read` returns a file's text, or None where there is no such file.

    Raises:
        SpecError: it cannot be used.
    """
    path = folder / "replay.toml"
    text = read(path)
    if text is not None:
        return _project(documents.parse_toml(text, str(path)), path, str(path), text)
    pyproject = folder / "pyproject.toml"
    text = read(pyproject)
    table = None if text is None else _tool_table(text, pyproject)
    return None if table is None else _project(table, pyproject, f"{pyproject} [tool.replay]", None)


def read_project(path: Path) -> Project:
    """Return the project of a file: `replay.toml`, or a `pyproject.toml` with a table ``[tool.replay]``.

    Raises:
        SpecError: it cannot be read, is not TOML, has an unknown key or a value of the wrong kind.
    """
    text = documents.decode(documents.read_bytes(path, _WHAT), str(path), _WHAT)
    if path.name == "pyproject.toml":
        table = _tool_table(text, path)
        if table is None:
            raise SpecError(str(path), "it has no table [tool.replay]", _WHAT, "add the table, or name a replay.toml")
        return _project(table, path, f"{path} [tool.replay]", None)
    return _project(documents.parse_toml(text, str(path)), path, str(path), text)


def _text_of_file(path: Path) -> str | None:
    return documents.decode(documents.read_bytes(path, _WHAT), str(path), _WHAT) if path.is_file() else None


def _tool_table(text: str, pyproject: Path) -> Document | None:
    tools = documents.parse_toml(text, str(pyproject)).get("tool", {})
    if not isinstance(tools, dict) or "replay" not in tools:
        return None
    table = tools["replay"]
    if not isinstance(table, dict):
        raise SpecError(str(pyproject), f"tool.replay is {table!r}", "a table", "write [tool.replay] and its keys below it")
    return table


def _project(document: Document, path: Path, where: str, text: str | None) -> Project:
    documents.check(document, "project.v1", where, text)
    for key in ("hardware", "traces"):
        if key in document:
            value = document[key]
            document[key] = (value,) if isinstance(value, str) else tuple(value)
    return Project(path=path, **document)
