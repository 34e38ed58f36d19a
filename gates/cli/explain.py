"""`replay explain`: a verdict as a page to read."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("explain")
@click.argument("place", metavar="PACKET|verdict.json", type=click.Path(path_type=Path))
def command(place: Path) -> None:
    """Tell what a verdict says in a page: what was asked, what came out, why, who should do what, how sure it is, how to check it."""
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
    slices = {name: read(name, "a minimal slice") for name in sorted(packet.names) if name.endswith(f"/{SLICE}.json")}
    click.echo(render_explanation(document, slices=slices), nl=False)
