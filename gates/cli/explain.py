"""`replay explain`: a verdict as a page to read."""

from __future__ import annotations

from pathlib import Path

import click

from gates.cli.inputs import current_project, project_folder
from gates.cli.outcome import FORMATS, render


@click.command("explain")
@click.argument("place", metavar="PACKET|verdict.json", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(("page", *FORMATS)), default="page", show_default=True, help="What is printed.")
def command(place: Path, form: str) -> None:
    """Tell what a verdict says in a page: what was asked, what came out, why, who should do what, how sure it is, how to check it.

    With --format the same in one of the forms that `replay gate` prints.
    """
    from gates.packet.minimal import SLICE
    from gates.packet.packet import VERDICT, open_packet
    from gates.render.explain import render_explanation
    from replay import documents

    packet = open_packet(place)

    def read(name: str, what: str) -> documents.Document:
        where = f"{packet.where}: {name}"
        document: documents.Document = documents.parse_json(documents.decode(packet.read(name), where, what), where)
        return document

    document = read(VERDICT, "a verdict")
    documents.check(document, "verdict.v1", f"{packet.where}: {VERDICT}")
    if form != "page":
        click.echo(render(document, form, out=None, project=project_folder(current_project())), nl=False)
        return
    slices = {name: read(name, "a minimal slice") for name in sorted(packet.names) if name.endswith(f"/{SLICE}.json")}
    click.echo(render_explanation(document, slices=slices), nl=False)
