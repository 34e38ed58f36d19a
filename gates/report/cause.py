"""Tables of the cause: invariants of the stages, shares of the traffic and of the regression, owners and risks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from gates.report.elements import table

Document = Mapping[str, Any]


def cause_section(predicate: Document) -> list[ET.Element]:
    """Return the tables that the verdict has rows for; none where nothing was blamed."""
    made = []
    if predicate.get("stages"):
        rows = [
            [one["stage"], one["check"].replace("_", " "), "holds" if one["holds"] else str(one["evidence"])] for one in predicate["stages"]
        ]
        made.append(table("Invariants of the stages that own changed knobs", ("stage", "check", "what was found"), rows))
    if predicate.get("cohorts"):
        heading = ("dimension", "cohort", "requests", "of the traffic", "of the regression", "")
        made.append(
            table(
                "Shares of the traffic and of the regression of the figure that decided", heading, list(map(_cohort, predicate["cohorts"]))
            )
        )
    if predicate["owners"]:
        names = ("owner", "finding", "effect", "risk", "mitigation")
        made.append(table("Owners and risks", names, [[str(row.get(name) or "-") for name in names] for row in predicate["owners"]]))
    return made


def _cohort(row: Document) -> list[str]:
    shares = (f"{row[name]:.1%}" for name in ("traffic_ratio", "regression_ratio"))
    return [row["dimension"].replace("_", " "), row["cohort"], f"{row['requests']:,}", *shares, "carries it" if row["carries"] else ""]
