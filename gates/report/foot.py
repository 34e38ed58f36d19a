"""What differs between the mappings, and the evidence: what was read, what guards the release, how to compute the verdict again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from gates.render.figures import format_value, knob_value, subject
from gates.report.elements import element, folded, table
from gates.report.source import ARMS, CellTables
from replay.units import format_seconds

Document = Mapping[str, Any]
_FIELDS = ("ops", "backend", "tile", "split", "weights_format", "activations_format", "kv_format", "bottleneck_class")
SAME = 1e-9
"""Relative difference of times below which they are equal: rounding."""


def mapping_section(predicate: Document, tables: Sequence[CellTables]) -> list[ET.Element]:
    """Return the knobs that differ and the kernels that do so in consequence."""
    knobs = predicate["knobs"]
    if not knobs:
        return [element("p", "No knob differs, or the mappings are not known: measured runs need not name them.")]
    made = [table("Knobs that differ", ("knob", "baseline", "candidate", "takes effect as", "owner", "cost to revert"), _knobs(knobs))]
    for cell, found in zip(predicate["per_trace"], tables, strict=True):
        rows = list(kernel_rows(found))
        if rows:
            caption = f"Kernels that differ in typical steps on {cell['trace']} / {cell['hardware']}"
            made.append(table(caption, ("step and kernel", "what", "time"), rows))
    return made


def _knobs(knobs: Sequence[Document]) -> Iterator[list[str]]:
    for knob in knobs:
        effective = knob_value(knob["effective"])
        if knob.get("fallback_reason"):
            effective += f" (asked for {knob_value(knob['requested'])}: {knob['fallback_reason']})"
        yield [knob["knob"], knob_value(knob["baseline"]), knob_value(knob["candidate"]), effective, knob["owner"], knob["revert_cost"]]


def kernel_rows(cell: CellTables) -> Iterator[list[str]]:
    """Yield the kernels of the typical steps that differ between the arms: what of them does, and both times."""
    arms = [{(row["step"], row["kernel"]): row for row in cell.sheets.get(arm, ())} for arm in ARMS]
    for step, kernel in dict.fromkeys([*arms[0], *arms[1]]):
        pair = [found.get((step, kernel)) for found in arms]
        before, after = pair
        times = " -> ".join("-" if row is None else format_seconds(float(row["time_s"])) for row in pair)
        if before is None or after is None:
            yield [f"{step}: {kernel}", "only in the candidate" if before is None else "only in the baseline", times]
            continue
        changed = [
            f"{name.replace('_', ' ')} {before[name] or '-'} -> {after[name] or '-'}" for name in _FIELDS if before[name] != after[name]
        ]
        if changed or abs(float(after["time_s"]) - float(before["time_s"])) > SAME * float(before["time_s"]):
            yield [f"{step}: {kernel}", "; ".join(changed) or "its time alone", times]


def evidence_section(predicate: Document, files: Sequence[str]) -> list[ET.Element]:
    """Return how to compute the verdict again, what it rests on, and the limits to watch after a release."""
    made = [*_reproduce(predicate), _inputs(predicate)]
    if predicate["guardrails"]:
        made.append(folded("Limits to watch after a release", _guardrails(predicate["guardrails"])))
    if files:
        made.append(folded(f"{len(files)} files of evidence", table("Evidence", ("file",), [[name] for name in files])))
    return made


def _reproduce(predicate: Document) -> Iterator[ET.Element]:
    evidence, plan = predicate["evidence"], predicate["plan"]
    if evidence is None:
        yield element("p", "There is no evidence: nothing could be replayed or read, so the verdict cannot be computed again.")
    else:
        yield element("p", "From the folder that holds verdict.json, this computes the verdict again and compares it byte for byte:")
        yield element("pre", evidence["reproduce"])
    facts = [("Tool", f"{predicate['tool']['name']} {predicate['tool']['version']}"), ("Plan", plan["digest"])]
    facts += [] if evidence is None else [("Evidence", evidence["digest"])]
    facts += [
        ("Seed", str(plan["seed"])),
        ("Replicates", f"{plan['replicates']:,} resamples, {plan['resimulations']} to {plan['max_resimulations']} replays"),
    ]
    fidelity = predicate["fidelity"]
    facts += (
        [] if fidelity is None else [("Costs of kernels", ", ".join(f"{name}: {how}" for name, how in fidelity["by_hardware"].items()))]
    )
    yield element("dl", *(element(tag, text) for pair in facts for tag, text in zip(("dt", "dd"), pair, strict=True)), class_="facts")


def _inputs(predicate: Document) -> ET.Element:
    rows = [
        [
            row["role"].replace("_", " "),
            row["name"],
            row["digest"].removeprefix("sha256:")[:12],
            *("-" if row[name] is None else f"{row[name]:,}" for name in ("rows", "dropped")),
        ]
        for row in predicate["inputs"]
    ]
    return table("Inputs", ("role", "name", "SHA-256 begins", "rows", "dropped"), rows)


def _guardrails(guardrails: Sequence[Document]) -> ET.Element:
    rows = [
        [
            f"{subject(row)} on {row['trace']} / {row['hardware']}",
            f"{row['breached_when']} {format_value(row['limit'], row['unit'])}",
            row["window"],
            row["action"],
        ]
        for row in guardrails
    ]
    return table("Guardrails", ("figure", "breached when", "window", "action"), rows)
