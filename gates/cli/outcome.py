"""Output of `replay gate`: an old verdict goes first, so that none survives a gate that fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from gates.cli.commits import repository_prefix
from gates.packet.packet import EVIDENCE, PACKET, REPORT, SIGNATURE, SUMMARY, VERDICT
from replay import documents
from replay.errors import SpecError

Document = dict[str, Any]
FORMATS = ("text", "json", "markdown", "github", "junit", "sarif", "test-result")


def clear_outcome(folder: Path) -> None:
    """Remove the verdict of an earlier gate and what goes with it, so that none survives a gate that fails; check the place for new ones.

    Raises:
        SpecError: something else has their names, or the folder cannot be written to.
    """
    from gates.packet.evidence import check_place

    check_place(folder / EVIDENCE)
    if (folder / EVIDENCE).is_dir():
        shutil.rmtree(folder / EVIDENCE)
    own = ((VERDICT, _is_verdict), (PACKET, _is_index), (SIGNATURE, _is_envelope), (SUMMARY, _is_summary), (REPORT, is_report))
    for name, is_ours in own:
        path = folder / name
        documents.check_writable(path)
        if not os.path.lexists(path):
            continue
        if os.path.isdir(path) or not is_ours(path):
            raise SpecError(str(path), "something that no gate wrote", "a place for the verdict", "move it away, or choose another --out")
        try:
            path.unlink()
        except OSError as error:
            raise documents.not_writable(path, error) from error


def render(document: dict[str, Any], form: str, *, out: Path | None, project: Path) -> str:
    """Return a verdict document in one of FORMATS; `out` is where the files lie, if anywhere, `project` the project's folder."""
    if form == "json":
        return documents.pretty_json(document)
    if form == "markdown":
        from gates.render.markdown import render_markdown

        return render_markdown(document)
    if form == "github":
        from gates.render.github import render_github

        return render_github(document, prefix=repository_prefix(project))
    if form == "junit":
        from gates.render.junit import render_junit

        return render_junit(document)
    if form == "sarif":
        from gates.render.sarif import render_sarif

        return render_sarif(document, prefix=repository_prefix(project))
    if form == "test-result":
        from gates.render.attestation import render_test_result

        return render_test_result(document)
    from gates.render.text import render_text

    return render_text(document, folder=None if out is None else str(out))


def _is_verdict(path: Path) -> bool:
    from gates.statement import PREDICATE_TYPE

    try:
        found = documents.read_json_object(path, "a verdict").get("predicateType")
    except SpecError:
        return False
    return isinstance(found, str) and found.rpartition("/")[0] == PREDICATE_TYPE.rpartition("/")[0]


def _is_index(path: Path) -> bool:
    return _has_keys(path, {"schema_version", "environment", "traces", "files", "digest"})


def _is_envelope(path: Path) -> bool:
    return _has_keys(path, {"payload", "payloadType", "signatures"})


def _has_keys(path: Path, keys: set[str]) -> bool:
    try:
        return set(documents.read_json_object(path, "a file of a packet")) == keys
    except SpecError:
        return False


def is_report(path: Path) -> bool:
    """Return whether a file is a page of ours."""
    from gates.report.elements import BEGINS

    try:
        return documents.read_bytes(path, "a report").startswith(BEGINS)
    except SpecError:
        return False


def _is_summary(path: Path) -> bool:
    try:
        return documents.read_bytes(path, "a summary").startswith((b"## RELEASE - ", b"## ROLLBACK - "))
    except SpecError:
        return False
