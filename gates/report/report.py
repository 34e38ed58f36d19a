"""render_report(packet) -> the page of a verdict: what was decided first, then what it rests on, each chart with its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from gates.packet.packet import VERDICT, Packet
from gates.render.story import tell
from gates.report.claims import claims_section
from gates.report.elements import element, page
from gates.report.figure import drawing
from gates.report.source import CellTables, cell_tables
from gates.report.top import head, mitigation, why
from replay import documents

if TYPE_CHECKING:
    from gates.render.story import Story

Document = Mapping[str, Any]


def read_verdict(packet: Packet) -> Document:
    """Return the verdict of a packet.

    Raises:
        SpecError: it is none, or one of another version.
    """
    where = f"{packet.where}: {VERDICT}"
    document: Document = documents.parse_json(documents.decode(packet.read(VERDICT), where, "a verdict"), where)
    documents.check(document, "verdict.v1", where)
    return document


def render_report(document: Document, packet: Packet) -> bytes:
    """Return the page of a verdict document, from the evidence of its packet; what the packet does not hold, the page says in a sentence.

    Raises:
        SpecError: a file of the evidence is damaged.
    """
    predicate, story = document["predicate"], tell(document)
    tables = cell_tables(packet, len(predicate["per_trace"]))
    with drawing():
        content = list(_content(predicate, story, tables))
    title = f"{story.decision.upper()} ({story.basis}): {predicate['per_trace'][0]['trace']}"
    return page(title, content)


def _content(predicate: Document, story: Story, tables: tuple[CellTables, ...]) -> Iterator[ET.Element]:
    yield from head(predicate, story)
    sections = [
        ("why", "Why", why(story)),
        ("undo", "What to undo", mitigation(story)),
        ("claims", "Claims", claims_section(story)),
    ]
    there = [(key, title, content) for key, title, content in sections if content]
    yield element("nav", element("ul", *(element("li", element("a", title, href=f"#{key}")) for key, title, _ in there)), aria_label="Sections")
    for key, title, content in there:
        yield element("section", element("h2", title), *content, id=key)
