"""`replay fit`: the workload fit matrix of traces, models, accelerators and mappings, with a shortlist."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.arms import read_arm
from gates.cli.inputs import (
    chosen_mapping,
    chosen_seed,
    current_project,
    load_hardware,
    load_traces,
    measurements_option,
    model_source,
    project_folder,
)
from gates.cli.progress import note
from gates.cli.result_files import check_result_folder, give_result
from gates.cli.rules import read_rules
from gates.cli.sweep import chosen_limits
from gates.cli.table_cache import cache_option, user_cache
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.fit.cell import FitCell


@click.command("fit")
@click.option("--trace", "traces", multiple=True, metavar="FILE", help="Request trace; repeat for several (default: the project's).")
@click.option("--model", "models", multiple=True, metavar="NAME|FILE", help="Model; repeat for several (default: the project's).")
@click.option("--hardware", multiple=True, metavar="NAME|FILE", help="Accelerator; repeat for several (default: the project's).")
@click.option("--mapping", "mappings", multiple=True, metavar="FILE", help="Mapping; repeat for several (default: the project's).")
@measurements_option
@cache_option
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=S", help="Limit of a request: ttft_s, tpot_s or e2e_s (default: the policy's [slo])."
)
@click.option(
    "--attainment", type=click.FloatRange(0.0, 1.0, min_open=True), default=0.99, show_default=True, help="Share that has to meet all."
)
@click.option("--policy", metavar="FILE", help="Policy whose [slo] is taken (default: the project's).")
@click.option("--device-watts", type=click.FloatRange(0.0, min_open=True), help="Most watts of one device.")
@click.option("--rack-watts", type=click.FloatRange(0.0, min_open=True), help="Most watts of the whole fleet.")
@click.option("--price", "prices", multiple=True, metavar="NAME=USD", help="Dollars per hour of an accelerator.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of every random draw (default: the project's, else 0).")
@click.option("--jobs", type=click.IntRange(min=1), help="Cells at once (default: the cores).")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for fit.json and fit.csv.")
@click.option("--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True)
def command(
    traces: tuple[str, ...],
    models: tuple[str, ...],
    hardware: tuple[str, ...],
    mappings: tuple[str, ...],
    measurements: tuple[Path, ...],
    no_cache: bool,
    limits: tuple[str, ...],
    attainment: float,
    policy: str | None,
    device_watts: float | None,
    rack_watts: float | None,
    prices: tuple[str, ...],
    seed: int | None,
    jobs: int | None,
    out: Path | None,
    form: str,
) -> None:
    """Replay every trace on every model, accelerator and mapping: who keeps the limits, with how many devices, and how sure that is.

    Each cell is one replay at the recorded rate and a search for the highest rate that keeps the limits; the fleet splits the load evenly.
    """
    from gates.fit.cell import FitCell, fit_cell
    from gates.fit.shortlist import Budget, dominating, shortlist
    from gates.sweep.load import Axis
    from gates.sweep.sweep import Question
    from replay.documents import check
    from replay.ingress.model_config import read_model
    from replay.pipeline import Replayer

    check_result_folder(out, "fit")
    project = current_project()
    slo = chosen_limits(limits, policy, project)
    owners = read_rules(policy=policy, owners=None, project=project, before=None, commit=None, mapping=None).owners
    arms = [read_arm(one, role="mapping", folder=project_folder(project)) for one in mappings] or [chosen_mapping(None, project)]
    specs = [read_model(model_source(one, project)) for one in (models or (None,))]
    devices = load_hardware(hardware, project, measurements)
    budget = Budget(device_w=device_watts, rack_w=rack_watts)
    budget.check(devices)
    dollars = _prices(prices)
    cache, drawn = user_cache(no_cache), chosen_seed(seed, project)
    places = [
        (trace, spec, device, arm) for trace, _ in load_traces(traces, project) for spec in specs for device in devices for arm in arms
    ]

    def cell(place: Any) -> FitCell:
        trace, spec, device, arm = place
        replayer = Replayer(trace=trace, model=spec, hardware=device, seed=drawn, cache=cache)
        question = Question(
            replayer=replayer, axis=Axis(name="rate_ratio"), loads=(1.0,), slo=slo, attainment=attainment, jobs=1, progress=note
        )
        note(f"{arm.label} on {trace.name}, {spec.name}, {device.name}")
        try:
            return fit_cell(question, arm.mapping, arm.label, owners)
        except SpecError as error:
            return FitCell(trace=trace.name, model=spec.name, hardware=device.name, mapping=arm.label, problem=str(error))

    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        cells = list(pool.map(cell, places))
    document = {
        "schema_version": "1.0",
        "limits": {name: getattr(slo, name) for name in ("ttft_s", "tpot_s", "e2e_s")},
        "attainment": attainment,
        "budget": {"device_w": device_watts, "rack_w": rack_watts},
        "cells": [{**one.to_document(), "pareto": best} for one, best in zip(cells, dominating(cells), strict=True)],
        "shortlist": shortlist(cells, budget, dollars),
    }
    check(document, "fit.v1", "the fit matrix")
    give_result(document, _rows(document), _lines(document), name="fit", out=out, form=form)


def _prices(options: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for one in options:
        name, _, value = one.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < float("inf"):
            raise SpecError("--price", repr(one), "NAME=DOLLARS of an hour", "write h100-sxm=2.5")
    return found


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**cell, "risk_reasons": "; ".join(cell["risk_reasons"])} for cell in document["cells"]]


_COLUMNS = ("met", "goodput/dev", "E2E p99", "MFU", "stall", "KV free", "risk", "bears", "devices", "class")


def _lines(document: dict[str, Any]) -> list[str]:
    from replay.units import format_seconds

    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    names = [f"{cell['trace']} / {cell['model']} / {cell['hardware']} / {cell['mapping']}" for cell in document["cells"]]
    width = max(map(len, names))
    lines = [f"{'':<{width}}  " + " ".join(f"{name:>11}" for name in _COLUMNS)]
    for name, cell in zip(names, document["cells"], strict=True):
        if cell["problem"] is not None:
            lines.append(f"{name:<{width}}  {cell['problem']}")
            continue
        shown = (
            ratio(cell["attainment_ratio"]),
            f"{cell['goodput_per_device_per_s']:.3g}/s",
            "-" if cell["e2e_p99_s"] is None else format_seconds(cell["e2e_p99_s"]),
            *(ratio(cell[key]) for key in ("mfu_ratio", "memory_stall_ratio", "kv_headroom_ratio", "risk_ratio")),
            "-" if cell["sustainable_ratio"] is None else f"x {cell['sustainable_ratio']:.3g}",
            str(cell["fleet_devices"] or "-"),
            (cell["bottleneck_class"] or "-")[:11],
        )
        lines.append(f"{name:<{width}}{' *' if cell['pareto'] else '  '}" + " ".join(f"{value:>11}" for value in shown))
    lines += [
        "",
        "* nothing else of its trace and model is at least as good in goodput per device, p99, joules per token and risk",
        "",
        "shortlist",
    ]
    for row in document["shortlist"]:
        place = f"{row['trace']} / {row['model']} / {row['hardware']} / {row['mapping']}"
        cost = "" if row["usd_per_million_tokens"] is None else f", {row['usd_per_million_tokens']:.3g} dollars per million output tokens"
        watts = "" if row["fleet_w"] is None else f", {row['fleet_w']:.4g} W"
        told = f"{row['fleet_devices']} devices{watts}{cost}" if row["fit"] else "not fit: " + "; ".join(row["why_not"])
        lines.append(f"  {place}: {told}")
    return lines
