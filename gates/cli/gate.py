"""`replay gate`: the main job."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.arms import repository_prefix
from gates.cli.gate_request import GateOptions, build_request
from gates.cli.inputs import current_project, project_folder, work_options
from gates.cli.progress import note
from replay.errors import SpecError, nearest

if TYPE_CHECKING:
    from gates.gate import GateResult

FORMATS = ("text", "json", "markdown", "github", "junit")
BASES = ("regression", "inconclusive", "invalid_evidence")


def _bases(_ctx: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = next((name for name in names if name not in BASES), None)
    if unknown is not None:
        raise SpecError(
            "--fail-on", f"unknown basis {unknown!r}{nearest(unknown, BASES)}", "a list of " + ", ".join(BASES), "correct the list"
        )
    return names


@click.command("gate")
@click.option("--baseline", metavar="B", help="Mapping file, git:REF, baseline bundle or run directory (default: the project's).")
@click.option("--candidate", metavar="C", help="The same for the candidate (default: the project's mapping).")
@work_options
@click.option("--policy", metavar="FILE", help="Claims and margins (default: the project's, else the shipped policy).")
@click.option("--owners", metavar="FILE", help="Owners of knobs, layer types and stages (default: the project's, else CODEOWNERS).")
@click.option(
    "--as-of",
    metavar="TIME",
    help="ISO time that ages are counted from (default: the candidate commit's, else SOURCE_DATE_EPOCH, else now).",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for verdict.json, summary.md and evidence/.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What is printed.")
@click.option(
    "--fail-on", "fail_on", metavar="LIST", default=",".join(BASES), show_default=True, callback=_bases, help="Bases that exit non-zero."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Trace and accelerator pairs judged at once (default: the processors).")
@click.pass_context
def command(ctx: click.Context, /, out: Path | None, form: str, fail_on: tuple[str, ...], jobs: int | None, **given: Any) -> None:
    """Decide whether a mapping change may be released, from replays of recorded traces.

    Both mappings are replayed on every trace and accelerator; claims fixed beforehand are judged with paired statistics.
    Exit codes: 0 release; 10 regression, 20 inconclusive, 30 invalid evidence (all three: rollback); 2 usage.
    """
    project = current_project()
    request = build_request(GateOptions(**given, jobs=jobs or os.cpu_count() or 1), project)

    from gates.gate import gate

    result = gate(request, note)
    folder = out or (project.path_of(project.out) if project else Path("replay-out"))
    document = _write(result, folder)
    click.echo(_render(document, form, folder), nl=False)
    ctx.exit(result.verdict.exit_code(fail_on))


def _write(result: GateResult, folder: Path) -> dict[str, Any]:
    """Write evidence first and the verdict last, each whole; return the verdict document."""
    from gates.packet import write_packet
    from gates.render.markdown import render_markdown
    from gates.statement import to_document
    from replay.documents import check, write_atomic, write_json

    evidence = write_packet(result, folder / "evidence")
    document = to_document(
        result.verdict,
        plan=result.plan,
        inputs=result.inputs,
        tool_version=version("replay-gate"),
        evidence=evidence,
        fidelity=_fidelity(result),
    )
    check(document, "verdict.v1", "verdict.json")
    write_atomic(folder / "summary.md", render_markdown(document).encode())
    write_json(folder / "verdict.json", document)
    return document


def _fidelity(result: GateResult) -> dict[str, Any]:
    """Return where the hardware model's parameters come from; the weakest source of all accelerators stands for all."""
    sources = {cell.replayer.hardware.name: cell.replayer.hardware.calibration for cell in result.cells}
    weakest = "datasheet" if "datasheet" in sources.values() else "calibrated"
    return {"calibration": weakest, "by_hardware": sources}


def _render(document: dict[str, Any], form: str, folder: Path) -> str:
    from replay.documents import pretty_json

    if form == "json":
        return pretty_json(document)
    if form == "markdown":
        from gates.render.markdown import render_markdown

        return render_markdown(document)
    if form == "github":
        from gates.render.github import render_github

        return render_github(document, prefix=repository_prefix(project_folder(current_project())))
    if form == "junit":
        from gates.render.junit import render_junit

        return render_junit(document)
    from gates.render.text import render_text

    return render_text(document, folder=str(folder))
