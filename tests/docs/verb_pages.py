"""Pages of the verbs, from the command line itself: ``python tests/docs/verb_pages.py`` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from gates.cli import VERBS, main

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pages" / "verbs"
WIDTH = 100


def pages() -> dict[str, str]:
    """Return the text of each verb's page by file name."""
    context = click.Context(main, info_name="replay", help_option_names=["-h", "--help"])
    found = {}
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        parts = [f"# replay {verb}\n\n{VERBS[verb]}\n", *_helps(command, context, verb)]
        found[f"{verb}.md"] = "\n".join(parts)
    return found


def _helps(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    """Yield the help of a command and of each command below it."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=WIDTH, terminal_width=WIDTH)
    shown = command.get_help(context)
    title = context.command_path
    yield (f"## {title}\n\n" if title.count(" ") > 1 else "") + f"```text\n{shown}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            yield from _helps(inner, context, below)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
