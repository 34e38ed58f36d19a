"""The verdict as Markdown: a comment on a change or a one-page summary, worst first, the full table folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gates.render.figures import confidence, knob_value
from gates.render.story import Story, claim_row, columns, tell

LIMIT_BYTES = 60_000
"""A comment on GitHub may hold 65,536 characters; the rest is left for what a workflow adds."""
ROWS_SHOWN = 6
PATCH_LIMIT_BYTES = 16_000


def render_markdown(document: Mapping[str, Any], *, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the verdict document as Markdown of at most `limit_bytes`; claims that do not fit are counted and left to the JSON."""
    story = tell(document)
    top = "\n".join(_top(story))
    foot = "\n\n" + escape("; ".join(story.identity)) + "\n"
    room = limit_bytes - len((top + foot).encode())
    return top + _folded(story, room) + foot


def escape(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    line = re.sub(r"\s+", " ", "".join(character if character.isprintable() else " " for character in text))
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _top(story: Story) -> Iterator[str]:
    yield f"## {story.decision.upper()} - {escape(story.basis)}"
    yield ""
    yield f"**{escape(_cut(story.headline))}**"
    yield ""
    yield from _claims_table(story.claims[:ROWS_SHOWN], story)
    yield ""
    yield from _bullets("Fails at", [story.failing, *story.because] if story.failing else ())
    yield from _bullets("Owner", story.owners)
    yield from _bullets("Undo", story.undo)
    if story.patch is not None:
        yield from _patch(story.patch)
    yield from _bullets("Effects", story.effects)
    yield from _bullets("Improved", story.improved)
    yield from _bullets("Sustained", story.sustained)
    yield from _bullets("Cells", story.cells)
    yield from _bullets("Note", story.notes)


def _bullets(label: str, entries: Iterable[str], most: int = 12) -> Iterator[str]:
    """Yield a bullet, with its further entries below it."""
    found = list(entries)
    if not found:
        return
    yield f"- **{label}** {escape(_cut(found[0]))}"
    yield from (f"  - {escape(_cut(entry))}" for entry in found[1:most])
    if len(found) > most:
        yield f"  - and {len(found) - most} more in verdict.json"


def _cut(text: str, most: int = 600) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _patch(patch: str) -> Iterator[str]:
    if len(patch.encode()) > PATCH_LIMIT_BYTES:
        yield "- the patch is long: see `mitigation.patch` in verdict.json"
        return
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", patch)), default=0))
    yield ""
    yield f"{fence}diff"
    yield from patch.replace("\r", "").splitlines()
    yield fence
    yield ""


def _claims_table(claims: Sequence[Mapping[str, Any]], story: Story) -> Iterator[str]:
    heading = [confidence(list(story.claims)) if name == "bounds" else name for name in columns(story.several)]
    yield _row(heading)
    yield _row(["---"] * len(heading), plain=True)
    yield from (_row(claim_row(claim, story.several)) for claim in claims)


def _row(cells: Sequence[str], *, plain: bool = False) -> str:
    return "| " + " | ".join(cell if plain else escape(cell) for cell in cells) + " |"


def _folded(story: Story, room: int) -> str:
    """Return the folded tables of all claims and knobs, as many rows as there is room for."""
    parts = (
        (f"All {len(story.claims)} claims", list(_claims_table(story.claims, story))),
        (f"All {len(story.knobs)} changed knobs", list(_knobs_table(story.knobs))),
        ("Owners and risks", list(_risks_table(story.risks))),
    )
    text = ""
    for title, lines in parts:
        if len(lines) > 2:
            text += _fold(title, lines, room - len(text.encode()))
    return text


def _fold(title: str, lines: list[str], room: int) -> str:
    head, tail = f"\n<details><summary>{title}</summary>\n\n", "\n</details>\n"
    more = "\n... and {} more rows in verdict.json\n"
    left = room - len((head + tail + more).encode()) - 8
    kept = []
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            break
        kept.append(line)
    if len(kept) < 3:
        return ""
    dropped = len(lines) - len(kept)
    return head + "\n".join(kept) + "\n" + (more.format(dropped) if dropped else "") + tail


def _risks_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = ("owner", "finding", "effect", "risk", "mitigation")
    yield _row(names)
    yield _row(["---"] * len(names), plain=True)
    yield from (_row([str(row.get(name) or "-") for name in names]) for row in rows)


def _knobs_table(knobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield _row(("knob", "baseline", "candidate", "effective", "owner", "cost to revert"))
    yield _row(["---"] * 6, plain=True)
    for knob in knobs:
        values = (knob_value(knob[name]) for name in ("baseline", "candidate", "effective"))
        yield _row((knob["knob"], *values, str(knob["owner"]), knob["revert_cost"]))
