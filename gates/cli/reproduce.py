"""`replay reproduce`: recompute a verdict from its packet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from gates.cli.inputs import current_project, project_folder
from gates.cli.outcome import clear_outcome
from gates.cli.progress import note
from gates.cli.table_cache import cache_option, user_cache

_DIFFERS = 10
_SHOWN = 20


@click.command("reproduce")
@click.argument("place", metavar="PACKET|verdict.json", type=click.Path(path_type=Path))
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A trace that the packet names; repeat for several.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep the recomputed packet here.")
@cache_option
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, place: Path, traces: tuple[Path, ...], out: Path | None, no_cache: bool, form: str) -> None:
    """Replay and judge again what a packet holds, and say whether the verdict is the same, byte for byte.

    A packet names its traces by digest: they are looked for where they lay, seen from the project here or above the packet, or named
    with --trace. Exit codes: 0 identical; 10 it differs; 30 the packet is not intact or a trace is missing; 2 no packet.
    """
    from gates.packet.packet import open_packet
    from gates.packet.reproduce import TracePlaces, reproduce, shown
    from gates.project import find_project
    from replay.documents import pretty_json

    packet = open_packet(place)
    if out is not None:
        clear_outcome(out)
    around = find_project(place.resolve().parent)
    folders = (project_folder(current_project()), *((around.folder,) if around else ()), place.resolve().parent)
    with tempfile.TemporaryDirectory() as scratch:
        found = reproduce(
            packet, TracePlaces(named=traces, folders=tuple(dict.fromkeys(folders))), out or Path(scratch), note, user_cache(no_cache)
        )
    if form == "json":
        facts = {"is_identical": found.is_identical, "differences": list(found.differences), "environment": list(found.environment)}
        click.echo(pretty_json(facts), nl=False)
    elif found.is_identical:
        click.echo(f"{place}: identical, byte for byte")
    else:
        click.echo(f"{place}: it differs in {len(found.differences)} places (packet -> here)")
        for line in (*shown(found.differences, _SHOWN), *(f"environment: {one}" for one in found.environment)):
            click.echo(f"  {line}")
    ctx.exit(0 if found.is_identical else _DIFFERS)
