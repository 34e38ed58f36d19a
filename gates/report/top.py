"""The page's head: what was decided, why, whose it is, and what to undo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from gates.render.story import Story
from gates.report.elements import element, folded, listed

Document = Mapping[str, Any]
_MEANING = {
    "proven_safe": "every blocking claim holds, with its bounds inside what was accepted beforehand",
    "regression": "a blocking claim is disproved: the candidate is worse than was accepted beforehand",
    "inconclusive": "the evidence decides neither way, and what is not shown to be safe is not released",
    "invalid_evidence": "the evidence cannot be used: the figures below support no decision",
}


def head(predicate: Document, story: Story) -> list[ET.Element]:
    """Return the verdict with its headline, then what a release manager asks next."""
    word = element("span", story.decision, class_="word")
    verdict = element(
        "header",
        element("h1", word, f" - {story.headline}"),
        element("p", f"{story.basis.replace('_', ' ').capitalize()}: {_MEANING[story.basis]}."),
        class_=f"verdict {story.decision} {story.basis}",
    )
    return [verdict, element("dl", *_facts(predicate, story), class_="facts")]


def _facts(predicate: Document, story: Story) -> Iterator[ET.Element]:
    names = {role: ", ".join(row["name"] for row in predicate["inputs"] if row["role"] in roles) for role, roles in _ROLES.items()}
    cells = [f"{cell['trace']} / {cell['hardware']} / {cell['model']}" for cell in predicate["per_trace"]]
    for term, entries in (
        ("Owner", story.owners or ("nobody is named for what was found",)),
        ("First failing stage", () if predicate["first_failing_stage"] is None else (predicate["first_failing_stage"].replace("_", " "),)),
        ("Bottleneck class", () if predicate["bottleneck_class"] is None else (predicate["bottleneck_class"].replace("_", " "),)),
        ("Candidate", (names["candidate"],) if names["candidate"] else ()),
        ("Baseline", (names["baseline"],) if names["baseline"] else ()),
        ("Judged on", story.cells or cells),
    ):
        if entries:
            yield element("dt", term)
            yield element("dd", entries[0]) if len(entries) == 1 else element("dd", listed(entries))


_ROLES = {arm: (f"{arm}_mapping", f"{arm}_run") for arm in ("candidate", "baseline")}


def why(story: Story) -> list[ET.Element]:
    """Return why it was decided so, and what limits the verdict."""
    made = []
    if story.because:
        made.append(listed(story.because))
    for heading, entries in (
        ("What got better", story.improved),
        ("Sustained", story.sustained),
        ("What limits this verdict", story.notes),
    ):
        if entries:
            made += [element("h3", heading), listed(entries)]
    return made


def mitigation(story: Story) -> list[ET.Element]:
    """Return what to undo, with the patch."""
    if not story.undo:
        return [element("p", "Nothing has to be undone." if story.decision == "release" else "No change that undoes it was found.")]
    made: list[ET.Element] = [listed(story.undo)]
    if story.patch is not None:
        made.append(element("p", "The patch applies with `git apply`; it is mitigation.patch of verdict.json.", class_="note"))
        made.append(folded("Patch", element("pre", story.patch)) if story.patch.count("\n") > 40 else element("pre", story.patch))
    return made
