"""Elements of the page, built as a tree: a text is a node of it and never markup, whatever it holds."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from xml.etree import ElementTree as ET

BEGINS = b'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="replay-gate">'
"""How every page begins: what tells it from pages that others wrote."""
UNSHOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character that would change how the text around it is shown."""


def element(tag: str, *children: ET.Element | str | None, **attributes: str | None) -> ET.Element:
    """Return an element with its children in order; a text child is shown as it is, None is left out.

    Attribute names are as in HTML with ``_`` for ``-`` (``class_`` for ``class``); one that is None is left out.
    """
    made = ET.Element(tag, {name.rstrip("_").replace("_", "-"): shown(value) for name, value in attributes.items() if value is not None})
    for child in children:
        append(made, child)
    return made


def append(parent: ET.Element, child: ET.Element | str | None) -> None:
    """Add a child, or a text, at the end of an element."""
    if child is None:
        return
    if not isinstance(child, str):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + shown(child)
    else:
        parent.text = (parent.text or "") + shown(child)


def shown(text: str) -> str:
    """Return a text without control and direction characters, of which only line ends and tabs are kept."""
    return "".join(character if character.isprintable() or character in "\n\t" else UNSHOWN for character in text)


def paragraphs(texts: Iterable[str], **attributes: str) -> list[ET.Element]:
    """Return a paragraph for each text."""
    return [element("p", text, **attributes) for text in texts]


def listed(texts: Iterable[str]) -> ET.Element:
    """Return a bulleted list."""
    return element("ul", *(element("li", text) for text in texts))


def table(
    caption: str, heading: Sequence[str], rows: Iterable[Sequence[ET.Element | str]], *, marks: Sequence[str] | None = None
) -> ET.Element:
    """Return a table with a caption, the first cell of a row being its heading; `marks` are the classes of the rows."""
    body = element("tbody")
    for place, row in enumerate(rows):
        first, *others = row
        cells = [element("th", first, scope="row"), *(element("td", cell) for cell in others)]
        body.append(element("tr", *cells, class_=marks[place] if marks else None))
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in heading)))
    made = element("table", element("caption", caption), head, body)
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label=caption)


def folded(summary: str, *children: ET.Element) -> ET.Element:
    """Return what a reader opens."""
    return element("details", element("summary", summary), *children)


def page(title: str, content: Iterable[ET.Element]) -> bytes:
    """Return the bytes of a page that loads nothing and sends nothing: its policy allows its own style and script alone."""
    style, script = (_text(name) for name in ("page.css", "page.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content="replay-gate"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
    )
    for tag, text in (("style", style), ("script", script)):
        own = ET.SubElement(head, tag)
        own.text = text
    root = element("html", head, element("body", element("main", *content)), lang="en")
    made: str = ET.tostring(root, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{made}\n".encode()


def _policy(script: str) -> str:
    """Return the content security policy; charts bring style attributes, which a digest cannot allow."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"script-src 'sha256-{digest}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; {own}; img-src data:; base-uri 'none'; form-action 'none'"


def _text(name: str) -> str:
    return files("gates.report").joinpath(name).read_text(encoding="utf-8")
