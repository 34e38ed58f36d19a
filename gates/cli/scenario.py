"""`replay scenario`: run the gate on described cases and compare its verdicts with the expected ones."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.gate import judged
from gates.cli.gate_request import GateOptions
from gates.cli.table_cache import cache_option, user_cache

if TYPE_CHECKING:
    from gates.scenario.files import Workplace
    from gates.scenario.scenario import Case, Scenario
    from replay.pipeline import TableCache

EXIT_DIFFERS = 10


@click.command("scenario")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR")
@cache_option
@click.pass_context
def command(ctx: click.Context, /, folder: Path, no_cache: bool) -> None:
    """Run every scenario.toml in DIR and below it through the gate, and compare the verdicts with the expected ones.

    Exit codes: 0 all are as expected; 10 some are not; 2 a scenario is malformed.
    """
    from gates.scenario.scenario import find_scenarios, read_scenario

    scenarios = [read_scenario(path) for path in find_scenarios(folder)]
    cache = user_cache(no_cache)
    results = [good for scenario in scenarios for good in _run(scenario, cache)]
    click.echo(f"{sum(results)} of {len(results)} verdicts are as expected")
    ctx.exit(0 if all(results) else EXIT_DIFFERS)


def _run(scenario: Scenario, cache: TableCache | None) -> list[bool]:
    """Print a line for each case of a scenario and return whether it is as expected."""
    from gates.scenario.files import Workplace

    with tempfile.TemporaryDirectory(prefix="replay-scenario-") as folder:
        workplace = Workplace(scenario, Path(folder))
        return [_case(case, workplace, cache) for case in scenario.cases]


def _case(case: Case, workplace: Workplace, cache: TableCache | None) -> bool:
    from gates.scenario.compare import differences
    from gates.statement import to_document

    result = judged(_options(workplace.arguments(case)), None, cache)
    document = to_document(result.verdict, plan=result.plan, inputs=result.inputs, tool_version=version("replay-gate"))
    predicate = document["predicate"]
    found = differences(case.expect, predicate)
    click.echo("\n".join([f"{'differs' if found else 'ok':<8} {case.name}: {_got(predicate)}", *(f"           {line}" for line in found)]))
    return not found


def _options(given: dict[str, tuple[str, ...]]) -> GateOptions:
    """Return the options of `replay gate` that a case's arguments are."""

    def one(name: str) -> Any:
        return given[name][0] if name in given else None

    return GateOptions(
        baseline=given.get("baseline", ()),
        candidate=given.get("candidate", ()),
        traces=given.get("trace", ()),
        model=one("model"),
        hardware=given.get("hardware", ()),
        measurements=tuple(map(Path, given.get("measurements", ()))),
        policy=one("policy"),
        owners=one("owners"),
        archive=one("archive"),
        as_of=one("as_of"),
        seed=int(one("seed") or 0),
        jobs=os.cpu_count() or 1,
        reference=one("reference"),
        quality_baseline=one("quality_baseline"),
        quality_candidate=one("quality_candidate"),
    )


def _got(predicate: dict[str, Any]) -> str:
    """Return a verdict in one line."""
    where = [predicate["first_failing_stage"], predicate["bottleneck_class"]]
    undo = (predicate["mitigation"] or {}).get("revert", ())
    parts = [f"{predicate['decision']}, {predicate['basis']}"]
    parts += [f"fails at {where[0]} ({where[1]})"] if where[0] else []
    parts += [f"undo {', '.join(undo)}"] if undo else []
    return "; ".join(parts)
