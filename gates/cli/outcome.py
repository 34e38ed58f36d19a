"""Files and output of `replay gate`: an old verdict goes first, evidence is written before the new one, each whole."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.cli.commits import repository_prefix
from replay import documents
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.gate import GateResult
    from gates.measured_gate import MeasuredResult

Document = dict[str, Any]
FORMATS = ("text", "json", "markdown", "github", "junit")
VERDICT, SUMMARY, EVIDENCE = "verdict.json", "summary.md", "evidence"


def clear_outcome(folder: Path) -> None:
    """Remove the verdict and summary of an earlier gate, so that none survives a gate that fails; check that new ones can be written.

    Raises:
        SpecError: something else has their names, or the folder cannot be written to.
    """
    from gates.evidence import check_place

    check_place(folder / EVIDENCE)
    for name, is_ours in ((VERDICT, _is_verdict), (SUMMARY, _is_summary)):
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


def write_outcome(result: GateResult | MeasuredResult, folder: Path) -> dict[str, Any]:
    """Write evidence first and the verdict last, each whole; return the verdict document.

    Where nothing could be replayed there is no evidence to write.
    """
    from gates.render.markdown import render_markdown
    from gates.statement import to_document

    evidence, fidelity = _parts(result, folder / EVIDENCE)
    document = to_document(
        result.verdict,
        plan=result.plan,
        inputs=result.inputs,
        tool_version=version("replay-gate"),
        evidence=evidence,
        fidelity=fidelity,
    )
    documents.check(document, "verdict.v1", VERDICT)
    documents.write_atomic(folder / SUMMARY, render_markdown(document).encode())
    documents.write_json(folder / VERDICT, document)
    return document


def _parts(result: GateResult | MeasuredResult, folder: Path) -> tuple[Document | None, Document | None]:
    """Write the evidence, where there is any, and return its record and how far the hardware model is trusted (measured runs need none)."""
    from gates.gate import GateResult

    if not result.cells:
        return None, None
    if isinstance(result, GateResult):
        from gates.packet import write_packet

        return write_packet(result, folder), _fidelity(result)
    from gates.measured_packet import write_measured_packet

    return write_measured_packet(result, folder), None


def render(document: dict[str, Any], form: str, *, out: Path, project: Path) -> str:
    """Return a verdict document in one of FORMATS; `out` is where the files lie, `project` the project's folder."""
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
    from gates.render.text import render_text

    return render_text(document, folder=str(out))


def _is_verdict(path: Path) -> bool:
    from gates.statement import PREDICATE_TYPE

    try:
        found = documents.read_json_object(path, "a verdict").get("predicateType")
    except SpecError:
        return False
    return isinstance(found, str) and found.rpartition("/")[0] == PREDICATE_TYPE.rpartition("/")[0]


def _is_summary(path: Path) -> bool:
    try:
        return documents.read_bytes(path, "a summary").startswith((b"## RELEASE - ", b"## ROLLBACK - "))
    except SpecError:
        return False


def _fidelity(result: GateResult) -> dict[str, Any]:
    """Return how the kernels' costs are known, by accelerator and for all: what holds for most of the candidate's device time.

    The weakest accelerator stands for all.
    """
    from replay.pipeline import trusted_source
    from replay.tiling.library import SOURCES

    sources: dict[str, str] = {}
    for cell in result.cells:
        found = trusted_source(cell.replayer, result.request.candidate.mapping)
        sources[cell.replayer.hardware.name] = max(found, sources.get(cell.replayer.hardware.name, found), key=SOURCES.index)
    return {"calibration": max(sources.values(), key=SOURCES.index), "by_hardware": sources}
