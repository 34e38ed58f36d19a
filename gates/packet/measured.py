"""The evidence packet of a gate on measured runs: what recomputes the verdict - every run's requests and facts, plan, policy, claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gates.measured_gate import MeasuredResult
from gates.packet.evidence import write_evidence
from gates.packet.quality import quality_files
from gates.packet.requests import MAPPINGS, REQUEST, measured_document
from replay import documents
from replay.folders import parquet_bytes
from replay.ingress.measured.measured_run import MeasuredFacts, MeasuredRun, ReportedFigure

Document = dict[str, Any]
_TABLES = ("requests", "steps", "token_gaps")


def write_measured_packet(result: MeasuredResult, folder: Path) -> Document:
    """Write the packet and return the verdict's `evidence` record."""
    return write_evidence(
        folder,
        plan=result.plan.to_document(),
        claims=[claim for cell in result.cells for claim in cell.verdict.claims],
        cells=(),
        files={**dict(_files(result)), **(quality_files(result.evaluated) if result.evaluated is not None else {})},
    )


def run_from_files(facts: Document, tables: dict[str, Any]) -> MeasuredRun:
    """Return the run of its JSON form and its tables by name, those that it has."""
    fields = dict(facts)
    reported, is_summary = fields.pop("reported"), fields.pop("is_summary")
    if fields["offered_rate_per_s"] == "inf":
        fields["offered_rate_per_s"] = float("inf")
    fields["settings"], fields["notes"] = tuple(fields["settings"].items()), tuple(fields["notes"])
    figures = tuple(ReportedFigure(**one) for one in reported)
    return MeasuredRun(facts=MeasuredFacts(**fields), reported=figures, is_summary=is_summary, **tables)


def table_places(place: str) -> dict[str, str]:
    """Return the file of each table of a run; one that the run lacks has none."""
    return {name: f"{place}.{name}.parquet" for name in _TABLES}


def _files(result: MeasuredResult) -> Iterator[tuple[str, bytes]]:
    request = result.request
    arms = {"baseline": request.baseline, "candidate": result.candidate}
    places = {id(run): f"{role}/run-{index}" for role, arm in arms.items() for index, (_, run) in enumerate(arm.runs, start=1)}
    for number, runs_of_set in enumerate(request.archive.sets if request.archive is not None else (), start=1):
        places |= {id(run): f"archive/set-{number}-run-{index}" for index, (_, run) in enumerate(runs_of_set, start=1)}
    yield REQUEST, documents.pretty_json(measured_document(request, result.candidate, lambda run: places[id(run)])).encode()
    yield "policy.json", documents.pretty_json(request.policy.to_document()).encode()
    for role, arm in arms.items():
        if arm.mapping is not None:
            yield MAPPINGS[role], documents.pretty_json(arm.mapping.to_document()).encode()
    sets = request.archive.sets if request.archive is not None else ()
    for _, run in (*request.baseline.runs, *result.candidate.runs, *(one for runs in sets for one in runs)):
        yield from _run_files(places[id(run)], run)


def _run_files(place: str, run: MeasuredRun) -> Iterator[tuple[str, bytes]]:
    reported = [{"metric": one.metric, "percentile": one.percentile, "value_s": one.value_s} for one in run.reported]
    facts = {**run.facts.to_document(), "is_summary": run.is_summary, "reported": reported}
    yield f"{place}.json", documents.pretty_json(facts).encode()
    for name, file in table_places(place).items():
        table = getattr(run, name)
        if table is not None:
            yield file, parquet_bytes(table)
