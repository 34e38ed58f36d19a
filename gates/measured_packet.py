"""The evidence packet of a gate on measured runs: what recomputes the verdict - every run's requests and facts, plan, policy, claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gates.evidence import write_evidence
from gates.measured_gate import MeasuredResult
from replay import documents
from replay.folders import parquet_bytes

Document = dict[str, Any]


def write_measured_packet(result: MeasuredResult, folder: Path) -> Document:
    """Write the packet and return the verdict's `evidence` record."""
    return write_evidence(
        folder,
        plan=result.plan.to_document(),
        claims=[claim for cell in result.cells for claim in cell.verdict.claims],
        cells=(),
        files=dict(_files(result)),
    )


def _files(result: MeasuredResult) -> Iterator[tuple[str, bytes]]:
    yield "policy.json", documents.pretty_json(result.request.policy.to_document()).encode()
    for arm, source in (("baseline", result.request.baseline), ("candidate", result.candidate)):
        if source.mapping is not None:
            yield f"{arm}-mapping.json", documents.pretty_json(source.mapping.to_document()).encode()
    for number, cell in enumerate(result.cells, start=1):
        for arm, runs in (("baseline", cell.baseline), ("candidate", cell.candidate)):
            for index, run in enumerate(runs, start=1):
                place = f"cell-{number}/{arm}-{index}"
                reported = [{"metric": one.metric, "percentile": one.percentile, "value_s": one.value_s} for one in run.reported]
                facts = {**run.facts.to_document(), "is_summary": run.is_summary, "reported": reported}
                yield f"{place}.json", documents.pretty_json(facts).encode()
                yield f"{place}.requests.parquet", parquet_bytes(run.requests)
                if run.steps is not None:
                    yield f"{place}.steps.parquet", parquet_bytes(run.steps)
