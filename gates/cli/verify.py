"""`replay verify`: check a packet's form, digests and signature; nothing is replayed."""

from __future__ import annotations

from pathlib import Path

import click

_FAILED = 10
_MARKS = {"holds": "ok", "fails": "FAILED", "not_checked": "not checked"}


@click.command("verify")
@click.argument("place", metavar="PACKET|verdict.json", type=click.Path(path_type=Path))
@click.option(
    "--key", type=click.Path(path_type=Path), metavar="FILE", help="Public key (Ed25519, PEM) that the verdict should be signed with."
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, place: Path, key: Path | None, form: str) -> None:
    """Check that a packet is what `replay gate` wrote: schema, digests, outcomes that follow from their intervals, signature.

    What was not checked is listed as such. Exit codes: 0 everything that was checked holds; 10 something does not; 2 no packet.
    """
    from gates.packet.packet import open_packet
    from gates.packet.verify import verify
    from replay.documents import pretty_json

    checks = verify(open_packet(place), key)
    failed = sum(check.state == "fails" for check in checks)
    if form == "json":
        click.echo(pretty_json({"is_intact": not failed, "checks": [check.to_document() for check in checks]}), nl=False)
    else:
        for check in checks:
            click.echo(f"{_MARKS[check.state]:<11}  {check.name}: {check.message}")
        held, rest = (sum(check.state == state for check in checks) for state in ("holds", "not_checked"))
        click.echo(
            f"{place}: {failed} of {failed + held} checks failed, {rest} not made"
            if failed
            else f"{place}: {held} checks hold, {rest} not made"
        )
    ctx.exit(_FAILED if failed else 0)
