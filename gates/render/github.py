"""The verdict for a GitHub workflow: annotations at the changed lines of the mapping file, then the step summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gates.render.blame import blamed, mapping_file
from gates.render.markdown import render_markdown
from gates.render.story import headline, knob_change
from replay.provenance import digest_bytes

MAX_ANNOTATIONS = 10
"""GitHub shows no more than ten annotations of a kind for a step."""

Document = Mapping[str, Any]


def render_github(document: Document, *, prefix: str = "") -> str:
    """Return workflow commands (``::error ...``, or ``::notice`` on a release), then the summary as Markdown.

    `prefix` is the project's folder in the repository (``traces/demo/``): annotations name files from the repository's top.
    """
    # The runner looks for commands in every line, indented or not, and in an older form anywhere in it; the summary quotes texts that
    # other people wrote, so no line of it may be taken for a command until the token comes.
    summary = render_markdown(document)
    token = _stop_token(summary)
    lines = [*workflow_commands(document, prefix=prefix), f"::stop-commands::{token}", "", summary.rstrip("\n"), f"::{token}::"]
    return "\n".join(lines) + "\n"


def _stop_token(summary: str) -> str:
    """Return a word that the summary does not hold; its digest decides, so that nobody can write it into a text beforehand."""
    token = digest_bytes(summary.encode()).removeprefix("sha256:")
    while token in summary:
        token = digest_bytes(token.encode()).removeprefix("sha256:")
    return token


def workflow_commands(document: Document, *, prefix: str = "") -> list[str]:
    """Return at most ten workflow commands; those about a knob point at its line in the candidate's mapping file."""
    predicate = document["predicate"]
    title = f"replay gate: {predicate['decision'].upper()} ({predicate['basis']})"
    decides = headline(predicate)
    if predicate["decision"] == "release":
        return [_command("notice", {"title": title}, decides)]
    knobs = list(blamed(predicate))
    if not knobs:
        return [_command("error", {"title": title}, decides)]
    name = mapping_file(predicate)
    file = None if name is None else prefix + name
    return [
        _command("error", _place(file, knob) | {"title": title}, _message(predicate, knob, decides)) for knob in knobs[:MAX_ANNOTATIONS]
    ]


def _place(file: str | None, knob: Document) -> dict[str, str]:
    if file is None:
        return {}
    line = knob.get("line")
    return {"file": file} if line is None else {"file": file, "line": str(line)}


def _message(predicate: Document, knob: Document, decides: str) -> str:
    lines = [knob_change(knob), decides]
    if predicate["first_failing_stage"]:
        lines.append(
            f"fails at {predicate['first_failing_stage']} ({predicate['bottleneck_class'] or 'class unknown'}); owner {knob['owner']}"
        )
    if predicate["mitigation"] is not None and predicate["mitigation"]["verified"]:
        lines.append(f"undoing {', '.join(predicate['mitigation']['revert'])} releases, verified by replay")
    return "\n".join(lines)


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    """Return a workflow command with GitHub's escapes: ``%``, line ends, and ``:`` and ``,`` in properties."""
    written = ",".join(f"{name}={_escape(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items())
    return f"::{kind} {written}::{_escape(message)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
