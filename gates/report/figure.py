"""Charts: drawn by matplotlib as SVG, then made part of the page - its colours, its type, and points that are read out.

A chart is drawn about as wide as a telephone, so that its type can be read there, and grows with the page. What people wrote into
traces, mappings and owners' files stands in the page's tables; a chart's own labels are short and of plain characters, for which there
are glyphs in every font.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree as ET

from gates.report.elements import element, folded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PT = 330
"""Of the drawing: type of 8 points is then about as large as the page's small print at 380 pixels."""
TYPE_PT = 8.5
_LETTER_PT, _NUMBERS_PT, _BELOW_PT = 4.7, 46, 34
"""Room: for a letter of a row's name, left of an axis with numbers, below the axes for ticks and what they count."""
_ROLES = {
    role: f"#0000{place:02x}"
    for place, role in enumerate(
        ("ink", "line", "baseline", "candidate", "run", "good", "bad", "open", "reach", "part-1", "part-2", "part-3", "part-4"), start=1
    )
}
"""Colours that stand for the page's own in the drawing, where they are replaced by them."""
DASHES = {"baseline": (4, 2), "candidate": (1, 0), "run": (1, 0)}
"""Of the arms' lines, on and off: the arms differ in more than colour."""
MARKERS = {"baseline": "o", "candidate": "D"}
OUTCOMES = {"holds": "good", "disproved": "bad", "undecided": "open"}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_PLACES = ("d", "x", "y", "transform")
_DECIMALS = re.compile(r"-?\d+\.\d+")
"""Of places: a tenth of a point is finer than a screen shows."""
_COLOUR = {colour: f"var(--{role})" for role, colour in _ROLES.items()}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_COLOURS = re.compile("|".join(_COLOUR))


def drawing() -> AbstractContextManager[None]:
    """Return the context in which charts are made: matplotlib's settings for a page, whatever a user's own are."""
    from matplotlib import rc_context, rcParamsDefault

    settings: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if name != "backend"}
    return rc_context(settings | _SETTINGS)


def colour(role: str) -> str:
    """Return the colour that stands for a role of the page's theme in a drawing."""
    return _ROLES[role]


def label(text: str, most: int = 26) -> str:
    """Return a text that a chart can show: plain characters, cut to `most`; the chart's table has it whole."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in text)
    return plain if len(plain) <= most else plain[: most - 3] + "..."


@dataclass(slots=True, kw_only=True)
class Chart:
    """A drawing under way."""

    key: str
    """Unique in the page: the drawing's own names begin with it."""
    height_pt: float = 190
    names: Sequence[str] = ()
    """Of rows from the top, where the chart has rows: shown beside them."""
    figure: Figure = field(init=False)
    axes: Axes = field(init=False)
    _points: list[tuple[float, float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from matplotlib.figure import Figure as NewFigure

        self.figure = NewFigure(figsize=(WIDTH_PT / 72, self.height_pt / 72), dpi=72)
        left_pt = _LETTER_PT * max(map(len, self.names)) + 9 if self.names else _NUMBERS_PT
        edges = {
            "left": left_pt / WIDTH_PT,
            "right": 1 - 12 / WIDTH_PT,
            "bottom": _BELOW_PT / self.height_pt,
            "top": 1 - 6 / self.height_pt,
        }
        self.axes = self.figure.add_axes((edges["left"], edges["bottom"], edges["right"] - edges["left"], edges["top"] - edges["bottom"]))
        self.axes.spines[["top", "right"]].set_visible(False)
        if self.names:
            self.axes.set_yticks(range(len(self.names)), self.names)
            self.axes.set_ylim(len(self.names) - 0.4, -0.6)
            self.axes.grid(axis="y", visible=False)

    def point(self, x: float, y: float, text: str) -> None:
        """Add a place that is read out; `x` and `y` in the axes' data."""
        self._points.append((x, y, text))

    def logarithmic(self, side: Literal["x", "y"], written: Callable[[float], str]) -> None:
        """Make an axis logarithmic, with ticks as `written` says them: at each power of ten, and at 2 and 5 of it where those are few."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axis = self.axes.xaxis if side == "x" else self.axes.yaxis
        self.axes.set(**{f"{side}scale": "log"})
        low, high = self.axes.get_xlim() if side == "x" else self.axes.get_ylim()
        axis.set_major_locator(LogLocator(subs=(1.0,) if math.log10(high / low) > 1.5 else (1.0, 2.0, 5.0), numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        axis.set_minor_locator(NullLocator())

    def drawn(self, title: str) -> ET.Element:
        """Return the drawing as an SVG element of the page."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        target = io.StringIO()
        canvas: Any = FigureCanvasSVG(self.figure)  # its methods have no types
        canvas.print_svg(target, metadata=_NO_METADATA)
        text = target.getvalue()
        drawing = _for_page(ET.fromstring(text[text.index("<svg") :]), self.key)
        drawing.attrib |= {"role": "group", "tabindex": "0", "aria-label": title}
        drawing.extend(self._read_out())
        return drawing

    def _read_out(self) -> list[ET.Element]:
        """Return the places that are read out, over everything else."""
        made = []
        for x, y, text in self._points:
            across, up = self.axes.transData.transform((x, y))
            place = {"cx": f"{across:.1f}", "cy": f"{self.height_pt - up:.1f}", "r": "5"}
            made.append(element("circle", element("title", text), class_="hit", role="img", **place))
        return made


def figure(
    chart: Chart, caption: str, data: ET.Element, *, legend: Sequence[tuple[str, str]] = (), notes: Sequence[str] = (), broad: bool = False
) -> ET.Element:
    """Return a chart with its caption, the classes and words of its legend, notes, and the table of what it shows."""
    key = element("ul", *(element("li", words, class_=name) for name, words in legend), class_="legend") if legend else None
    reading = element("p", class_="reading", aria_live="polite")
    return element(
        "figure",
        element("figcaption", caption),
        key,
        chart.drawn(caption),
        reading,
        *(element("p", note, class_="note") for note in notes),
        folded("The same as a table", data),
        class_="broad" if broad else None,
        id=chart.key,
    )


def _for_page(node: ET.Element, key: str) -> ET.Element:
    """Return a drawing with names of its own, the page's colours and no style of its own; without what describes it to other tools."""
    for child in [child for child in node if child.tag.rpartition("}")[2] in ("metadata", "style")]:
        node.remove(child)
    node.tag = node.tag.removeprefix(_SVG)
    node.text, node.tail = (node.text if node.tag == "text" else None), None
    attributes = {kept: value for name, own in node.attrib.items() for kept, value in _attribute(node.tag, name, own, key)}
    node.attrib.clear()
    node.attrib.update(attributes)
    for child in node:
        _for_page(child, key)
    return node


def _attribute(tag: str, name: str, value: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield an attribute of a drawing as the page has it; nothing for one that the page does without."""
    if name == "id":
        if tag not in ("g", "text"):  # groups are named for people who edit drawings
            yield "id", f"{key}-{value}"
    elif name == _LINK:
        yield "href", f"#{key}-{value.removeprefix('#')}"
    elif name == "style":
        own = re.sub(r"font: ([\d.]+px)[^;]*|font-size: ([\d.]+px)|; font-family: [^;]*", _size, value) if tag == "text" else value
        yield (
            "style",
            _COLOURS.sub(lambda found: _COLOUR[found[0]], own.replace("url(#", f"url(#{key}-")).replace("; ", ";").replace(": ", ":"),
        )
    elif name in _PLACES:
        yield name, " ".join(_DECIMALS.sub(lambda found: f"{float(found[0]):.1f}", value).split())
    elif tag != "svg" or name not in ("width", "height", "version"):
        yield name, value.replace("url(#", f"url(#{key}-")


def _size(font: re.Match[str]) -> str:
    """Return what the page keeps of a font: its size."""
    size = font[1] or font[2]
    return f"font-size: {size}" if size else ""


_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "replay-gate",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": False,
    "font.family": ["DejaVu Sans"],
    "font.size": TYPE_PT,
    "axes.labelsize": TYPE_PT,
    "xtick.labelsize": TYPE_PT - 0.5,
    "ytick.labelsize": TYPE_PT - 0.5,
    "text.color": _ROLES["ink"],
    "axes.labelcolor": _ROLES["ink"],
    "axes.edgecolor": _ROLES["line"],
    "xtick.color": _ROLES["line"],
    "ytick.color": _ROLES["line"],
    "xtick.labelcolor": _ROLES["ink"],
    "ytick.labelcolor": _ROLES["ink"],
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": _ROLES["line"],
    "grid.linewidth": 0.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}
