"""`replay selfcheck`: the gate's own error rates on a trace and a policy."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.inputs import (
    chosen,
    chosen_mapping,
    chosen_model,
    chosen_seed,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    work_options,
)
from gates.cli.progress import note
from gates.cli.table_cache import cache_option, user_cache
from gates.cli.times import moment
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.plan import CellSpec
    from gates.selfcheck.check import Selfcheck


@click.command("selfcheck")
@click.option("--mapping", metavar="FILE", help="Mapping in service (default: the project's).")
@work_options
@measurements_option
@cache_option
@click.option("--policy", metavar="FILE", help="Claims and margins (default: the project's, else the shipped policy).")
@click.option("--full", is_flag=True, help="1,000 draws of the traffic in place of 300.")
@click.option(
    "--step-error",
    "step_error_ratio",
    type=click.FloatRange(min=0.0, max=0.5),
    default=0.0,
    show_default=True,
    help="What is not known of changed kernels, as a share of the step's time (0: they were measured).",
)
@click.option("--as-of", metavar="TIME", help="ISO time that it is made at (default: SOURCE_DATE_EPOCH, else now).")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File for the record that `replay gate --selfcheck` cites.")
@click.option("--jobs", type=click.IntRange(min=1), help="Replays at once (default: the processors).")
@click.option(
    "--run", "runs", multiple=True, metavar="RESULT", help="Measured result: gate random halves of it against each other instead."
)
@click.option("--splits", type=click.IntRange(min=1), default=200, show_default=True, help="Of each measured result.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(out: Path | None, form: str, jobs: int | None, no_cache: bool, runs: tuple[str, ...], splits: int, **given: Any) -> None:
    """Measure how often the gate is wrong on a trace: unchanged mappings rolled back, and known worsenings released or missed.

    Each draw of the trace's traffic stands for the recorded trace once. Worsenings of 1, 3, 5 and 10 % and of the margin: of every
    latency, of the tail, of one prompt bin, and of kernels, through the queue.

    Of a measured result (--run): how often the gate rolls back one random half of its requests against the other.
    """
    from replay import documents

    if runs:
        if out is not None or given["mapping"] is not None:
            raise SpecError("--run", "a mapping or --out beside it", "a result and a policy", "leave the others out")
        _tell_splits(runs, splits, form, given)
        return
    document = _document(jobs or os.cpu_count() or 1, no_cache, given)
    documents.check(document, "selfcheck.v1", "the self-check")
    if out is not None:
        documents.write_json(out, document)
    click.echo(documents.pretty_json(document) if form == "json" else _text(document), nl=form == "text")


def _document(jobs: int, no_cache: bool, given: dict[str, Any]) -> dict[str, Any]:
    from gates.plan import cell_of, make_plan
    from gates.policy import default_policy, read_policy
    from gates.selfcheck.check import FULL_DRAWS, QUICK_DRAWS, selfcheck
    from gates.selfcheck.document import to_document
    from replay.pipeline import Replayer

    project = current_project()
    arm = chosen_mapping(given["mapping"], project)
    model = chosen_model(given["model"], arm, project)
    path = chosen(given["policy"], project.policy if project else None, project)
    policy = read_policy(path) if path is not None else default_policy()
    seed, as_of = chosen_seed(given["seed"], project), moment(given["as_of"])
    devices = load_hardware(given["hardware"], project, given["measurements"])
    cells: list[tuple[CellSpec, Selfcheck]] = []
    for trace, _ in load_traces(given["traces"], project):
        for device in devices:
            replayer = Replayer(trace=trace, model=model, hardware=device, seed=seed, cache=user_cache(no_cache))
            note(f"checking the gate on {trace.name}, {device.name}")
            spec = cell_of(
                replayer.run(arm.mapping), trace_kind=trace.provenance.kind, hardware_digest=device.digest, model_digest=model.digest
            )
            found = selfcheck(
                make_plan(policy, [spec], seed).cells[0],
                replayer,
                arm.mapping,
                draws=FULL_DRAWS if given["full"] else QUICK_DRAWS,
                jobs=jobs,
                step_error_ratio=given["step_error_ratio"],
                say=_say,
            )
            cells.append((spec, found))
    return to_document(cells, policy, seed=seed, as_of=as_of, tool_version=version("replay-gate"))


def _tell_splits(runs: tuple[str, ...], splits: int, form: str, given: dict[str, Any]) -> None:
    """Print how often the gate decides what on random halves of measured results."""
    from gates.cli.gate_request import GateOptions
    from gates.cli.measured_arms import measured_request
    from gates.selfcheck.splits import split_rates
    from replay import documents

    shared = {name: given[name] for name in ("traces", "model", "hardware", "measurements", "policy", "as_of", "seed")}
    options = GateOptions(baseline=runs, candidate=runs, owners=None, archive=None, jobs=1, **shared)
    request = measured_request(runs, runs, options, current_project())
    found = [rates.to_document() for rates in split_rates(request, splits, lambda done, total: _say(done, total, "pairs of halves gated"))]
    if form == "json":
        click.echo(documents.pretty_json({"runs": found}), nl=False)
        return
    for one in found:
        click.echo(f"{one['run']}: {one['splits']} splits into halves of its requests, between which nothing changed")
        for basis, share in one["shares"].items():
            click.echo(f"  {basis:<17} {_share(share):>20}")


def _say(done: int, total: int, what: str = "draws replayed") -> None:
    if done % 50 == 0 or done == total:
        note(f"{done} of {total} {what}")


def _text(document: dict[str, Any]) -> str:
    lines = []
    for cell in document["cells"]:
        lines += [
            f"{cell['trace']} on {cell['hardware']}, {cell['model']}: {cell['draws']} draws, margin {100 * cell['margin']:g} %",
            f"  {'candidate':<12} {'asked':>6} {'reached':>8}  {'release':>20} {'regression':>20} {'inconclusive':>20}",
        ]
        for row in cell["rows"]:
            shares = " ".join(f"{_share(row[name]):>20}" for name in ("release", "regression", "inconclusive"))
            lines.append(f"  {row['kind']:<12} {100 * row['level']:>5.3g}% {100 * row['shift']:>7.2f}%  {shares}")
    return "\n".join(lines)


def _share(share: dict[str, float]) -> str:
    return f"{100 * share['rate']:.1f} ({100 * share['low']:.1f}-{100 * share['high']:.1f}) %"
