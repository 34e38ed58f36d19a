"""Progress for people: a line on stderr when it is a terminal, nothing otherwise."""

from __future__ import annotations

import sys

import click


def note(message: str) -> None:
    """Say what is being done, on a terminal only."""
    if sys.stderr.isatty():
        click.echo(f"replay: {message}", err=True)


def count(done: int, total: int) -> None:
    """Say how many requests are done, on a terminal only, in a line that the next one overwrites."""
    if sys.stderr.isatty():
        click.echo(f"replay: {done:,} of {total:,} requests", err=True, nl=done >= total)
        click.echo("\r", err=True, nl=False)
