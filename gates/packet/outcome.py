"""The files of a verdict: evidence first, then what people read, the index of it all, and the verdict last, each whole."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.packet.packet import EVIDENCE, MANIFEST, PACKET, REPORT, SIGNATURE, SUMMARY, VERDICT, files_in, index_bytes
from gates.request import GateRequest
from replay import documents

if TYPE_CHECKING:
    from gates.gate import GateResult
    from gates.measured_gate import MeasuredResult
    from gates.packet.signature import Signer
    from gates.request import MeasuredRequest

Document = dict[str, Any]


def write_outcome(result: GateResult | MeasuredResult, folder: Path, sign: Signer | None = None) -> Document:
    """Write the packet of a gate, evidence first and the verdict last, and return the verdict document.

    Where nothing could be replayed there is no evidence to write. `sign` returns the envelope of the verdict's bytes.
    """
    from gates.render.markdown import render_markdown
    from gates.report.report import render_report
    from gates.statement import to_document

    evidence, fidelity = _parts(result, folder / EVIDENCE)
    document = to_document(
        result.verdict,
        plan=result.plan,
        inputs=result.inputs,
        tool_version=version("replay-gate"),
        evidence=evidence,
        fidelity=fidelity,
    )
    documents.check(document, "verdict.v1", VERDICT)
    verdict = documents.pretty_json(document).encode()
    page = render_report(document, files_in(folder))
    files = {SUMMARY: render_markdown(document).encode(), REPORT: page, **({} if sign is None else {SIGNATURE: sign(verdict)})}
    listed = {**files, VERDICT: verdict}
    if evidence is not None:
        listed[f"{EVIDENCE}/{MANIFEST}"] = documents.read_bytes(folder / EVIDENCE / MANIFEST, "the evidence's manifest")
    for name, data in {**files, PACKET: index_bytes(listed, _traces(result.request)), VERDICT: verdict}.items():
        documents.write_atomic(folder / name, data)
    return document


def _parts(result: GateResult | MeasuredResult, folder: Path) -> tuple[Document | None, Document | None]:
    """Write the evidence, where there is any, and return its record and how far the hardware model is trusted (measured runs need none)."""
    from gates.gate import GateResult

    if not result.cells:
        return None, None
    if isinstance(result, GateResult):
        from gates.packet.modelled import write_packet

        return write_packet(result, folder), _fidelity(result)
    from gates.packet.measured import write_measured_packet

    return write_measured_packet(result, folder), None


def _traces(request: GateRequest | MeasuredRequest) -> Iterator[Document]:
    """Yield each trace once, with where it lay as seen from the project: the packet does not hold it."""
    if isinstance(request, GateRequest):
        found = [(cell.trace, cell.trace_locator) for cell in request.cells]
        found += [] if request.reference is None else [(request.reference, request.reference_locator)]
    else:
        found = [] if request.trace is None else [(request.trace, request.trace_locator)]
    for trace, place in {trace.digest: (trace, place) for trace, place in found}.values():
        yield {"name": trace.name, "digest": trace.digest, "locator": place}


def _fidelity(result: GateResult) -> Document:
    """Return how the kernels' costs are known, by accelerator and for all: what holds for most of the candidate's device time.

    The weakest accelerator stands for all.
    """
    from replay.pipeline import trusted_source
    from replay.tiling.library import SOURCES

    sources: dict[str, str] = {}
    for cell in result.cells:
        found = trusted_source(cell.replayer, result.request.candidate.mapping)
        sources[cell.replayer.hardware.name] = max(found, sources.get(cell.replayer.hardware.name, found), key=SOURCES.index)
    return {"calibration": max(sources.values(), key=SOURCES.index), "by_hardware": sources}
