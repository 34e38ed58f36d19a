"""`replay sweep`: latency and throughput of mappings as the load rises, and the highest load that keeps the limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.arms import read_arm
from gates.cli.inputs import (
    chosen_mapping,
    chosen_model,
    chosen_seed,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    project_folder,
    say_unused,
    work_options,
)
from gates.cli.progress import note
from gates.cli.result_files import check_result_folder, give_result
from gates.cli.rules import read_rules
from gates.cli.table_cache import cache_option, user_cache
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.policy import SloLimits
    from gates.project import Project
    from gates.sweep.load import AxisName

RATES = "0.25,0.35,0.5,0.7,1,1.2,1.4,1.7,2,2.4,2.8,4"
_LIMITS = ("ttft_s", "tpot_s", "e2e_s")


@click.command("sweep")
@click.option("--mapping", "mappings", multiple=True, metavar="FILE", help="Mapping; repeat to compare (default: the project's).")
@work_options
@measurements_option
@cache_option
@click.option("--rates", metavar="R,R,...", help=f"Multiples of the trace's own rate (default: {RATES}).")
@click.option("--concurrency", metavar="N,N,...", help="Requests under way at most, instead of rates.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=S", help="Limit of a request: ttft_s, tpot_s or e2e_s (default: the policy's [slo])."
)
@click.option(
    "--attainment", type=click.FloatRange(0.0, 1.0, min_open=True), default=0.99, show_default=True, help="Share that has to meet all."
)
@click.option("--policy", metavar="FILE", help="Policy whose [slo] is taken (default: the project's).")
@click.option("--jobs", type=click.IntRange(min=1), help="Replays at once (default: the cores).")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for sweep.json and sweep.csv.")
@click.option("--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
def command(
    mappings: tuple[str, ...],
    traces: tuple[str, ...],
    model: str | None,
    hardware: tuple[str, ...],
    seed: int | None,
    measurements: tuple[Path, ...],
    no_cache: bool,
    rates: str | None,
    concurrency: str | None,
    limits: tuple[str, ...],
    attainment: float,
    policy: str | None,
    jobs: int | None,
    out: Path | None,
    form: str,
) -> None:
    """Replay mappings under rising load: latency, goodput and energy per token along the curve, and the highest load that keeps the limits.

    The highest load is found by bisection, to 1 % or one client, with an interval over resamples of the traffic.
    """
    from gates.sweep.load import Axis
    from gates.sweep.sweep import Question, sweep
    from replay.documents import check
    from replay.pipeline import Replayer

    if rates is not None and concurrency is not None:
        raise click.UsageError("give either --rates or --concurrency")
    check_result_folder(out, "sweep")
    project = current_project()
    axis: AxisName = "rate_ratio" if concurrency is None else "concurrency"
    loads = _numbers(concurrency or rates or RATES, "--rates" if concurrency is None else "--concurrency", whole=concurrency is not None)
    slo = chosen_limits(limits, policy, project)
    arms = [read_arm(one, role="mapping", folder=project_folder(project)) for one in mappings] or [chosen_mapping(None, project)]
    cells: list[dict[str, Any]] = []
    for trace, _ in load_traces(traces, project):
        for device in load_hardware(hardware, project, measurements):
            curves = []
            for arm in arms:
                spec = chosen_model(model, arm, project)
                replayer = Replayer(trace=trace, model=spec, hardware=device, seed=chosen_seed(seed, project), cache=user_cache(no_cache))
                say_unused(device, replayer.table(arm.mapping))
                note(f"{arm.label} on {trace.name}, {device.name}: {len(loads)} loads")
                question = Question(
                    replayer=replayer,
                    axis=Axis(name=axis),
                    loads=loads,
                    slo=slo,
                    attainment=attainment,
                    jobs=jobs or os.cpu_count() or 1,
                    progress=note,
                )
                curves.append(sweep(question, arm.mapping, arm.label).to_document())
            cells.append({"trace": trace.name, "hardware": device.name, "model": spec.name, "curves": curves})
    document = {
        "schema_version": "1.0",
        "axis": axis,
        "limits": {name: getattr(slo, name) for name in _LIMITS},
        "attainment": attainment,
        "cells": cells,
    }
    check(document, "sweep.v1", "the sweep")
    give_result(document, _rows(document), _lines(document), name="sweep", out=out, form=form)


def _numbers(text: str, option: str, *, whole: bool) -> tuple[float, ...]:
    """Return the loads of an option, ascending and distinct.

    Raises:
        SpecError: one is no positive number.
    """
    want = "whole numbers from 1 on" if whole else "numbers above 0"
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise SpecError(option, repr(text), want, "write them with commas: 1,2,4") from error
    if not all(0 < value < float("inf") and (not whole or (value >= 1 and value == int(value))) for value in found):
        raise SpecError(option, repr(text), want, "correct the list")
    return tuple(found)


def chosen_limits(limits: tuple[str, ...], policy: str | None, project: Project | None) -> SloLimits:
    """Return the limits of a request that the options state, else those of the policy.

    Raises:
        SpecError: there are none, or one is no positive number of seconds.
    """
    from gates.policy import SloLimits

    if not limits:
        rules = read_rules(policy=policy, owners=None, project=project, before=None, commit=None, mapping=None)
        if rules.policy.slo is None:
            fix = "give --limit ttft_s=0.5, or write [slo] in the policy"
            raise SpecError(rules.policy_name, "no [slo], so no load can be called sustainable", "a limit of a request", fix)
        return rules.policy.slo
    found: dict[str, float] = {}
    for one in limits:
        name, _, value = one.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if name not in _LIMITS or not 0 < seconds < float("inf"):
            raise SpecError("--limit", repr(one), "NAME=SECONDS with a name of " + ", ".join(_LIMITS), "write ttft_s=0.5")
        found[name] = seconds
    return SloLimits(**found)


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **{name: cell[name] for name in ("trace", "hardware", "model")},
            "mapping": curve["mapping"],
            **{name: value for name, value in point.items() if name != "latency_s"},
            **point["latency_s"],
        }
        for cell in document["cells"]
        for curve in cell["curves"]
        for point in curve["points"]
    ]


def _lines(document: dict[str, Any]) -> list[str]:
    from replay.units import format_seconds, format_si

    limits = ", ".join(f"{name} {format_seconds(value)}" for name, value in document["limits"].items() if value is not None)
    lines = [f"limits: {limits}; {document['attainment']:.4g} of the requests have to meet them"]
    for cell in document["cells"]:
        for curve in cell["curves"]:
            lines += ["", f"{curve['mapping']} on {cell['trace']}, {cell['hardware']}, {cell['model']}"]
            names = ("served/s", "goodput/s", "met", "TTFT p95", "TPOT p95", "E2E p99", "a token")
            lines.append(f"  {document['axis']:>11} " + " ".join(f"{name:>{7 if name == 'met' else 9}}" for name in names))
            for point in curve["points"]:
                times = [point["latency_s"][name] for name in ("ttft_s.p95", "tpot_s.p95", "e2e_s.p99")]
                shown = " ".join(f"{'-' if value is None else format_seconds(value):>9}" for value in times)
                energy = "-" if point["joules_per_token"] is None else format_si(point["joules_per_token"], "J")
                rates = f"{point['served_per_s']:>9.3g} {point['goodput_per_s']:>9.3g} {point['attainment_ratio']:>7.1%}"
                lines.append(f"  {point['load']:>11g} {rates} {shown} {energy:>9}")
            found = curve["sustainable"]
            bounds = "" if found["lower"] is None else f" [{found['lower']:.3g}, {found['upper']:.3g}]"
            highest = "none" if found["load"] is None else f"{found['load']:.4g}{bounds}"
            lines.append(f"  highest sustainable {document['axis']}: {highest} ({found['sentence']})")
            if curve["knee"] is not None:
                lines.append(f"  end-to-end latency bends at {curve['knee']:g}")
    return lines
