"""What `--baseline` and `--candidate` can be: a mapping file, ``git:REF``, a baseline bundle or a run directory."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
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


def read_arm(source: str, *, role: str, mapping_path: Path | None, folder: Path) -> ArmSource:
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
        ref = source.removeprefix(GIT_PREFIX)
        if not ref or ref.startswith("-"):
            raise SpecError(f"--{role}", f"{source} names no commit", "git:REF, such as git:main", "correct the ref")
        text = read_at_commit(mapping_path, ref)
        label = f"{source}:{relative_name(mapping_path, folder)}"
        return ArmSource(mapping=parse_mapping(text, label), label=label, text=text, path=mapping_path)
    path = Path(source)
    if path.is_dir():
        return _run_directory(path, folder)
    data = documents.read_bytes(path, f"a mapping file, git:REF, a baseline bundle or a run directory for --{role}")
    if data.lstrip().startswith(b"{"):
        return _recorded_arm(path, folder)
    text = documents.decode(data, str(path), _WHAT)
    return ArmSource(mapping=parse_mapping(text, relative_name(path, folder)), label=relative_name(path, folder), text=text, path=path)


def read_at_commit(path: Path, ref: str) -> str:
    """Return a file's text at a commit, without touching the work tree.

    Raises:
        SpecError: git is missing, the folder is no repository, or the commit or the file at it does not exist.
    """
    code, out, message = _git(path, "show", f"{ref}:./{path.name}")
    if code:
        raise SpecError(f"{GIT_PREFIX}{ref}", f"{path.name}: {message}", "a commit that has the file", "check the ref (`git log -- FILE`)")
    return documents.decode(out, f"{GIT_PREFIX}{ref}:{path.name}", _WHAT)


def at_commit(path: Path, ref: str) -> str | None:
    """Return a file's text at a commit, or None where the commit does not have the file.

    Raises:
        SpecError: the commit does not exist.
    """
    code, _, message = _git(path, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if code:
        raise SpecError(f"{GIT_PREFIX}{ref}", message or "no such commit", "a commit", "check the ref (`git log`)")
    code, _, _ = _git(path, "cat-file", "-e", f"{ref}:./{path.name}")
    return None if code else read_at_commit(path, ref)


def commit_time(path: Path) -> str | None:
    """Return the ISO time of the commit that a file stands at, or None where it is not committed as it is."""
    changed, _, _ = _git(path, "diff", "--quiet", "HEAD", "--", path.name)
    code, out, _ = _git(path, "log", "-1", "--format=%cI", "--", path.name)
    return out.decode().strip() or None if code == 0 and changed == 0 else None


def repository_prefix(folder: Path) -> str:
    """Return a folder's place in its git repository (``traces/demo/``), empty at the top and outside of any."""
    code, out, _ = _git(folder / "any", "rev-parse", "--show-prefix")
    return out.decode().strip() if code == 0 else ""


def _git(path: Path, *arguments: str) -> tuple[int, bytes, str]:
    """Run git in a file's folder; return exit code, output and the first line of what it complained about."""
    folder = path.resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise SpecError("git", "it is not installed", "git", "install it, or name a mapping file instead of a commit") from error
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, done.stdout, lines[0].removeprefix("fatal: ") if lines else ""


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
    arms = [_recorded_arm(manifest, folder) for manifest in manifests]
    first = arms[0]
    for arm, manifest in zip(arms, manifests, strict=True):
        if arm.mapping.digest != first.mapping.digest or arm.model != first.model:
            raise SpecError(
                str(manifest), "another mapping or model than its neighbours", "runs of one mapping", "name one of the run directories"
            )
    return replace(first, label=relative_name(path, folder), cells=tuple(cell for arm in arms for cell in arm.cells))


def _recorded_arm(path: Path, folder: Path) -> ArmSource:
    document = documents.read_json_object(path, "a baseline bundle or a run manifest")
    label = relative_name(path.parent if path.name == "run.json" else path, folder)
    documents.check(document, "baseline.v1", str(path))
    return ArmSource(
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
