"""The verdict as JUnit XML: a suite per cell, a case per claim and one for the cell's verdict; nothing is ever skipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from gates.render.figures import accepted, bounds, change, format_value, subject

Document = Mapping[str, Any]

_NOT_IN_XML = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(document: Document) -> str:
    """Return the verdict document as JUnit XML.

    A disproved blocking claim and a regression are failures; an undecided blocking claim, and everything in a cell whose
    evidence is invalid, are errors. Advisory claims pass and say in their output how they came out.
    """
    predicate = document["predicate"]
    root = ElementTree.Element("testsuites", name="replay gate")
    suites = [_suite(root, cell) for cell in predicate["per_trace"]]
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, cell: Document) -> ElementTree.Element:
    name = _clean(f"{cell['trace']} / {cell['hardware']} / {cell['model']}")
    suite = ElementTree.SubElement(root, "testsuite", name=name)
    _verdict_case(suite, name, cell)
    for claim in cell["claims"]:
        _claim_case(suite, name, claim, cell["basis"])
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    return suite


def _verdict_case(suite: ElementTree.Element, name: str, cell: Document) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="verdict")
    kind = {"proven_safe": None, "regression": "failure"}.get(cell["basis"], "error")
    body = "\n".join(reason["message"] for reason in cell["reasons"])
    _outcome(case, kind, cell["basis"], cell["reasons"][0]["message"], body)


def _claim_case(suite: ElementTree.Element, name: str, claim: Document, basis: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=name, name=_clean(f"{subject(claim)} [{claim['id']}]"))
    figures = (
        f"{format_value(claim['baseline'], claim['unit'])} -> {format_value(claim['candidate'], claim['unit'])}, "
        f"{change(claim)} (bounds {bounds(claim)}; {accepted(claim)} accepted)"
    )
    body = "\n".join(filter(None, (figures, claim["reason"], claim["disproof_criterion"], claim["rollback_boundary"], *claim["warnings"])))
    if not claim["blocking"]:
        _outcome(case, None, claim["outcome"], "", f"advisory: {claim['outcome']}\n{body}")
    elif basis == "invalid_evidence":
        _outcome(case, "error", basis, "the evidence of this cell cannot support a decision", body)
    else:
        kind = {"holds": None, "disproved": "failure"}.get(claim["outcome"], "error")
        _outcome(case, kind, claim["outcome"], figures, body)


def _outcome(case: ElementTree.Element, kind: str | None, code: str, message: str, body: str) -> None:
    """Add a failure, an error, or for a pass the figures as output."""
    if kind is None:
        ElementTree.SubElement(case, "system-out").text = _clean(body)
    else:
        ElementTree.SubElement(case, kind, type=code, message=_clean(message)).text = _clean(body)


def _clean(text: str) -> str:
    """Return text without the characters that XML cannot hold."""
    return _NOT_IN_XML.sub("?", text)
