"""What a page is made from: the tables of a packet's cells, or of a run, as columns of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gates.packet.modelled import SHEETS
from gates.packet.packet import EVIDENCE, MANIFEST, Packet, is_intact
from gates.packet.requests import HARDWARE, MAPPINGS, REQUEST
from gates.packet.windows import WINDOWS
from gates.statistics.blocks import Floats
from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Document = dict[str, Any]
Columns = Mapping[str, Floats]
"""Columns of numbers by name, NaN where a value is missing; all of one length."""
Rows = Sequence[Mapping[str, str]]
"""Rows of a CSV table: texts, empty where a value is missing."""
ARMS = ("baseline", "candidate")
RUN = "run"
"""The arm of a page about one run."""
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
_FACTS = ("arrival_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTables:
    """The tables of one cell by arm; what a packet does not hold is empty."""

    arms: tuple[str, ...] = ARMS
    requests: Mapping[str, Columns] = field(default_factory=dict)
    """Latencies [s], arrivals [s] and tokens of every request."""
    paired: bool = False
    """Whether both arms hold the same requests in the same order."""
    windows: Mapping[str, Columns] = field(default_factory=dict)
    layers: Mapping[str, Sequence[tuple[str, Mapping[str, float]]]] = field(default_factory=dict)
    """(layer type, its figures)."""
    sheets: Mapping[str, Rows] = field(default_factory=dict)
    """Mapping sheets: kernels of typical steps."""
    hardware: Document | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Devices over which an arm splits each kernel."""


def own_evidence(packet: Packet, evidence: Document | None) -> Packet:
    """Return the evidence of a packet that a verdict's record `evidence` is about; nothing where there is none, or none lies there.

    What an earlier gate left beside a verdict without evidence is not the verdict's.

    Raises:
        SpecError: the evidence is that of another verdict, or a file of it is not as it was written (when that is read).
    """
    place = f"{EVIDENCE}/{MANIFEST}"
    if evidence is None or place not in packet.names:
        return Packet(where=packet.where, names=frozenset(), read=packet.read)
    fix = "take the packet as it was written, or gate again"
    manifest = packet.read(place)
    if digest_bytes(manifest) != evidence["digest"]:
        raise SpecError(f"{packet.where}: {place}", "another digest than the verdict names", "the verdict's own evidence", fix)
    rows = {f"{EVIDENCE}/{row['path']}": row for row in _json(packet, place)["files"]}

    def read(name: str) -> bytes:
        data = packet.read(name)
        if not is_intact(rows[name], data):
            raise SpecError(f"{packet.where}: {name}", "another content than the manifest lists", "the file as it was written", fix)
        return data

    return Packet(where=packet.where, names=frozenset(rows), read=read)


def cell_tables(packet: Packet, cells: int) -> tuple[CellTables, ...]:
    """Return the tables of each cell of a packet's verdict, in its order; empty ones where the packet holds no evidence.

    Raises:
        SpecError: a file of the evidence is damaged.
    """
    if f"{EVIDENCE}/{REQUEST}" not in packet.names:
        return (CellTables(),) * cells
    request = _json(packet, f"{EVIDENCE}/{REQUEST}")
    found = tuple(_modelled(packet, request) if request["kind"] == "modelled" else _measured(packet, request))
    return found if len(found) == cells else (CellTables(),) * cells


def columns(rows: Rows) -> Columns:
    """Return the numbers of a CSV table by column."""
    names = list(rows[0]) if rows else []
    return {name: np.array([float(row[name]) if row[name] else np.nan for row in rows], dtype=np.float64) for name in names}


def number(row: Mapping[str, str], name: str) -> float | None:
    """Return a figure of a CSV row, None where it is missing."""
    return float(row[name]) if row.get(name) else None


def request_columns(table: pa.Table, prefix: str = "") -> Columns:
    """Return the numbers of a table of requests; the names of latencies begin with `prefix` there."""
    names = {**{name: f"{prefix}{name}" for name in LATENCIES}, **{name: name for name in _FACTS}}
    present = {name: own for name, own in names.items() if own in table.column_names}
    return {name: table[own].cast("float64").to_numpy(zero_copy_only=False).astype(np.float64) for name, own in present.items()}


def layer_rows(rows: Rows | Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, float]]]:
    """Return layer types with their figures."""
    return [
        (str(row["layer_type"]), {name: float(value) for name, value in row.items() if name not in ("arm", "layer_type")}) for row in rows
    ]


def _modelled(packet: Packet, request: Document) -> Iterator[CellTables]:
    for cell in request["cells"]:
        folder = f"{EVIDENCE}/{cell['folder']}"
        table = _parquet(packet, f"{folder}/requests.parquet")
        windows, layers = (_by_arm(_csv(packet, f"{folder}/{name}")) for name in (WINDOWS, "layers.csv"))
        yield CellTables(
            requests={arm: request_columns(table, f"{arm}_") for arm in ARMS},
            paired=True,
            windows={arm: columns([{key: value for key, value in row.items() if key != "arm"} for row in windows[arm]]) for arm in windows},
            layers={arm: layer_rows(layers[arm]) for arm in layers},
            sheets={arm: _csv(packet, f"{folder}/{name}") for arm, name in SHEETS.items()},
            hardware=_json(packet, f"{folder}/{HARDWARE}"),
            ranks={arm: _json(packet, f"{EVIDENCE}/{name}")["settings"].get("parallelism.tensor", 1) for arm, name in MAPPINGS.items()},
        )


def _measured(packet: Packet, request: Document) -> Iterator[CellTables]:
    """Yield the cells of measured runs: one for each load of the baseline, with the candidate's runs of that load."""
    loads = {arm: _by_load(packet, request[arm]["runs"]) for arm in ARMS}
    alone = len(loads["baseline"]) == len(loads["candidate"]) == 1
    for load, places in loads["baseline"].items():
        met = next(iter(loads["candidate"].values())) if alone else loads["candidate"].get(load, [])
        arms = {"baseline": places, "candidate": met}
        yield CellTables(requests={arm: tables for arm, runs in arms.items() if (tables := _pooled(packet, runs))})


def _by_load(packet: Packet, runs: Sequence[Document]) -> dict[tuple[Any, ...], list[str]]:
    found: dict[tuple[Any, ...], list[str]] = {}
    for run in runs:
        facts = _json(packet, f"{EVIDENCE}/{run['place']}.json")
        found.setdefault((facts["offered_rate_per_s"], facts["concurrency"], facts["dataset"]), []).append(run["place"])
    return found


def _pooled(packet: Packet, places: Sequence[str]) -> Columns:
    """Return the requests of all runs of an arm together, one run after the other; nothing where they recorded percentiles alone."""
    names = [f"{EVIDENCE}/{place}.requests.parquet" for place in places]
    tables = [request_columns(table) for name in names if name in packet.names and (table := _parquet(packet, name)).num_rows]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]} if tables else {}


def _by_arm(rows: Rows) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        found.setdefault(row["arm"], []).append(row)
    return found


def _json(packet: Packet, name: str) -> Document:
    where = f"{packet.where}: {name}"
    document: Document = documents.parse_json(documents.decode(packet.read(name), where, "a file of the evidence"), where)
    return document


def _csv(packet: Packet, name: str) -> Rows:
    if name not in packet.names:
        return []
    text = documents.decode(packet.read(name), f"{packet.where}: {name}", "a table of the evidence")
    return list(csv.DictReader(io.StringIO(text)))


def _parquet(packet: Packet, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(io.BytesIO(packet.read(name)))
    except pa.ArrowException as error:
        raise SpecError(f"{packet.where}: {name}", "no Parquet table", "the table as `replay gate` wrote it", "gate again") from error
