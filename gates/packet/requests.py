"""Requests in a packet: ``request.json`` says what a gate was asked, the files beside it hold what that was about.

Traces are not copied: a request names them by digest, and whoever recomputes the verdict hands them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gates.checks.drift import HistoryInput
from gates.finding import Finding
from gates.history.chain import History
from gates.history.rows import ClaimRow, VerdictRow
from gates.owners import OwnerMatch, OwnerRule, Owners
from gates.packet.quality import quality_from_files
from gates.policy import PolicySpec
from gates.request import Arm, Cell, GateRequest, MeasuredArm, MeasuredRequest, QualityInput, RecordedCell, RunArchive
from gates.selfcheck.document import CitedSelfcheck
from replay.catalog.hardware import hardware_from_document
from replay.ingress.model_config import model_from_document
from replay.specs.mapping import MappingSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.ingress.trace import Trace
    from replay.specs.model import ModelSpec

Document = dict[str, Any]
ReadDocument = Callable[[str], Document]
"""Returns a JSON file of the packet."""
ReadTable = Callable[[str], "pa.Table"]
"""Returns a Parquet table of the packet."""
ReadRun = Callable[[str], "MeasuredRun"]
"""Returns a measured run of the packet by its place."""
FindTrace = Callable[[Document], "Trace"]
"""Returns a trace by ``{name, digest}``."""
Runs = Sequence[tuple[str, "MeasuredRun"]]

REQUEST = "request.json"
MAPPINGS = {"baseline": "baseline-mapping.json", "candidate": "candidate-mapping.json"}
MODEL, HARDWARE = "model.json", "hardware.json"


def to_document(request: GateRequest, folders: Sequence[str]) -> Document:
    """Return the JSON form of a request; `folders` are those of its cells, which hold their models and accelerators."""
    return {
        "kind": "modelled",
        **{role: _arm_document(arm) for role, arm in (("baseline", request.baseline), ("candidate", request.candidate))},
        "cells": [
            {"folder": folder, "trace": _named_trace(cell.trace, cell.trace_name)}
            for folder, cell in zip(folders, request.cells, strict=True)
        ],
        "selfcheck": None if request.selfcheck is None else {"name": request.selfcheck.name, "document": request.selfcheck.document},
        "reference": None if request.reference is None else _named_trace(request.reference, request.reference_name),
        "quality": None if request.quality is None else [request.quality.baseline_name, request.quality.candidate_name],
        **_rules_document(request),
    }


def from_document(document: Document, read: ReadDocument, read_table: ReadTable, find: FindTrace) -> GateRequest:
    """Return the request of a JSON form.

    Raises:
        InputError: a file of the packet cannot be used, or a trace is not found.
    """
    arms = {role: _arm(document[role], read(name), name) for role, name in MAPPINGS.items()}
    return GateRequest(
        baseline=arms["baseline"],
        candidate=arms["candidate"],
        cells=tuple(_cell(cell, read, find) for cell in document["cells"]),
        selfcheck=None if document["selfcheck"] is None else CitedSelfcheck(**document["selfcheck"]),
        reference=None if document["reference"] is None else find(document["reference"]),
        quality=None if document["quality"] is None else _quality(document["quality"], read, read_table),
        reference_name=None if document["reference"] is None else document["reference"]["file"],
        **_rules(document),
    )


def measured_document(request: MeasuredRequest, candidate: MeasuredArm, place_of: Callable[[MeasuredRun], str]) -> Document:
    """Return the JSON form of a request about measured runs; `place_of` says where the packet keeps a run."""

    def named(runs: Runs) -> list[Document]:
        return [{"name": name, "place": place_of(run)} for name, run in runs]

    arms = {"baseline": request.baseline, "candidate": candidate}
    archive = request.archive
    return {
        "kind": "measured",
        **{
            role: {
                "label": arm.label,
                "mapping_name": arm.mapping_name,
                "lines": None if arm.mapping is None else _lines(arm.mapping),
                "runs": named(arm.runs),
            }
            for role, arm in arms.items()
        },
        "trace": None if request.trace is None else _named_trace(request.trace, request.trace_name),
        "quality": None if request.quality is None else [request.quality.baseline_name, request.quality.candidate_name],
        "hardware": request.hardware,
        "model": request.model,
        "archive": None if archive is None else {"label": archive.label, "sets": [named(runs) for runs in archive.sets]},
        **_rules_document(request),
    }


def measured_from_document(
    document: Document, read: ReadDocument, read_table: ReadTable, read_run: ReadRun, find: FindTrace
) -> MeasuredRequest:
    """Return the request about measured runs of a JSON form; errors as `from_document`."""

    def runs(rows: Sequence[Document]) -> tuple[tuple[str, MeasuredRun], ...]:
        return tuple((row["name"], read_run(row["place"])) for row in rows)

    def arm(role: str) -> MeasuredArm:
        said, name = document[role], MAPPINGS[role]
        mapping = None if said["lines"] is None else _mapping(read(name), name, said["lines"])
        return MeasuredArm(label=said["label"], runs=runs(said["runs"]), mapping=mapping, mapping_name=said["mapping_name"])

    archive, trace = document["archive"], document["trace"]
    return MeasuredRequest(
        baseline=arm("baseline"),
        read_candidate=lambda: arm("candidate"),
        quality=None if document["quality"] is None else _quality(document["quality"], read, read_table),
        trace=None if trace is None else find(trace),
        trace_name=None if trace is None else trace["file"],
        hardware=document["hardware"],
        model=document["model"],
        archive=None if archive is None else RunArchive(label=archive["label"], sets=tuple(runs(one) for one in archive["sets"])),
        **_rules(document),
    )


def _quality(names: Sequence[str], read: ReadDocument, read_table: ReadTable) -> QualityInput:
    return QualityInput(
        baseline_name=names[0],
        baseline=quality_from_files("baseline", read, read_table),
        candidate_name=names[1],
        read_candidate=lambda: quality_from_files("candidate", read, read_table),
    )


def _rules_document(request: GateRequest | MeasuredRequest) -> Document:
    """Return what both kinds of request share: policy, owners, seed, findings about the inputs and the history."""
    return {
        "policy": request.policy.to_document(),
        "policy_name": request.policy_name,
        "owners": asdict(request.owners),
        "owners_name": request.owners_name,
        "owners_digest": request.owners_digest,
        "seed": str(request.seed),
        "as_of": request.as_of,
        "findings": [asdict(finding) for finding in request.findings],
        "history": None if request.history is None else asdict(request.history),
    }


def _rules(document: Document) -> Mapping[str, Any]:
    return {
        "policy": PolicySpec.from_document(document["policy"]),
        "policy_name": document["policy_name"],
        "owners": _owners(document["owners"]),
        "owners_name": document["owners_name"],
        "owners_digest": document["owners_digest"],
        "seed": int(document["seed"]),
        "as_of": document["as_of"],
        "findings": tuple(Finding(**finding) for finding in document["findings"]),
        "history": None if document["history"] is None else _history(document["history"]),
    }


def _owners(document: Document) -> Owners:
    rules = tuple(OwnerRule(**{**rule, "match": OwnerMatch(**rule["match"])}) for rule in document["rules"])
    fallback = None if document["fallback"] is None else OwnerMatch(**document["fallback"])
    return Owners(rules=rules, fallback=fallback, warnings=tuple(document["warnings"]))


def _history(document: Document) -> HistoryInput:
    rows = document["history"]
    history = History(
        verdicts=tuple(VerdictRow(**row) for row in rows["verdicts"]), claims=tuple(ClaimRow(**row) for row in rows["claims"])
    )
    return HistoryInput(**{**document, "history": history})


def _lines(mapping: MappingSpec) -> dict[str, int | None]:
    """Return the line of its file that sets each knob: a mapping's own JSON form leaves it out, for it changes no figure."""
    return {setting.knob: setting.line for setting in mapping.settings}


def _mapping(document: Document, where: str, lines: Mapping[str, int | None]) -> MappingSpec:
    mapping = MappingSpec.from_document(document, where)
    return replace(mapping, settings=tuple(replace(setting, line=lines[setting.knob]) for setting in mapping.settings))


def _arm_document(arm: Arm) -> Document:
    return {
        "label": arm.label,
        "lines": _lines(arm.mapping),
        "text": arm.text,
        "file": arm.file,
        "commits": {str(line): commit for line, commit in arm.commits.items()},
        "model": None if arm.model is None else arm.model.to_document(),
        "recorded": [
            {**{name: getattr(one, name) for name in one.__slots__}, "hardware": one.hardware.to_document()} for one in arm.recorded
        ],
    }


def _arm(document: Document, mapping: Document, where: str) -> Arm:
    recorded = tuple(RecordedCell(**{**one, "hardware": hardware_from_document(one["hardware"], REQUEST)}) for one in document["recorded"])
    return Arm(
        mapping=_mapping(mapping, where, document["lines"]),
        label=document["label"],
        text=document["text"],
        file=document["file"],
        commits={int(line): commit for line, commit in document["commits"].items()},
        model=None if document["model"] is None else _model(document["model"]),
        recorded=recorded,
    )


def _cell(document: Document, read: ReadDocument, find: FindTrace) -> Cell:
    folder, trace = document["folder"], document["trace"]
    return Cell(
        trace=find(trace),
        trace_name=trace["file"],
        model=_model(read(f"{folder}/{MODEL}")),
        hardware=hardware_from_document(read(f"{folder}/{HARDWARE}"), f"{folder}/{HARDWARE}"),
    )


def _model(document: Document) -> ModelSpec:
    return model_from_document(document, MODEL)


def _named_trace(trace: Trace, file: str | None) -> Document:
    return {"name": trace.name, "digest": trace.digest, "file": file}
