"""`replay validate`: check files that people write, without replaying anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from replay import documents
from replay.documents import Document
from replay.errors import SpecError
from replay.ingress.onnx_file import is_onnx

KINDS = ("mapping", "policy", "owners", "hardware", "project", "model", "baseline", "verdict")


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(KINDS), help="What the files are (default: told from the content).")
@click.option("--knobs", is_flag=True, help="Also list every knob a mapping can set.")
def command(files: tuple[Path, ...], kind: str | None, knobs: bool) -> None:
    """Check mapping, policy, owners, hardware, project, model, baseline and verdict files; the first fault stops with exit code 2.

    Traces are described by `replay trace info`.
    """
    for path in files:
        found = kind or _recognise(path)
        _CHECKS[found](path)
        click.echo(f"{path}: a valid {found} file")
    if knobs:
        _list_knobs()


def _recognise(path: Path) -> str:
    """Return the kind of a document by its content."""
    what = "a mapping, policy, owners, hardware, project, model, baseline or verdict file"
    if is_onnx(path):
        raise SpecError(str(path), "an ONNX model", what, "print its costs with `replay map --model`")
    data = documents.read_bytes(path, what)
    text = documents.decode(data, str(path), what)
    if data.lstrip().startswith((b"{", b"[")) and path.suffix != ".toml":
        return _recognise_json(documents.parse_json(text, str(path)), path)
    document = documents.parse_toml(text, str(path))
    if path.name in ("replay.toml", "pyproject.toml"):
        return "project"
    marks = (
        ("hardware", "units_count"),
        ("hardware", "matrix_flops_per_s"),
        ("owners", "rules"),
        ("policy", "alpha"),
    )
    for found, mark in marks:
        if mark in document:
            return found
    return "mapping" if "name" in document else "policy"


def _recognise_json(document: object, path: Path) -> str:
    marks = (("verdict", "predicateType"), ("baseline", "cells"), ("model", "model_type"), ("model", "hidden_size"))
    for found, mark in marks:
        if isinstance(document, dict) and mark in document:
            return found
    raise SpecError(str(path), "a JSON document of no known kind", "a model, baseline or verdict file", "name the kind with --kind")


def _mapping(path: Path) -> None:
    from gates.cli.arms import tables_beside
    from replay.specs.mapping import parse_mapping

    what = "a mapping file (TOML)"
    parse_mapping(documents.decode(documents.read_bytes(path, what), str(path), what), str(path), tables_beside(path))


def _policy(path: Path) -> None:
    from gates.policy import read_policy

    read_policy(path)


def _owners(path: Path) -> None:
    from gates.owners import read_owners

    for warning in read_owners(path).warnings:
        click.echo(f"{path}: {warning}", err=True)


def _hardware(path: Path) -> None:
    from replay.catalog.hardware import read_hardware

    read_hardware(path)


def _project(path: Path) -> None:
    from gates.project import read_project

    read_project(path)


def _model(path: Path) -> None:
    from replay.ingress.model_config import read_model

    read_model(str(path))


def _baseline(path: Path) -> None:
    from gates.cli.arms import read_recorded_arm

    read_recorded_arm(path, path.parent)


def _against_schema(schema: str) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        document: Document = documents.read_json_object(path, "a JSON document")
        documents.check(document, schema, str(path))

    return check


_CHECKS: dict[str, Callable[[Path], None]] = {
    "mapping": _mapping,
    "policy": _policy,
    "owners": _owners,
    "hardware": _hardware,
    "project": _project,
    "model": _model,
    "baseline": _baseline,
    "verdict": _against_schema("verdict.v1"),
}


def _list_knobs() -> None:
    from replay.specs.knobs import KNOBS

    for knob in KNOBS.values():
        click.echo(f"{knob.name:<32} {knob.values:<24} {knob.stage:<10} revert: {knob.revert_cost:<11} {knob.meaning}")
