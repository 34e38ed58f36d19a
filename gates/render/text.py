"""The verdict as text for a terminal: the decision first, then the worst claims, the owner, what to undo."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gates.render.figures import confidence
from gates.render.story import Story, claim_row, columns, tell

ROWS_SHOWN = 6
WIDTH = 118
_LABEL_WIDTH = 12


def render_text(document: Mapping[str, Any], *, folder: str | None = None) -> str:
    """Return the verdict document as text without control characters, ending in a newline.

    `folder` is where verdict, summary and evidence lie; it is named last.
    """
    story = tell(document)
    lines = [f"{story.decision.upper()}  {story.basis}  -  {story.headline}", ""]
    if story.basis == "invalid_evidence":
        lines += ["  These figures support no decision.", ""]
    lines += [*_table(story), ""]
    for label, entries in _parts(story):
        lines += _block(label, entries)
    if story.patch is not None:
        lines += [
            "",
            *(f"    {line}" for line in story.patch.splitlines()),
            "",
            "    (mitigation.patch of verdict.json; it applies with git apply)",
            "",
        ]
    lines += _block("note", story.notes)
    if folder is not None:
        lines += _block("files", [f"{folder}/verdict.json, report.html, summary.md, evidence/"])
    return "\n".join(_printable(line) for line in lines).rstrip() + "\n"


def _parts(story: Story) -> Iterator[tuple[str, Iterable[str]]]:
    yield "cells", story.cells
    yield "sustained", story.sustained
    yield "improved", story.improved
    yield "fails at", [story.failing, *story.because] if story.failing else ()
    yield "effects", story.effects
    yield "owner", story.owners
    yield "undo", story.undo


def _table(story: Story) -> list[str]:
    """Return the worst claims as an aligned table, and how many are not shown."""
    shown = [claim for claim in story.claims if claim["blocking"] and claim["outcome"] != "holds"]
    shown = list(story.claims[: min(max(len(shown), ROWS_SHOWN), 2 * ROWS_SHOWN)])
    heading = tuple(confidence(list(story.claims)) if name == "bounds" else name for name in columns(story.several))
    rows = [heading, *(claim_row(claim, story.several) for claim in shown)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(heading))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rest = len(story.claims) - len(shown)
    return [*lines, f"  ... and {rest} more in verdict.json"] if rest else lines


def _block(label: str, entries: Iterable[str]) -> list[str]:
    """Return a label with its entries, each wrapped beside it."""
    lines: list[str] = []
    for entry in entries:
        head = f"  {label if not lines else '':<{_LABEL_WIDTH - 2}}"
        wrapped = textwrap.wrap(entry, WIDTH, initial_indent=head, subsequent_indent=" " * (_LABEL_WIDTH + 2), break_long_words=False)
        lines += wrapped or [head.rstrip()]
    return lines


def _printable(line: str) -> str:
    """Return a line without control characters, which names of files may hold."""
    return "".join(character if character.isprintable() or character == "\t" else "?" for character in line)
