"""render_report(packet) -> the page of a verdict: what was decided first, then what it rests on, each chart with its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from gates.packet.packet import EVIDENCE, VERDICT, Packet
from gates.render.story import tell
from gates.report.attribution import attribution_section
from gates.report.cause import cause_section
from gates.report.claims import claims_section
from gates.report.cohorts import cohorts_section
from gates.report.elements import element, page
from gates.report.figure import drawing
from gates.report.foot import evidence_section, mapping_section
from gates.report.layers import layers_section
from gates.report.roofline import roofline_section
from gates.report.shift import shift_section
from gates.report.source import CellTables, cell_tables, own_evidence
from gates.report.tails import tails_section
from gates.report.top import head, mitigation, why
from gates.report.windows import windows_section
from replay import documents

if TYPE_CHECKING:
    from gates.render.story import Story

Document = Mapping[str, Any]
Section = tuple[str, str, list[ET.Element]]
"""Key, title and content."""
Part = Callable[[CellTables, Document, Document, str], list[ET.Element]]
"""Returns a cell's part of a section, of its tables, its verdict, the plan and a key of its own."""
MOST_CELLS = 3
"""Cells with charts: a page stays small enough to attach to a ticket."""


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
    evidence = own_evidence(packet, predicate["evidence"])
    tables = cell_tables(evidence, len(predicate["per_trace"]))
    with drawing():
        content = list(_content(predicate, story, tables, sorted(name for name in evidence.names if name.startswith(f"{EVIDENCE}/"))))
    title = f"{story.decision.upper()} ({story.basis}): {predicate['per_trace'][0]['trace']}"
    return page(title, content)


def _content(predicate: Document, story: Story, tables: tuple[CellTables, ...], files: Sequence[str]) -> Iterator[ET.Element]:
    yield from head(predicate, story)
    sections = [
        ("undo", "What to undo", mitigation(story)),
        ("claims", "Claims", claims_section(story, predicate["per_trace"])),
        ("why", "Why", why(story)),
        ("attribution", "Attribution", attribution_section(predicate)),
        ("cause", "Where it comes from", cause_section(predicate)),
        *_by_cell(predicate, tables),
        ("mapping", "What differs", mapping_section(predicate, tables)),
        ("evidence", "Evidence", evidence_section(predicate, files)),
    ]
    there = [(key, title, content) for key, title, content in sections if content]
    links = (element("li", element("a", title, href=f"#{key}")) for key, title, _ in there)
    yield element("nav", element("ul", *links), aria_label="Sections")
    reading = "Point at the marks of a chart, or give it the focus and use the arrow keys, to read its figures; each has its table, too."
    yield element("p", reading, class_="note")
    for key, title, content in there:
        yield element("section", element("h2", title), *content, id=key)


def _by_cell(predicate: Document, tables: Sequence[CellTables]) -> Iterator[Section]:
    """Yield the sections that have a part for each cell: the cells with the verdict's own basis first, as many as a page holds."""
    cells = list(zip(predicate["per_trace"], tables, strict=True))
    order = sorted(range(len(cells)), key=lambda place: cells[place][0]["basis"] != predicate["basis"])[:MOST_CELLS]
    left_out = len(cells) - len(order)
    for key, title, part in _PARTS:
        content = []
        for place in order:
            told, found = cells[place]
            if len(cells) > 1:
                content.append(element("h3", f"{told['trace']} / {told['hardware']} / {told['model']}"))
            content += part(found, told, predicate["plan"], str(place))
        if left_out:
            content.append(element("p", f"{left_out} more cells are in the tables of claims, and in the evidence.", class_="note"))
        yield key, title, content


_PARTS: tuple[tuple[str, str, Part], ...] = (
    ("shift", "Shift by quantile", lambda found, told, plan, key: shift_section(found, told["claims"], plan, key)),
    ("tails", "Tails", lambda found, told, plan, key: tails_section(found, key)),
    ("windows", "Over time", lambda found, told, plan, key: windows_section(found, key)),
    ("layers", "Where the time goes", lambda found, told, plan, key: layers_section(found, key)),
    ("roofline", "Roofline", lambda found, told, plan, key: roofline_section(found, key)),
    ("cohorts", "Cohorts", lambda found, told, plan, key: cohorts_section(found)),
)
