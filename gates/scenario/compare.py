"""Compare a verdict document with what a scenario expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = dict[str, Any]
FIELDS = {"decision": "decision", "basis": "basis", "stage": "first_failing_stage", "class": "bottleneck_class"}
"""Fields of a verdict by the name that a scenario gives them."""
NONE = "none"
"""How a scenario spells null."""


def differences(expect: Mapping[str, Any], predicate: Document) -> tuple[str, ...]:
    """Return how a verdict's predicate differs from what is expected of it, one phrase for each; empty where it is as expected."""
    return tuple(_differences(expect, predicate))


def _differences(expect: Mapping[str, Any], predicate: Document) -> Iterator[str]:
    yield from _fields(expect, predicate, "")
    if "revert" in expect:
        got = sorted((predicate["mitigation"] or {}).get("revert", ()))
        if got != sorted(expect["revert"]):
            yield f"revert: want {_shown(expect['revert'])}, got {_shown(got)}"
    better = [_metric(row) for row in predicate["improved"]]
    yield from (f"improved: {metric} is not named" for metric in expect.get("improved", ()) if metric not in better)
    reasons = predicate["reasons"]
    codes = {row["code"] for row in reasons}
    yield from (f"reasons: no {code}" for code in expect.get("reasons", ()) if code not in codes)
    yield from (f"reasons: {code} should not be there" for code in expect.get("no_reasons", ()) if code in codes)
    said = "\n".join([*(row["message"] for row in reasons), *_notes(predicate)])
    yield from (f"no reason or note says {text!r}" for text in expect.get("says", ()) if text not in said)
    yield from _cells(expect.get("per_trace", {}), predicate)


def _fields(expect: Mapping[str, Any], found: Document, where: str) -> Iterator[str]:
    for name, field in FIELDS.items():
        wanted = expect.get(name, ())
        choices = [wanted] if isinstance(wanted, str) else wanted
        if choices and (got := found[field] or NONE) not in choices:
            yield f"{where}{name}: want {' or '.join(choices)}, got {got}"


def _cells(expect: Mapping[str, Any], predicate: Document) -> Iterator[str]:
    """Yield how cells differ, each named by its trace, or by trace and accelerator."""
    for name, wanted in expect.items():
        cells = [cell for cell in predicate["per_trace"] if name in (cell["trace"], f"{cell['trace']}/{cell['hardware']}")]
        if not cells:
            yield f"no cell {name}"
        for cell in cells:
            yield from _fields(wanted, cell, f"{name}: ")


def _notes(predicate: Document) -> Iterator[str]:
    """Yield what claims that failed are told with: the worst tasks, the traffic of a bin."""
    for cell in predicate["per_trace"]:
        for claim in cell["claims"]:
            yield from claim["warnings"] if claim["outcome"] == "disproved" else ()


def _metric(row: Document) -> str:
    """Return a metric as scenarios name it: ``ttft_s.p95``, ``sustained_flops_per_s``; its trace and stratum do not matter."""
    return row["metric"] if row["percentile"] is None else f"{row['metric']}.p{row['percentile']:g}"


def _shown(knobs: Any) -> str:
    return ", ".join(knobs) or "nothing"
