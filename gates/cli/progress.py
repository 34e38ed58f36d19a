"""Progress for people: a line on stderr when it is a terminal, nothing otherwise."""

from __future__ import annotations

import sys

import click


def note(message: str) -> None:
    """Say what is being done, on a terminal only."""
    if sys.stderr.isatty():
        click.echo(f"replay: {message}", err=True)
