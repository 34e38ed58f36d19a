"""`replay history`: what a ledger of verdicts shows; and what `replay gate` reads from it and appends to it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gates.cli.arms import read_arm_at, relative_name
from gates.cli.commits import GIT_PREFIX, commit_time, open_commit
from gates.cli.inputs import chosen, chosen_seed, current_project, project_folder
from gates.cli.times import moment
from gates.project import Project
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.history.ledger import Ledger
    from gates.policy import DriftBudget
    from gates.request import GateRequest, MeasuredRequest

Request = TypeVar("Request", "GateRequest", "MeasuredRequest")


@click.command("history")
@click.argument("place", metavar="[URL|PATH]", required=False)
@click.option("--trace", "traces", multiple=True, metavar="NAME", help="Only this trace; repeat for several.")
@click.option("--hardware", multiple=True, metavar="NAME", help="Only this accelerator; repeat for several.")
@click.option("--claim", "claims", multiple=True, metavar="KEY", help="Only this claim, such as ttft_s.p99; repeat for several.")
@click.option("--policy", metavar="FILE", help="Policy whose [drift] says budget and anchor (default: the project's).")
@click.option("--as-of", metavar="TIME", help="ISO time that ages are counted to (default: SOURCE_DATE_EPOCH, else now).")
@click.option("--format", "form", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
def command(place: str | None, policy: str | None, as_of: str | None, form: str, **names: tuple[str, ...]) -> None:
    """Show the trend of every claim over releases, change points, drift since the anchor, ages and the share of rollbacks.

    The history is what `replay gate --history` appends to: an SQLite file, or a database by its SQLAlchemy URL.
    """
    from gates.history.chain import History
    from gates.history.report import Question, history_report
    from gates.render.history import render_history
    from replay.documents import pretty_json

    project = current_project()
    ledger = _ledger(place, project)
    if ledger is None:
        raise SpecError("the command line", "no history is named", "a path or URL, or `history` in a project file", "name one")
    if not ledger.is_url and not os.path.isfile(ledger.place):
        raise SpecError(ledger.label, "there is no such file", "a history (SQLite)", "make it with `replay gate --history PATH`")
    verdicts, rows = ledger.read()
    budget = _budget(policy, project)
    path = chosen(None, project.mapping if project else None, project)
    question = Question(
        as_of=moment(as_of),
        budget=budget,
        anchor=None if budget is None else _anchor(budget, path),
        seed=chosen_seed(None, project),
        **names,
    )
    report = history_report(History(verdicts=verdicts, claims=rows), question)
    if form == "html":
        from gates.report.history import render_history_page

        click.echo(render_history_page(report).decode(), nl=False)
        return
    click.echo(pretty_json(report) if form == "json" else render_history(report), nl=False)


def with_history(request: Request, place: str | None, project: Project | None) -> Request:
    """Return the request with the history that its policy's budget for drift is judged by; one that cannot be read invalidates.

    Raises:
        SpecError: the policy's anchor cannot be found.
    """
    from gates.checks.drift import HistoryInput
    from gates.history.chain import History

    budget, ledger = request.policy.drift, _ledger(place, project)
    if budget is None or ledger is None:
        return request
    path = _mapping_path(request, project)
    anchor = _anchor(budget, path)
    folder = project_folder(project)
    name = ledger.label if ledger.is_url else relative_name(Path(ledger.place), folder)
    try:
        verdicts, claims = ledger.read()
    except SpecError as error:
        return replace(request, history=HistoryInput(name=name, problem=error.got, anchor=anchor))
    return replace(request, history=HistoryInput(name=name, history=History(verdicts=verdicts, claims=claims), anchor=anchor))


def append_verdict(document: dict[str, Any], request: GateRequest | MeasuredRequest, place: str | None, project: Project | None) -> None:
    """Append a verdict to the history, where there is one; what keeps it from that is said on stderr and changes no exit code."""
    from gates.history.rows import rows_of

    ledger = _ledger(place, project)
    if ledger is None:
        return
    path = _mapping_path(request, project)
    now = datetime.now(UTC).isoformat()
    verdict, claims = rows_of(document, appended_at=now, committed_at=commit_time(path) if path is not None else None)
    try:
        ledger.append(verdict, claims)
    except SpecError as error:
        click.echo(f"replay: the verdict is not in the history: {error}", err=True)


def _ledger(place: str | None, project: Project | None) -> Ledger | None:
    from gates.history.ledger import Ledger

    if place is not None:
        return Ledger(place=place)
    if project is None or project.history is None:
        return None
    return Ledger(place=project.history if "://" in project.history else str(project.path_of(project.history)))


def _mapping_path(request: GateRequest | MeasuredRequest, project: Project | None) -> Path | None:
    """Return the candidate's mapping file, where it is one."""
    from gates.request import GateRequest

    file = request.candidate.file if isinstance(request, GateRequest) else None
    return None if file is None else project_folder(project) / file


def _anchor(budget: DriftBudget, mapping: Path | None) -> str | None:
    """Return the identity that the policy's anchor names: a digest as it is, ``git:REF`` by the mapping at that commit."""
    if budget.anchor is None or not budget.anchor.startswith(GIT_PREFIX):
        return budget.anchor
    if mapping is None:
        got = f"drift.anchor is {budget.anchor} and no mapping file says what to read there"
        raise SpecError("the policy", got, "the digest of a mapping", "write the digest (`replay history --format json`)")
    return read_arm_at(open_commit(mapping.parent, budget.anchor), mapping, mapping.parent).mapping.digest


def _budget(option: str | None, project: Project | None) -> DriftBudget | None:
    from gates.policy import read_policy

    path = chosen(option, project.policy if project else None, project)
    return None if path is None else read_policy(path).drift
