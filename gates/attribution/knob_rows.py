"""Rows of `knobs[]`: every knob that differs, what was asked and what runs, its owner and the cost of going back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gates.owners import Owners
from replay.lowering.kernel_plan import Decision
from replay.specs.mapping import KnobChange, shown
from replay.specs.scopes import EVERYWHERE, PHASES, Scope, parse_scope


def knob_rows(
    changes: Iterable[KnobChange], decisions: Iterable[Decision], owners: Owners, commits: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return one row per differing knob, in the order of the changes.

    `requested` and `effective` come from the candidate's kernel plan, over all places the knob's scope covers; a knob the plan
    takes no decision about (batching, tiles) is applied as it is written. `line` is the line of the candidate's file, or None;
    `commits` say which commit changed each.
    """
    taken = tuple(decisions)
    return [_row(change, [decision for decision in taken if _concerns(decision, change)], owners, commits) for change in changes]


def _row(change: KnobChange, decisions: list[Decision], owners: Owners, commits: Mapping[int, str]) -> dict[str, Any]:
    written = shown(change.candidate)
    return {
        "knob": change.knob,
        "baseline": shown(change.baseline),
        "candidate": written,
        "requested": _joined((decision.requested for decision in decisions), written),
        "effective": _joined((decision.effective for decision in decisions), written),
        "fallback_reason": _joined((decision.reason for decision in decisions if decision.reason), None),
        "owner": owners.of(change.knob).owner,
        "revert_cost": change.definition.revert_cost,
        "line": change.line,
        "commit": None if change.line is None else commits.get(change.line),
    }


def _joined(values: Iterable[str], otherwise: Any) -> Any:
    """Return the distinct values in order, or `otherwise` where there are none."""
    distinct = list(dict.fromkeys(values))
    return "; ".join(distinct) if distinct else otherwise


def _concerns(decision: Decision, change: KnobChange) -> bool:
    """Return whether a decision was taken at a place that the changed knob's scope covers."""
    name, _, place = decision.knob.partition("@")
    if name != change.definition.name:
        return False
    scope = _scope(change)
    parts = re.sub(r"\[.*\]", "", place).split(".")
    phase = next((part for part in parts if part in PHASES), None)
    layer = next((part for part in parts if part and part not in PHASES), None)
    rows = re.search(r"rows (\d+)-(\d+)", place)
    meets = rows is None or (int(rows[2]) >= scope.rows_from and int(rows[1]) <= (scope.rows_to or int(rows[1])))
    return meets and (None in (scope.layer, layer) or scope.layer == layer) and (None in (scope.phase, phase) or scope.phase == phase)


def _scope(change: KnobChange) -> Scope:
    _, marker, scope = change.knob.partition("@")
    return parse_scope(scope) if marker else EVERYWHERE
