"""Recompute a verdict from its packet: the same request, replayed and judged here, byte for byte the same or what differs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.packet.measured import run_from_files, table_places
from gates.packet.outcome import write_outcome
from gates.packet.packet import EVIDENCE, PACKET, VERDICT, Packet, environment
from gates.packet.requests import REQUEST, from_document, measured_from_document
from gates.packet.verify import verify
from replay import documents
from replay.errors import EvidenceError, InputError, SpecError, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.gate import GateResult
    from gates.measured_gate import MeasuredResult
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.ingress.trace import Trace
    from replay.pipeline import TableCache

Document = dict[str, Any]
Progress = Callable[[str], None]
_LONGEST = 60
_CAUSES = ("tool", "inputs", "plan")
"""Parts of a verdict that say what it was made from: where they differ, that comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came out."""

    differences: tuple[str, ...]
    """``claims[0].candidate: 1.25 -> 1.26``: what the packet says, and what was computed here; none where all bytes are the same."""
    environment: tuple[str, ...]
    """The same about versions of what computed it."""

    @property
    def is_identical(self) -> bool:
        """Whether the verdict computed here has the same bytes."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlaces:
    """Where traces may lie."""

    named: tuple[Path, ...] = ()
    """Files that a person names."""
    folders: tuple[Path, ...] = ()
    """Projects that the packet's locators are relative to."""


def reproduce(packet: Packet, places: TracePlaces, out: Path, progress: Progress, cache: TableCache | None = None) -> Reproduction:
    """Return how the verdict computed here, written into the folder `out`, compares with the packet's.

    Raises:
        EvidenceError: the packet is not intact, holds no evidence, or one of its traces is not to be had.
        SpecError: something in it cannot be used.
    """
    broken = [check for check in verify(packet) if check.state == "fails"]
    if broken:
        said = "; ".join(f"{check.name}: {check.message}" for check in broken)
        raise EvidenceError(packet.where, said, "a packet as `replay gate` wrote it", "take it from where it was written (`replay verify`)")
    result = _recomputed(packet, places, progress, cache)
    write_outcome(result, out)
    before, after = packet.read(VERDICT), documents.read_bytes(out / VERDICT, "the verdict")
    if before == after:
        return Reproduction(differences=(), environment=())
    was, now = (documents.parse_json(data.decode(), VERDICT)["predicate"] for data in (before, after))
    return Reproduction(differences=tuple(_differences(_ordered(was), _ordered(now), "")), environment=tuple(_other_environment(packet)))


def _recomputed(packet: Packet, places: TracePlaces, progress: Progress, cache: TableCache | None) -> GateResult | MeasuredResult:
    place = f"{EVIDENCE}/{REQUEST}"
    if place not in packet.names:
        got = "there is no evidence to recompute the verdict from"
        raise EvidenceError(packet.where, got, f"a packet with {place}", "take the whole packet, not the verdict alone")
    document = _json(packet, place)
    find = _finder(packet, places)

    def read(name: str) -> Document:
        return _json(packet, f"{EVIDENCE}/{name}")

    def table(name: str) -> pa.Table:
        return _table(packet, f"{EVIDENCE}/{name}")

    try:
        if document["kind"] == "measured":
            from gates.measured_gate import gate_measured

            return gate_measured(measured_from_document(document, read, table, lambda name: _run(packet, name), find), progress)
        from gates.gate import gate

        modelled = from_document(document, read, table, find)
    except (KeyError, TypeError, ValueError) as error:
        got = f"it is not what this version writes ({type(error).__name__}: {error})"
        raise SpecError(f"{packet.where}: {place}", got, "a request of this version", "use the version that wrote it") from error
    return gate(modelled, progress, cache=cache)


def _json(packet: Packet, name: str) -> Document:
    where = f"{packet.where}: {name}"
    document = documents.parse_json(documents.decode(packet.read(name), where, "a file of a packet"), where)
    if not isinstance(document, dict):
        raise SpecError(where, "no JSON object", "a file as `replay gate` writes it", "take the packet as it was written")
    return document


def _table(packet: Packet, name: str) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(packet.read(name)))


def _run(packet: Packet, place: str) -> MeasuredRun:
    tables = {
        name: _table(packet, f"{EVIDENCE}/{file}") for name, file in table_places(place).items() if f"{EVIDENCE}/{file}" in packet.names
    }
    return run_from_files(_json(packet, f"{EVIDENCE}/{place}.json"), tables)


def _finder(packet: Packet, places: TracePlaces) -> Callable[[Document], Trace]:
    """Return what finds a trace by ``{name, digest}``: among the named files, else where the packet says it lay."""
    rows = _json(packet, PACKET)["traces"] if PACKET in packet.names else []
    locators = {row["digest"]: row["locator"] for row in rows if row["locator"] is not None}

    def find(wanted: Document) -> Trace:
        digest = wanted["digest"]
        paths = [*places.named, *(folder / locators[digest] for folder in places.folders if digest in locators)]
        seen = []
        for path in paths:
            trace = _trace(path, wanted["name"])
            if isinstance(trace, str):
                seen.append(trace)
            elif trace.digest == digest:
                return trace
            else:
                seen.append(f"{path} has another digest ({trace.digest[7:19]})")
        got = f"the trace {wanted['name']} is not to be had" + (f" ({'; '.join(seen)})" if seen else "")
        raise EvidenceError(packet.where, got, f"the trace with digest {digest}", "run it in the project's folder, or name it with --trace")

    return find


def _trace(path: Path, name: str) -> Trace | str:
    from replay.ingress.reader import read_trace

    try:
        return read_trace(path, name=name)
    except InputError as error:
        return f"{error.where}: {error.got}"


def _ordered(predicate: Document) -> Document:
    return {key: predicate[key] for key in (*_CAUSES, *(key for key in predicate if key not in _CAUSES))}


def _differences(was: Any, now: Any, place: str) -> Iterator[str]:
    """Yield the leaves that differ between two JSON values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*was, *now)):
            yield from _differences(was.get(key), now.get(key), f"{place}.{key}" if place else key)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from _differences(one, other, f"{place}[{index}]")
    elif was != now:
        yield f"{place}: {_short(was)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = printable(documents.pretty_json(value).strip()) if not isinstance(value, str) else printable(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _other_environment(packet: Packet) -> Iterator[str]:
    was: Document = _json(packet, PACKET)["environment"] if PACKET in packet.names else {}
    yield from _differences(was, environment(), "")


def shown(differences: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the first differences, and how many more there are."""
    more = len(differences) - most
    return (*differences[:most], *((f"and {more} more",) if more > 0 else ()))
