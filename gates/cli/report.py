"""`replay report`: a verdict, a packet or a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gates.cli.outcome import is_report
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.packet.packet import Packet

_WANTED = "a folder or zip that `replay gate` wrote, a verdict.json, or a run directory that `replay run` wrote"


@click.command("report")
@click.argument("place", metavar="VERDICT|PACKET|RUN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True, metavar="FILE", help="Where the page goes."
)
def command(place: Path, out: Path) -> None:
    """Draw a verdict with its evidence, or a run, as one page that needs no network: the report.html of `replay gate` again.

    A verdict without its evidence gives a page that says so where the evidence would be.
    """
    from replay.documents import check_writable, write_atomic

    if out.exists() and not is_report(out):
        raise SpecError(str(out), "a file that is no page of this tool", "a place for the page", "move it away, or choose another --out")
    check_writable(out)
    write_atomic(out, _page(place))
    click.echo(str(out))


def _page(place: Path) -> bytes:
    from replay.assembly.store import RUN_FILE, read_run

    if (place / RUN_FILE).is_file():
        from gates.report.run import render_run

        return render_run(read_run(place)[0])
    from gates.report.report import read_verdict, render_report

    packet = _packet(place)
    return render_report(read_verdict(packet), packet)


def _packet(place: Path) -> Packet:
    """Return the packet at a place; of a verdict under another name than a packet's, itself alone."""
    from gates.packet.packet import VERDICT, Packet, open_packet
    from replay.documents import read_bytes

    if not place.is_file() or place.name == VERDICT:
        return open_packet(place)
    data = read_bytes(place, _WANTED)
    if data.startswith(b"PK"):
        return open_packet(place)
    return Packet(where=str(place), names=frozenset((VERDICT,)), read=lambda _: data)
