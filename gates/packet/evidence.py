"""Evidence folder: what the verdict was computed from, with a manifest of digests; the same evidence gives the same bytes.

::

    evidence/
    ├── manifest.json                    SHA-256 and size of every other file
    ├── request.json plan.json           what the gate was given, and what it was going to decide
    ├── claims.csv                       every claim's figures
    └── <trace>-<accelerator>-<model>/
        ├── requests.parquet             both arms' metrics request by request
        ├── steps.csv layers.csv         totals by arm, and by arm and layer type
        └── ...                          what the caller hands in: mapping sheets, windows over time, mapping files
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.claim import Claim
from gates.packet.packet import MANIFEST, VERDICT, file_rows
from replay import documents
from replay.errors import InvariantError, SpecError
from replay.folders import check_folder, parquet_bytes, write_folder
from replay.provenance import digest_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.assembly.run import Run

Document = dict[str, Any]

_WANTED = "an evidence folder made by `replay gate`"
_LONGEST_NAME = 180
_PAIRED_COLUMNS = ("status", "queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "preemptions_per_request")
_SUMMED_COLUMNS = (
    "device_s", "host_s", "tokens", "prefill_tokens", "output_tokens", "recomputed_tokens", "prefill_pairs",
    "decode_context_tokens", "preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEvidence:
    """Both arms of a cell, and further files to keep beside them."""

    baseline: Run
    candidate: Run
    files: Mapping[str, bytes | pa.Table] = field(default_factory=dict)
    """By file name; a table is written as Parquet or, where the name ends in ``.csv``, as CSV."""


def write_evidence(
    folder: Path, *, plan: Document, claims: Iterable[Claim], cells: Sequence[CellEvidence], files: Mapping[str, bytes] | None = None
) -> Document:
    """Write the evidence folder, whole or not at all, and return the verdict's `evidence`: ``{path, digest, reproduce}``.

    An evidence folder that is there already is replaced; a file that its manifest does not list protects it. `path` is the
    folder's name; `digest` is that of the manifest; `reproduce` is the command that recomputes the verdict, given where it lies.
    `files` are kept at the top.

    Raises:
        SpecError: the place is taken by something that is not all evidence, or cannot be written.
    """
    contents = _distinct(_contents(plan, claims, cells, files or {}))
    manifest = _manifest(contents)
    write_folder(folder, {**contents, MANIFEST: manifest}, what=_WANTED, listed=listed_files)
    return {"path": folder.name, "digest": digest_bytes(manifest), "reproduce": f"replay reproduce {VERDICT}"}


def listed_files(folder: Path) -> frozenset[str] | None:
    """Return the files of an evidence folder by its manifest, itself included, or None where a folder is none."""
    try:
        rows = documents.read_json_object(folder / MANIFEST, _WANTED).get("files")
    except SpecError:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(row) == {"path", "sha256", "bytes"} for row in rows):
        return None
    return frozenset((MANIFEST, *(str(row["path"]) for row in rows)))


def check_place(folder: Path) -> None:
    """Refuse, before anything is replayed, a place that `write_evidence` would refuse.

    Raises:
        SpecError: there is a file, or a folder with files that no evidence manifest lists, or it cannot be written.
    """
    documents.check_writable(check_folder(folder, what=_WANTED, listed=listed_files))


def paired_requests(baseline: Run, candidate: Run) -> pa.Table:
    """Return every request of either arm once, in the baseline's order, with the metrics of both arms side by side.

    Columns: `request_id`, `arrival_s`, `prompt_tokens`, `output_tokens`, then ``baseline_<metric>`` and ``candidate_<metric>``;
    a request that an arm lacks has nulls there.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    arms = {"baseline": baseline.requests, "candidate": candidate.requests}
    ids = {name: table["request_id"].to_pylist() for name, table in arms.items()}
    union = list(dict.fromkeys([*ids["baseline"], *ids["candidate"]]))
    rows = {name: {request: row for row, request in enumerate(own)} for name, own in ids.items()}
    taken = {name: table.take(pa.array([rows[name].get(request) for request in union], pa.int64())) for name, table in arms.items()}
    columns = {"request_id": pa.array(union, pa.string())}
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        columns[name] = pc.coalesce(taken["baseline"][name], taken["candidate"][name])
    columns |= {f"{arm}_{name}": taken[arm][name] for arm in arms for name in _PAIRED_COLUMNS}
    return pa.table(columns)


def _contents(
    plan: Document, claims: Iterable[Claim], cells: Sequence[CellEvidence], files: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    yield "plan.json", documents.pretty_json(plan).encode()
    yield "claims.csv", _claims_csv(claims)
    yield from files.items()
    for folder, cell in zip(cell_folders([cell.baseline for cell in cells]), cells, strict=True):
        yield f"{folder}/requests.parquet", parquet_bytes(paired_requests(cell.baseline, cell.candidate))
        yield f"{folder}/steps.csv", csv_bytes([_step_totals(arm, run) for arm, run in _arms(cell)])
        layers = [{"arm": arm, **row} for arm, run in _arms(cell) for row in run.layers.to_pylist()]
        yield f"{folder}/layers.csv", csv_bytes(layers)
        for name, content in cell.files.items():
            yield f"{folder}/{name}", _file_bytes(name, content)


def _distinct(files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return the files by name, in the order of their names."""
    contents: dict[str, bytes] = {}
    for name, data in files:
        if name in contents or name == MANIFEST:
            raise InvariantError(f"two files of the evidence are called {name}")
        contents[name] = data
    return dict(sorted(contents.items()))


def cell_folders(baselines: Sequence[Run]) -> list[str]:
    """Return for each cell, by its baseline's run, a folder name of its own, made of plain characters."""
    names: list[str] = []
    for run in baselines:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{run.trace}-{run.hardware}-{run.model}").lstrip(".")[:_LONGEST_NAME]
        name, count = plain, 1
        while name in names:
            count += 1
            name = f"{plain}.{count}"
        names.append(name)
    return names


def _arms(cell: CellEvidence) -> tuple[tuple[str, Run], tuple[str, Run]]:
    return ("baseline", cell.baseline), ("candidate", cell.candidate)


def _step_totals(arm: str, run: Run) -> Document:
    import pyarrow.compute as pc

    totals = {name: pc.sum(run.steps[name]).as_py() or 0 for name in _SUMMED_COLUMNS}
    return {"arm": arm, "mapping_digest": run.mapping_digest, "steps": run.steps.num_rows, "busy_s": run.busy_s, **totals}


def _file_bytes(name: str, content: bytes | pa.Table) -> bytes:
    if isinstance(content, bytes):
        return content
    return csv_bytes(content.to_pylist()) if name.endswith(".csv") else parquet_bytes(content)


def _claims_csv(claims: Iterable[Claim]) -> bytes:
    rows = []
    for claim in claims:
        row = claim.to_document()
        interval = row.pop("interval") or {}
        row |= {f"interval_{name}": interval.get(name) for name in ("lower", "upper", "confidence")}
        rows.append(row | {"warnings": "; ".join(claim.warnings)})
    return csv_bytes(rows)


def csv_bytes(rows: Sequence[Document]) -> bytes:
    """Return rows as CSV with a header of all their columns (nothing at all without rows); a missing value is an empty field."""
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


def _manifest(contents: Mapping[str, bytes]) -> bytes:
    rows = file_rows(contents)
    return documents.pretty_json({"files": rows}).encode()
