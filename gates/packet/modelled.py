"""The evidence packet of a gate: what both arms were, what they ran, and the sheets a review asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.gate import GateResult, JudgedCell
from gates.packet.evidence import CellEvidence, cell_folders, csv_bytes, write_evidence
from gates.packet.minimal import SLICE, minimal_slice
from gates.packet.quality import quality_files
from gates.packet.requests import HARDWARE, MAPPINGS, MODEL, REQUEST, to_document
from gates.packet.windows import WINDOWS, window_rows
from replay import documents
from replay.mapping_sheet import StepShape, mapping_sheet

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.plan import PlannedCell
    from replay.assembly.run import Run
    from replay.specs.mapping import MappingSpec
    from replay.tiling.step_table import StepLimits

Document = dict[str, Any]
SHEETS = {"baseline": "baseline-mapping-sheet.csv", "candidate": "candidate-mapping-sheet.csv"}


def write_packet(result: GateResult, folder: Path) -> Document:
    """Write the packet and return the verdict's `evidence` record."""
    request = result.request
    folders = cell_folders([cell.baseline for cell in result.cells])
    written = {
        REQUEST: to_document(request, folders),
        MAPPINGS["baseline"]: request.baseline.mapping.to_document(),
        MAPPINGS["candidate"]: request.candidate.mapping.to_document(),
    }
    return write_evidence(
        folder,
        plan=result.plan.to_document(),
        claims=[claim for cell in result.cells for claim in cell.verdict.claims],
        cells=[_cell(result, cell, planned) for cell, planned in zip(result.cells, result.plan.cells, strict=True)],
        files={
            **{name: documents.pretty_json(document).encode() for name, document in written.items()},
            **_measure_next(result.cells),
            **(quality_files(result.evaluated) if result.evaluated is not None else {}),
        },
    )


def _measure_next(cells: Sequence[JudgedCell]) -> dict[str, bytes]:
    """Return the files of kernel shapes to time, over all cells."""
    from gates.resimulation.measure_next import as_files

    kinds: dict[str, dict[tuple[tuple[str, str | int], ...], dict[str, str | int]]] = {}
    for cell in cells:
        for kind, rows in cell.measure_next.items():
            kinds.setdefault(kind, {}).update({tuple(row.items()): dict(row) for row in rows})
    return {name: csv_bytes(rows) for name, rows in as_files({kind: list(rows.values()) for kind, rows in kinds.items()}).items()}


def typical_steps(run: Run, limits: StepLimits) -> tuple[StepShape, ...]:
    """Return a decode-only step and a prefill step of median size among those the replay made; a kind it never made is left out."""
    import pyarrow.compute as pc

    def median(steps: pa.Table, column: str) -> int:
        return int(pc.quantile(steps[column], 0.5, interpolation="nearest")[0].as_py())

    shapes = []
    decoding = run.steps.filter(pc.equal(run.steps["prefill_tokens"], 0))
    if decoding.num_rows:
        sequences = min(max(1, median(decoding, "decode_sequences")), limits.max_running)
        context = max(1, round(median(decoding, "decode_context_tokens") / sequences))
        shapes.append(StepShape(name="decode", decode_sequences=sequences, context_tokens=context))
    prefilling = run.steps.filter(pc.greater(run.steps["prefill_tokens"], 0))
    if prefilling.num_rows:
        shapes.append(StepShape(name="prefill", prefill_tokens=min(median(prefilling, "prefill_tokens"), limits.max_batched_tokens)))
    return tuple(shapes)


def _cell(result: GateResult, cell: JudgedCell, planned: PlannedCell) -> CellEvidence:
    """Return a cell's evidence; both sheets describe the baseline's typical steps, so that they can be compared line by line."""
    replayer = cell.replayer
    files: dict[str, bytes | pa.Table] = {
        MODEL: documents.pretty_json(replayer.model.to_document()).encode(),
        HARDWARE: documents.pretty_json(replayer.hardware.to_document()).encode(),
    }
    arms: tuple[tuple[str, MappingSpec], ...] = (
        ("baseline", result.request.baseline.mapping),
        ("candidate", result.request.candidate.mapping),
    )
    for arm, mapping in arms:
        compiled = replayer.schedule(mapping)
        steps = typical_steps(cell.baseline, compiled.table.limits)
        files[SHEETS[arm]] = mapping_sheet(compiled, replayer.hardware, mapping, steps)
    files[WINDOWS] = csv_bytes(
        [row for arm, run in (("baseline", cell.baseline), ("candidate", cell.candidate)) for row in window_rows(arm, run)]
    )
    found = minimal_slice(cell, planned, (arms[0][1], arms[1][1]))
    if found is not None:
        files[f"{SLICE}.parquet"], files[f"{SLICE}.json"] = found.requests, documents.pretty_json(found.to_document()).encode()
    return CellEvidence(baseline=cell.baseline, candidate=cell.candidate, files=files)
