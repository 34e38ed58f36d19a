"""What a verdict says, in the order people need it; every form for people is laid out from this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gates.attribution.severity import by_severity, worsening
from gates.claim import claim_key
from gates.render.figures import accepted, bounds, by_ratio, change, difference, format_value, knob_value, subject

Document = Mapping[str, Any]

_BECAUSE = ("first_failing_stage", "bottleneck", "counterfactual", "cohort")
"""Reasons that say where a regression is, in this order."""
_SHOWN_APART = (*_BECAUSE, "blocking_claims_hold")
"""Reasons that have a place of their own."""
IMPROVED_SHOWN = 5
COLUMNS = ("metric", "cell", "baseline", "candidate", "change", "bounds", "accepted", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The parts of a verdict in words; an empty part is not printed."""

    decision: str
    basis: str
    headline: str
    claims: tuple[Document, ...]
    """What decides first, and of each kind the worst first."""
    several: bool
    """Whether there is more than one cell, so that each figure names its own."""
    cells: tuple[str, ...]
    """One line per cell where there are several."""
    sustained: tuple[str, ...]
    improved: tuple[str, ...]
    failing: str
    """First failing stage and bottleneck class."""
    because: tuple[str, ...]
    owners: tuple[str, ...]
    risks: tuple[Document, ...]
    """Rows of the owner and risk map."""
    undo: tuple[str, ...]
    patch: str | None
    knobs: tuple[Document, ...]
    effects: tuple[str, ...]
    notes: tuple[str, ...]
    identity: tuple[str, ...]
    """Tool, plan and evidence digests."""


def tell(document: Document) -> Story:
    """Return the story of a verdict document (the in-toto statement)."""
    predicate = document["predicate"]
    claims = tuple(sorted(by_severity(predicate["claims"]), key=_interest))
    several = len(predicate["per_trace"]) > 1
    mitigation = predicate["mitigation"]
    return Story(
        decision=predicate["decision"],
        basis=predicate["basis"],
        headline=headline(predicate),
        several=several,
        claims=claims,
        cells=tuple(_cells(predicate)),
        sustained=tuple(_sustained(predicate["sustained"])),
        improved=tuple(_improved(predicate, claims, several=several)),
        failing=_failing(predicate),
        because=tuple(message for code in _BECAUSE for message in _message(predicate, code)),
        owners=tuple(_owners(predicate)),
        risks=tuple(predicate["owners"]),
        undo=tuple(_undo(predicate)),
        patch=mitigation["patch"] if mitigation is not None else None,
        knobs=tuple(predicate["knobs"]),
        effects=tuple(_effects(predicate)),
        notes=tuple(_notes(predicate)),
        identity=tuple(_identity(predicate)),
    )


def headline(predicate: Document) -> str:
    """Return what decides, in one sentence: a finding against the candidate (requests it refuses), the worst claim, or the first reason."""
    basis = predicate["basis"]
    cells = [cell for cell in predicate["per_trace"] if cell["basis"] == basis]
    blocking = by_severity(claim for cell in cells for claim in cell["claims"] if claim["blocking"])
    if basis == "regression" and (against := _finding_against(cells)):
        return against
    if basis == "regression" and blocking and blocking[0]["outcome"] == "disproved":
        return f"{_place(blocking[0])} is {_worse(blocking[0])} ({_arms(blocking[0])}; {accepted(blocking[0])} accepted)"
    if basis == "inconclusive" and blocking and blocking[0]["outcome"] == "undecided":
        undecided = sum(claim["outcome"] == "undecided" for claim in blocking)
        why = blocking[0]["reason"] or f"{change(blocking[0])}, {bounds(blocking[0])}"
        return f"{undecided} of {len(blocking)} blocking claims are undecided; {_place(blocking[0])}: {why}"
    if basis == "proven_safe" and blocking:
        nearest = min(blocking, key=lambda claim: -(worsening(claim) or 0.0) / (claim["margin"] or 1.0))
        limit = f"{change(nearest)} ({accepted(nearest)} accepted)"
        return f"all {len(blocking)} blocking claims hold; nearest to its limit: {_place(nearest)}, {limit}"
    return str(predicate["reasons"][0]["message"])


def _finding_against(cells: list[Document]) -> str | None:
    """Return the first finding that disproves a cell by itself, with its cell; reasons hold findings before claims."""
    for cell in cells:
        reason = cell["reasons"][0]
        if reason["code"] != "claim_disproved":
            return f"{cell['trace']} / {cell['hardware']}: {reason['message']}"
    return None


def columns(several: bool) -> tuple[str, ...]:
    """Return the columns of a table of claims; the cell is named only where there are several."""
    return COLUMNS if several else tuple(name for name in COLUMNS if name != "cell")


def claim_row(claim: Document, several: bool) -> tuple[str, ...]:
    """Return a claim's table row, as `columns` has it."""
    values = (format_value(claim[arm], claim["unit"]) for arm in ("baseline", "candidate"))
    outcome = claim["outcome"] if claim["blocking"] else f"{claim['outcome']} (advisory)"
    if claim["reason_code"] == "worsening_not_significant" and claim["blocking"]:
        outcome += f" (adjusted p {claim['adjusted_p']:.2g})"
    cell = (f"{claim['trace']} / {claim['hardware']}",) if several else ()
    return (subject(claim), *cell, *values, change(claim), bounds(claim), accepted(claim), outcome)


def knob_change(knob: Document) -> str:
    """Return a changed knob with both values."""
    return f"{knob['knob']}: {knob_value(knob['baseline'])} -> {knob_value(knob['candidate'])}"


def _effects(predicate: Document) -> Iterator[str]:
    """Yield each knob's effect on what decided, and the strongest one on each further metric.

    ``gemm.tile: TTFT p99 on chat / h100-sxm +23.4 % [+21.9 %, +24.8 %] (98 % of the change)``
    """
    explained = next(cell for cell in predicate["per_trace"] if cell["basis"] == predicate["basis"])
    claims: dict[str, Any] = {claim_key(claim["id"], claim["trace"], claim["hardware"]): claim for claim in explained["claims"]}
    for row in _told_effects(predicate["attribution"]):
        claim = claims.get(row["metric"])
        about = row["metric"] if claim is None else subject(claim)
        if row["effect"] is None:
            yield f"{row['knob']}: effect on {about} unknown ({row['method']})"
            continue
        amount = _effect(row["effect"], claim)
        if row["interval"] is not None:
            amount += f" [{', '.join(_effect(row['interval'][end], claim) for end in ('lower', 'upper'))}]"
        share = "" if row["share"] is None else f" ({row['share'] * 100:.0f} % of the change)"
        yield f"{row['knob']}: {about} {amount}{share}"


def _told_effects(rows: Sequence[Document]) -> Iterator[Document]:
    by_metric: dict[str, list[Document]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], []).append(row)
    for place, own in enumerate(by_metric.values()):
        yield from own if place == 0 else [max(own, key=lambda row: abs(row["effect"] or 0.0))]


def _effect(effect: float, claim: Document | None) -> str:
    if claim is not None and claim["scale"] == "difference":
        return difference(effect, claim["unit"])
    return by_ratio(effect + 1.0)


def _interest(claim: Document) -> int:
    """Return where a claim stands in a table: what decides, then advisory losses, then what holds."""
    order = ("disproved", "undecided", None, "holds") if claim["blocking"] else (None, None, "disproved", None, "undecided", "holds")
    return order.index(claim["outcome"])


def _place(claim: Document) -> str:
    return f"{subject(claim)} on {claim['trace']} / {claim['hardware']}"


def _arms(claim: Document) -> str:
    return f"{format_value(claim['baseline'], claim['unit'])} -> {format_value(claim['candidate'], claim['unit'])}"


def _worse(claim: Document) -> str:
    amount = change(claim)
    if claim["scale"] == "difference":
        return f"worse by {amount.lstrip('+-')}"
    return f"{amount.removeprefix('x ')} times the baseline's" if amount.startswith("x ") else f"{amount.lstrip('+-')} worse"


def _cells(predicate: Document) -> Iterator[str]:
    if len(predicate["per_trace"]) < 2:
        return
    for cell in predicate["per_trace"]:
        where = ", ".join(filter(None, (cell["first_failing_stage"], cell["bottleneck_class"])))
        suffix = f" ({where})" if where else ""
        yield f"{cell['trace']} / {cell['hardware']} / {cell['model']}: {cell['decision']}, {cell['basis']}{suffix}"


def _sustained(sustained: Document | None) -> Iterator[str]:
    """Yield the two headline figures: MFU, and memory stall by layer type where it is above 0."""
    if sustained is None:
        return
    peak = format_value(sustained["reference_flops_per_s"]["candidate"], "FLOP/s")
    yield f"MFU {_pair(sustained['mfu_ratio'])} of {peak}"
    stalls = [
        f"{layer} {_pair(pair)}"
        for layer, pair in dict(sustained["memory_stall_ratio"]).items()
        if any((pair[side] or 0.0) >= 0.0005 for side in ("baseline", "candidate"))
    ]
    if stalls:
        yield "memory stall: " + ", ".join(stalls)


def _pair(pair: Document) -> str:
    return f"{format_value(pair['baseline'], 'fraction')} -> {format_value(pair['candidate'], 'fraction')}"


def _improved(predicate: Document, claims: tuple[Document, ...], *, several: bool) -> Iterator[str]:
    """Yield what got better, then once why that is not enough."""
    by_id = {claim["id"]: claim for claim in claims}
    rows = predicate["improved"]
    found = [by_id[row["claim"]] for row in rows if row["claim"] in by_id]
    yield from (f"{_place(claim) if several else subject(claim)} {change(claim)} ({_arms(claim)})" for claim in found[:IMPROVED_SHOWN])
    if len(found) > IMPROVED_SHOWN:
        yield f"and {len(found) - IMPROVED_SHOWN} more"
    yield from dict.fromkeys(row["why_not_enough"] for row in rows if row["why_not_enough"])


def _failing(predicate: Document) -> str:
    stage, found = predicate["first_failing_stage"], predicate["bottleneck_class"]
    return f"{stage} ({found})" if stage and found else stage or found or ""


def _message(predicate: Document, code: str) -> Iterator[str]:
    return (reason["message"] for reason in predicate["reasons"] if reason["code"] == code)


def _owners(predicate: Document) -> Iterator[str]:
    """Yield each owner with contact and what they own."""
    grouped: dict[tuple[str, str | None, str | None], list[str]] = {}
    for row in predicate["owners"]:
        grouped.setdefault((row["owner"], row.get("contact"), row.get("escalation")), []).append(row["finding"])
    for (owner, contact, escalation), findings in grouped.items():
        reached = f"{f' <{contact}>' if contact else ''}{f', else {escalation},' if escalation else ''}"
        yield f"{owner}{reached} for {', '.join(findings)}"


def _undo(predicate: Document) -> Iterator[str]:
    mitigation = predicate["mitigation"]
    if mitigation is None:
        return
    by_knob = {knob["knob"]: knob for knob in predicate["knobs"]}
    for name in mitigation["revert"]:
        if name in by_knob:
            knob = by_knob[name]
            since = f", changed in {knob['commit']}" if knob.get("commit") else ""
            yield f"{name}: {knob_value(knob['candidate'])} -> {knob_value(knob['baseline'])}{since}"
        else:
            yield name
    narrower = mitigation.get("narrower")
    if narrower is not None:
        parts = [
            *(f"undo {name}" for name in narrower["revert"]),
            *(f"{name} = {knob_value(value)}" for name, value in narrower["set"].items()),
        ]
        yield f"or less: {', '.join(parts)} releases as well (mitigation.narrower.patch)"
    verified = f"verified by replay: {mitigation['decision_after']}" if mitigation["verified"] else "not verified"
    yield f"{verified}; cost to revert: {mitigation['revert_cost']}"
    yield str(mitigation["rollback_boundary"])


def _notes(predicate: Document) -> Iterator[str]:
    """Yield what limits the verdict: reasons that are about no claim, fallbacks, warnings of claims."""
    decides = headline(predicate)
    for reason in predicate["reasons"]:
        if "claim" not in reason and reason["code"] not in _SHOWN_APART and not decides.endswith(reason["message"]):
            yield str(reason["message"])
    for knob in predicate["knobs"]:
        if knob.get("fallback_reason"):
            yield f"{knob['knob']} asks for {knob['requested']} and gets {knob['effective']}: {knob['fallback_reason']}"
    warnings = Counter(warning for claim in predicate["claims"] for warning in claim["warnings"])
    for warning, count in warnings.items():
        yield warning if count == 1 else f"{warning} ({count} claims)"


def _identity(predicate: Document) -> Iterator[str]:
    yield f"{predicate['tool']['name']} {predicate['tool']['version']}"
    yield f"plan {predicate['plan']['digest']}"
    if predicate["evidence"] is not None:
        yield f"evidence {predicate['evidence']['digest']}"
