"""What `--baseline` and `--candidate` can be: a mapping file, ``git:REF``, a baseline bundle or a run directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gates.cli.commits import GIT_PREFIX, Commit
from gates.request import RecordedCell
from replay import documents
from replay.catalog.hardware import hardware_from_document
from replay.documents import Document
from replay.errors import SpecError
from replay.ingress.model_config import model_from_document
from replay.names import NAME_RULE, is_safe_name
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.specs.model import ModelSpec
from replay.specs.tile_table import TableReader

_WHAT = "a mapping file (TOML)"
_WHAT_TABLE = "a tuned kernel table (JSON)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSource:
    """A mapping to replay, and what its source says about where it was replayed before."""

    mapping: MappingSpec
    label: str
    """How people name it: a path relative to the project, or ``git:REF``."""
    text: str | None = None
    """The mapping file's text, where there is one to patch."""
    path: Path | None = None
    model: ModelSpec | None = None
    cells: tuple[RecordedCell, ...] = ()
    """What a bundle or run directory was made on."""


def read_arm(source: str, *, role: str, folder: Path) -> ArmSource:
    """Return the arm that a mapping file, a baseline bundle or a run directory means; names are made relative to `folder`.

    Raises:
        SpecError: it is none of the known kinds, or cannot be read.
    """
    path = Path(source)
    if os.path.isdir(path):
        return _run_directory(path, folder)
    data = documents.read_bytes(path, f"a mapping file, git:REF, a baseline bundle or a run directory for --{role}")
    if data.lstrip().startswith(b"{"):
        return read_recorded_arm(path, folder)
    text, label = documents.decode(data, str(path), _WHAT), relative_name(path, folder)
    return ArmSource(mapping=parse_mapping(text, label, tables_beside(path)), label=label, text=text, path=path)


def tables_beside(mapping_path: Path) -> TableReader:
    """Return what reads the tuned tables that a mapping file names, relative to it."""

    def read(name: str) -> str:
        path = mapping_path.parent / name
        return documents.decode(documents.read_bytes(path, _WHAT_TABLE), str(path), _WHAT_TABLE)

    return read


def read_arm_at(commit: Commit, mapping_path: Path, folder: Path) -> ArmSource:
    """Return the arm that a mapping file was at a commit.

    Raises:
        SpecError: the commit has no such file, or it is no mapping.
    """
    name = relative_name(mapping_path, folder)
    label = commit.label(name)
    text = commit.text(mapping_path) if commit.holds(mapping_path) else None
    if text is None:
        raise SpecError(f"{GIT_PREFIX}{commit.ref}", f"it has no {name}", "a commit that has the file", "check the ref (`git log -- FILE`)")

    def read(table: str) -> str:
        content = commit.text(mapping_path.parent / table)
        if content is None:
            raise SpecError(label, f"it names the table {table}, which is not there", _WHAT_TABLE, "commit the table with the mapping")
        return content

    return ArmSource(mapping=parse_mapping(text, label, read), label=label, text=text, path=mapping_path)


def relative_name(path: Path, folder: Path) -> str:
    """Return how an artifact names a file: relative to the project, or its bare name where it lies outside."""
    absolute, root = path.resolve(), folder.resolve()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else absolute.name


def locator(path: Path, folder: Path) -> str:
    """Return where a trace lies as seen from the project, so that a checkout elsewhere finds it."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _run_directory(path: Path, folder: Path) -> ArmSource:
    """Return the arm of one run directory, or of the folder of run directories that one `replay run` wrote."""
    manifests = [path / "run.json"] if (path / "run.json").is_file() else sorted(path.glob("*/run.json"))
    if not manifests:
        raise SpecError(
            str(path), "a folder without run.json", "a run directory made by `replay run`", "name a mapping file or a run directory"
        )
    arms = [read_recorded_arm(manifest, folder) for manifest in manifests]
    first = arms[0]
    for arm, manifest in zip(arms, manifests, strict=True):
        if arm.mapping.digest != first.mapping.digest or arm.model != first.model:
            raise SpecError(
                str(manifest), "another mapping or model than its neighbours", "runs of one mapping", "name one of the run directories"
            )
    return replace(first, label=relative_name(path, folder), cells=tuple(cell for arm in arms for cell in arm.cells))


def read_recorded_arm(path: Path, folder: Path) -> ArmSource:
    """Return the arm of a bundle or run manifest; what it embeds passes the same checks as a file a person writes.

    Raises:
        SpecError: it is none, or something that it embeds cannot be used.
    """
    document = documents.read_json_object(path, "a baseline bundle or a run manifest")
    label = relative_name(path.parent if path.name == "run.json" else path, folder)
    documents.check(document, "baseline.v1", str(path))
    return ArmSource(
        mapping=MappingSpec.from_document(document["mapping"], label),
        label=label,
        model=model_from_document(document["model"], str(path)),
        cells=tuple(_cell(cell, str(path)) for cell in document["cells"]),
    )


def _cell(cell: Document, where: str) -> RecordedCell:
    trace = cell["trace"]
    if not is_safe_name(trace["name"]):
        raise SpecError(where, f"the trace name {trace['name'][:60]!a}", NAME_RULE, "make the bundle again")
    return RecordedCell(
        trace_name=trace["name"],
        trace_digest=trace["digest"],
        trace_kind=trace["kind"],
        trace_locator=trace["locator"],
        hardware=hardware_from_document(cell["hardware"], where),
    )
