"""What `--baseline` and `--candidate` can be: a mapping file, ``git:REF``, a baseline bundle or a run directory."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from replay import documents
from replay.documents import Document
from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.specs.model import ModelSpec

_WHAT = "a mapping file (TOML)"
GIT_PREFIX = "git:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One (trace, accelerator) that a bundle or run directory was made on."""

    trace_name: str
    trace_digest: str
    trace_locator: str
    hardware: HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A mapping to replay, and what its source says about where it was replayed before."""

    mapping: MappingSpec
    label: str
    """How people name it: a path relative to the project, or ``git:REF``."""
    text: str | None = None
    """The mapping file's text, where there is one to patch."""
    path: Path | None = None
    model: ModelSpec | None = None
    cells: tuple[RecordedCell, ...] = ()


def read_arm(source: str, *, role: str, mapping_path: Path | None, folder: Path) -> Arm:
    """Return the arm that a ``--baseline`` or ``--candidate`` text means.

    `mapping_path` is the mapping file whose older version ``git:REF`` means; names are made relative to `folder`.

    Raises:
        SpecError: it is none of the known kinds, or cannot be read.
    """
    if source.startswith(GIT_PREFIX):
        if mapping_path is None:
            raise SpecError(
                f"--{role}",
                f"{source} names a commit but no mapping file",
                "the file whose version is meant",
                "set `mapping` in replay.toml",
            )
        text = read_at_commit(mapping_path, source.removeprefix(GIT_PREFIX))
        label = f"{source}:{relative_name(mapping_path, folder)}"
        return Arm(mapping=parse_mapping(text, label), label=label, text=text, path=mapping_path)
    path = Path(source)
    if path.is_dir():
        return _recorded_arm(path / "run.json", folder, f"{source}: a folder without run.json")
    data = documents.read_bytes(path, f"a mapping file, git:REF, a baseline bundle or a run directory for --{role}")
    if data.lstrip().startswith(b"{"):
        return _recorded_arm(path, folder, None)
    text = documents.decode(data, str(path), _WHAT)
    return Arm(mapping=parse_mapping(text, relative_name(path, folder)), label=relative_name(path, folder), text=text, path=path)


def read_at_commit(path: Path, ref: str) -> str:
    """Return a file's text at a commit, without touching the work tree.

    Raises:
        SpecError: git is missing, the folder is no repository, or the commit or the file at it does not exist.
    """
    folder = path.resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "show", f"{ref}:./{path.name}"], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        where = f"{GIT_PREFIX}{ref}"
        raise SpecError(where, "git is not installed or the folder is gone", "git", "install git, or name a mapping file") from error
    if found.returncode:
        reason = found.stderr.decode(errors="replace").strip().splitlines()
        detail = reason[0].removeprefix("fatal: ") if reason else "git failed"
        raise SpecError(f"{GIT_PREFIX}{ref}", f"{path.name}: {detail}", "a commit that has the file", "check the ref (`git log -- FILE`)")
    return documents.decode(found.stdout, f"{GIT_PREFIX}{ref}:{path.name}", _WHAT)


def relative_name(path: Path, folder: Path) -> str:
    """Return how an artifact names a file: relative to the project, or its bare name where it lies outside."""
    absolute, root = path.resolve(), folder.resolve()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else absolute.name


def locator(path: Path, folder: Path) -> str:
    """Return where a trace lies as seen from the project, so that a checkout elsewhere finds it."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _recorded_arm(path: Path, folder: Path, missing: str | None) -> Arm:
    if missing is not None and not path.is_file():
        raise SpecError(
            missing.split(":", 1)[0],
            missing.split(": ", 1)[1],
            "a run directory made by `replay run`",
            "name a mapping file or a run directory",
        )
    document = documents.read_json_object(path, "a baseline bundle or a run manifest")
    label = relative_name(path.parent if path.name == "run.json" else path, folder)
    documents.check(document, "baseline.v1", label)
    return Arm(
        mapping=MappingSpec.from_document(document["mapping"], label),
        label=label,
        model=ModelSpec.from_document(document["model"]),
        cells=tuple(_cell(cell) for cell in document["cells"]),
    )


def _cell(cell: Document) -> RecordedCell:
    trace = cell["trace"]
    return RecordedCell(
        trace_name=trace["name"],
        trace_digest=trace["digest"],
        trace_locator=trace["locator"],
        hardware=HardwareSpec.from_document(cell["hardware"]),
    )
