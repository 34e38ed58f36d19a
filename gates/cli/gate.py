"""`replay gate`: the main job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.gate_request import GateOptions, arm_sources, build_request, with_cells
from gates.cli.history import append_verdict, with_history
from gates.cli.inputs import chosen_out, current_project, measurements_option, project_folder, work_options
from gates.cli.measured_arms import is_measured, measured_request, without_measured_pair
from gates.cli.outcome import FORMATS, clear_outcome, render
from gates.cli.progress import note
from gates.cli.table_cache import cache_option, user_cache
from gates.project import DEFAULT_OUT, Project
from gates.verdict import FAIL_ON
from replay.errors import EvidenceError, InputError, SpecError, nearest

if TYPE_CHECKING:
    from gates.gate import GateResult
    from gates.measured_gate import MeasuredResult
    from gates.packet.signature import Signer
    from replay.pipeline import TableCache


@click.command("gate")
@click.option(
    "--baseline",
    multiple=True,
    metavar="B",
    help="Mapping file, git:REF, baseline bundle, run directory, or a measured result; repeat for repeated runs (default: the project's).",
)
@click.option("--candidate", multiple=True, metavar="C", help="The same for the candidate (default: the project's mapping).")
@work_options
@measurements_option
@cache_option
@click.option("--policy", metavar="FILE", help="Claims and margins (default: the project's, else the shipped policy).")
@click.option("--owners", metavar="FILE", help="Owners of knobs, layer types and stages (default: the project's, else CODEOWNERS).")
@click.option("--archive", metavar="DIR", help="Earlier measured runs of one configuration: how much runs differ (default: the project's).")
@click.option("--reference", metavar="TRACE", help="Recent traffic that the traces should represent (default: the project's).")
@click.option(
    "--selfcheck", type=click.Path(path_type=Path), metavar="FILE", help="Self-check that the verdict cites (`replay selfcheck`)."
)
@click.option("--quality-baseline", metavar="FILE|DIR", help="Evaluation of the baseline's answers (lm-eval, llama.cpp, tables of items).")
@click.option("--quality-candidate", metavar="FILE|DIR", help="The same of the candidate's.")
@click.option(
    "--as-of",
    metavar="TIME",
    help="ISO time that ages are counted from (default: the candidate commit's, else SOURCE_DATE_EPOCH, else now).",
)
@click.option(
    "--history", metavar="URL|PATH", help="Ledger that the verdict is appended to, and drift is judged by (default: the project's)."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for verdict.json, report.html, summary.md and evidence/."
)
@click.option("--packet", type=click.Path(path_type=Path), metavar="FILE.zip", help="Also write verdict and evidence as one zip.")
@click.option("--sign-key", type=click.Path(path_type=Path), metavar="FILE", help="Private key (Ed25519, PEM) to sign the verdict with.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What is printed.")
@click.option("--fail-on", metavar="LIST", default=",".join(FAIL_ON), show_default=True, help="Bases that exit non-zero.")
@click.option("--jobs", type=click.IntRange(min=1), help="Trace and accelerator pairs judged at once (default: the processors).")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    out: Path | None,
    packet: Path | None,
    sign_key: Path | None,
    form: str,
    fail_on: str,
    jobs: int | None,
    no_cache: bool,
    **given: Any,
) -> None:
    """Decide whether a mapping change may be released, from replays of recorded traces.

    Both mappings are replayed on every trace and accelerator; claims fixed beforehand are judged with paired statistics.
    Results that benchmarks and engines measured (vLLM, SGLang, AIPerf, GuideLLM, tables, ...) are judged as they are.
    Exit codes: 0 release; 10 regression, 20 inconclusive, 30 invalid evidence (all three: rollback); 2 usage.
    """
    from gates.packet.outcome import write_outcome
    from gates.packet.packet import folder_contents, zip_bytes
    from replay.documents import check_writable, write_atomic

    project, folder = _cleared(out)
    bases, sign = _bases(fail_on), _signer(sign_key)
    if packet is not None:
        check_writable(packet)
    options = GateOptions(**given, jobs=jobs or os.cpu_count() or 1)
    result = judged(options, project, user_cache(no_cache))
    document = write_outcome(result, folder, sign)
    if packet is not None:
        write_atomic(packet, zip_bytes(folder_contents(folder)))
    append_verdict(document, result.request, options.history, project)
    click.echo(render(document, form, out=folder, project=project_folder(project)), nl=False)
    ctx.exit(result.verdict.exit_code(bases))


def _signer(key: Path | None) -> Signer | None:
    if key is None:
        return None
    from gates.packet.signature import signer_of

    return signer_of(key)


def _cleared(out: Path | None) -> tuple[Project | None, Path]:
    """Return the project and the folder for the results, from which an earlier verdict is gone: whatever fails now leaves none."""
    if out is not None:
        clear_outcome(out)
        return current_project(), out
    try:
        project = current_project()
    except InputError:
        clear_outcome(Path(DEFAULT_OUT))  # the best guess where the project file that would say it cannot be read
        raise
    folder = chosen_out(None, project)
    clear_outcome(folder)
    return project, folder


def judged(options: GateOptions, project: Project | None, cache: TableCache | None) -> GateResult | MeasuredResult:
    """Return the gate's result; evidence that is gone, or of two kinds, gives a verdict too, the rollback that it is."""
    baseline, candidate = arm_sources(options, project)
    measured = [all(is_measured(source) for source in arm) for arm in (baseline, candidate)]
    if all(measured):
        from gates.measured_gate import gate_measured

        return gate_measured(with_history(measured_request(baseline, candidate, options, project), options.history, project), note)
    if any(measured):
        return without_measured_pair(baseline, candidate, options, project)
    request = with_history(build_request(options, project), options.history, project)

    from gates.gate import gate, without_evidence

    try:
        return gate(with_cells(request, options, project), note, cache=cache)
    except EvidenceError as error:
        click.echo(f"replay: {error}", err=True)
        return without_evidence(request, error)


def _bases(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = next((name for name in names if name not in FAIL_ON), None)
    if unknown is not None:
        raise SpecError(
            "--fail-on", f"unknown basis {unknown!r}{nearest(unknown, FAIL_ON)}", "a list of " + ", ".join(FAIL_ON), "correct the list"
        )
    return names
