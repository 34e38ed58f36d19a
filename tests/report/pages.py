"""Pages as tests read them: which elements they hold, what a figure says, what its marks read out."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "base"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None]
    children: list = field(default_factory=list)

    def all(self, tag: str | None = None, **wanted: str) -> list[Node]:
        """Return the elements below, in their order, of a tag and with attributes (``class_`` for ``class``)."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                asked = {name.rstrip("_"): value for name, value in wanted.items()}
                if tag in (None, child.tag) and all(child.attributes.get(name) == value for name, value in asked.items()):
                    found.append(child)
                found += child.all(tag, **wanted)
        return found

    def one(self, tag: str | None = None, **wanted: str) -> Node:
        """Return the only such element."""
        [found] = self.all(tag, **wanted)
        return found

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def marks(self) -> list[str]:
        """What the marks of a chart read out."""
        return [mark.text for mark in self.all("circle", class_="hit")]

    @property
    def rows(self) -> list[list[str]]:
        """Cells of the tables' rows, headings included."""
        return [[cell.text for cell in row.children] for row in self.all("tr")]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag, tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read_page(data: bytes) -> Node:
    """Return the tree of a page, every element of which is closed."""
    reader = _Reader()
    reader.feed(data.decode())
    reader.close()
    assert reader.open == [reader.root]
    return reader.root
