"""The record of a self-check: what it was made on, its rates, and until when verdicts may cite it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.checks.ages import parse_time
from gates.finding import Finding
from gates.plan import RULES, CellSpec
from gates.policy import PolicySpec
from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_document

if TYPE_CHECKING:
    from gates.selfcheck.check import Selfcheck

Document = dict[str, Any]
VALID_DAYS = 90
_WHAT = "a self-check (JSON, by `replay selfcheck`)"
_CELL_KEYS = ("trace", "trace_digest", "hardware", "hardware_digest", "model", "model_digest", "baseline_mapping_digest")


def to_document(cells: Sequence[tuple[CellSpec, Selfcheck]], policy: PolicySpec, *, seed: int, as_of: str, tool_version: str) -> Document:
    """Return the JSON form (schema `selfcheck.v1`)."""
    return {
        "schema_version": "1",
        "tool_version": tool_version,
        "as_of": as_of,
        "valid_days": VALID_DAYS,
        "policy_digest": policy.digest,
        "rules_digest": digest_document(RULES),
        "seed": str(seed),
        "cells": [{**{key: getattr(spec, key) for key in _CELL_KEYS}, **found.to_document()} for spec, found in cells],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSelfcheck:
    """A self-check that a verdict cites."""

    name: str
    """How people name the file."""
    document: Document

    @property
    def digest(self) -> str:
        """Digest of its content."""
        return digest_document(self.document)

    def expired(self, as_of: str) -> bool:
        """Return whether verdicts at a moment may no longer cite it."""
        return parse_time(as_of) > parse_time(self.document["as_of"]) + timedelta(days=self.document["valid_days"])

    def finding(self, cell: CellSpec, policy: PolicySpec, as_of: str | None) -> Finding:
        """Return what it says of one cell; it only informs, for the gate decides by its claims."""
        mine = [one for one in self.document["cells"] if all(one[key] == getattr(cell, key) for key in _CELL_KEYS[:6])]
        foreign = {
            "another policy": self.document["policy_digest"] != policy.digest,
            "other rules of the gate": self.document["rules_digest"] != digest_document(RULES),
            "other traces, accelerators or models": not mine,
        }
        if any(foreign.values()):
            what = " and ".join(name for name, differs in foreign.items() if differs)
            return _informs(
                "selfcheck_foreign", f"the self-check {self.name} was made under {what}; its error rates are not those of this gate"
            )
        if as_of is not None and self.expired(as_of):
            made, days = self.document["as_of"], self.document["valid_days"]
            return _informs("selfcheck_expired", f"the self-check {self.name} of {made} was valid for {days} days; make it again")
        return _informs("selfcheck", f"error rates of this gate on this trace ({self.name}, {self.digest[7:19]}): {_rates(mine[0])}")


def read_selfcheck(path: Path, name: str) -> CitedSelfcheck:
    """Return the self-check in a file.

    Raises:
        SpecError: it cannot be read, violates the schema `selfcheck.v1`, or was made at no time that can be read.
    """
    document = documents.read_json_object(path, _WHAT)
    documents.check(document, "selfcheck.v1", str(path))
    try:
        parse_time(document["as_of"])
    except ValueError as error:
        raise SpecError(str(path), f"as_of is {document['as_of']!r}", "an ISO time", "make the self-check again") from error
    return CitedSelfcheck(name=name, document=document)


def _rates(cell: Document) -> str:
    rows = {(row["kind"], row["level"]): row for row in cell["rows"]}
    parts = [f"rolls back {_percent(1 - rows['none', 0.0]['release']['rate'])} of unchanged mappings"]
    at_margin = rows.get(("service", cell["margin"]))
    if at_margin is not None:
        parts.append(f"releases {_percent(at_margin['release']['rate'])} of slowdowns at the margin of {_percent(cell['margin'])}")
    largest = max((level for kind, level in rows if kind == "service"), default=None)
    if largest is not None:
        row = rows["service", largest]
        parts.append(f"proves {_percent(row['regression']['rate'])} of those of {_percent(row['shift'])} worse")
    return ", ".join(parts) + f" ({rows['none', 0.0]['trials']} trials)"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"


def _informs(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="informs", stage="release_decision")
