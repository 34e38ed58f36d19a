"""A verdict as a page to read: what was asked, what came out, why, who should do what, how sure that is, and how to check it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from gates.render.figures import bounds, format_value, subject
from gates.render.story import Story, tell
from replay.errors import printable

Document = Mapping[str, Any]
WIDTH = 100
_CLAIMS_TOLD = 5


def render_explanation(document: Document, *, slices: Mapping[str, Document] | None = None) -> str:
    """Return the story of a verdict document as text in sections.

    `slices` are the minimal slices of the packet by file name: ``{start_s, requests, claim}``.
    """
    predicate, story = document["predicate"], tell(document)
    sections = (
        ("What was asked", _asked(predicate)),
        ("What came out", _came_out(predicate, story)),
        ("Why", _why(story)),
        ("What got better", story.improved),
        ("Who, and what to do", _to_do(predicate, story)),
        ("How sure this is", _how_sure(predicate, story)),
        ("How to check it", _check(predicate, story, slices or {})),
    )
    lines = [f"{story.decision.upper()} ({story.basis})", ""]
    for title, entries in sections:
        paragraphs = [paragraph for entry in entries for paragraph in _wrapped(entry)]
        if paragraphs:
            lines += [title, "-" * len(title), *paragraphs, ""]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(entry: str) -> list[str]:
    if "\n" in entry:  # a patch
        return ["", *(f"    {printable(line)}" for line in entry.splitlines()), ""]
    return textwrap.wrap(printable(entry), WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False)


def _asked(predicate: Document) -> Iterator[str]:
    def named(*roles: str) -> str:
        return ", ".join(row["name"] for row in predicate["inputs"] if row["role"] in roles) or "-"

    candidate, baseline = (named(f"{side}_mapping", f"{side}_run") for side in ("candidate", "baseline"))
    yield f"May {candidate} replace {baseline}? Judged by {named('policy')}; plan {predicate['plan']['digest'][7:19]}."
    for cell in predicate["per_trace"]:
        blocking = sum(claim["blocking"] for claim in cell["claims"])
        count = f"{blocking} blocking claims and {len(cell['claims']) - blocking} advisory ones"
        place = f"trace {cell['trace']}, {cell['hardware']}, {cell['model']}"
        yield f"On {place}: {count}, fixed before the candidate was looked at."
    if predicate["knobs"]:
        yield f"{len(predicate['knobs'])} knobs differ: {', '.join(knob['knob'] for knob in predicate['knobs'])}."


def _came_out(predicate: Document, story: Story) -> Iterator[str]:
    yield f"{story.headline}."
    yield from story.cells
    bad = [claim for claim in story.claims if claim["blocking"] and claim["outcome"] != "holds"]
    for claim in bad[:_CLAIMS_TOLD]:
        counts = f"n {claim['n']}" + ("" if claim["n_beyond"] is None else f", {claim['n_beyond']} beyond the percentile")
        reason = f": {claim['reason']}" if claim["reason"] else ""
        place = f"{subject(claim)} on {claim['trace']} / {claim['hardware']}"
        yield f"{place} is {claim['outcome']} (bounds {bounds(claim)}; {counts}){reason}."
    if len(bad) > _CLAIMS_TOLD:
        yield f"And {len(bad) - _CLAIMS_TOLD} more blocking claims that do not hold."


def _why(story: Story) -> Iterator[str]:
    if story.failing:
        yield f"First failing stage: {story.failing}."
    yield from story.because
    yield from story.effects
    yield from story.sustained


def _to_do(predicate: Document, story: Story) -> Iterator[str]:
    yield from story.owners
    yield from story.undo
    if story.patch is not None:
        yield f"{story.patch.rstrip()}\n"
    if predicate["decision"] == "release":
        for row in predicate["guardrails"][:_CLAIMS_TOLD]:
            yield f"Watch {row['metric']}: {row['action']} (limit {format_value(row['limit'], row['unit'])}, window {row['window']})."


def _how_sure(predicate: Document, story: Story) -> Iterator[str]:
    fidelity = predicate["fidelity"]
    if fidelity is not None:
        yield f"Most of the candidate's device time is costed from: {fidelity['calibration']}."
    yield from story.notes


def _check(predicate: Document, story: Story, slices: Mapping[str, Document]) -> Iterator[str]:
    for name, found in slices.items():
        yield (
            f"{name}: {found['requests']} requests from {found['start_s']:g} s on still show {found['claim']['id']}; replay these first."
        )
    evidence = predicate["evidence"]
    if evidence is not None and evidence["reproduce"] is not None:
        yield f"`{evidence['reproduce']}` recomputes this verdict; `replay verify verdict.json` checks digests and signature."
    yield from story.identity
