"""Run directories: `run.json` with digests and summary, and one Parquet file per table."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from replay import documents
from replay.assembly.assemble import summary
from replay.assembly.run import LAYERS_SCHEMA, METRICS_SCHEMA, WINDOWS_SCHEMA, Run, RunOutline
from replay.documents import Document
from replay.errors import SpecError
from replay.execution.tables import STEPS_SCHEMA, TOKEN_GAPS_SCHEMA
from replay.folders import check_folder, parquet_bytes, write_folder
from replay.provenance import digest_bytes

RUN_FILE = "run.json"
MANIFEST_SCHEMA = "baseline.v1"
TABLES = {
    "requests": METRICS_SCHEMA, "steps": STEPS_SCHEMA, "layers": LAYERS_SCHEMA, "windows": WINDOWS_SCHEMA, "token_gaps": TOKEN_GAPS_SCHEMA,
}  # fmt: skip
"""Name of each table of a Run, which is also its file's, and its schema."""
FIELDS = ("trace", "trace_digest", "hardware", "model", "mapping_digest", "seed", "window_s", "reference_flops_per_s", "replicas_count")
OWN_KEYS = ("run", "files", "summary")
"""What `write_run` adds to the manifest."""
WANTED = "a run directory made by `replay run`"


def write_run(run: Run, folder: Path, manifest: Document) -> Document:
    """Write a run as a directory, whole or not at all, and return the document of its `run.json`.

    `manifest` is what the run was computed from; its keys stand in `run.json` beside `run`, `files` and `summary`, so that the
    directory can be replayed again. The same run and manifest give the same bytes. An existing folder is replaced only if it is
    empty or a run directory with nothing else in it.

    Raises:
        SpecError: the folder holds something else, or cannot be written.
    """
    tables = {f"{name}.parquet": parquet_bytes(getattr(run, name)) for name in TABLES}
    document = run_document(run, manifest, {name: digest_bytes(data) for name, data in tables.items()}, summary(run))
    documents.check(document, MANIFEST_SCHEMA, str(folder / RUN_FILE))
    write_folder(folder, {**tables, RUN_FILE: documents.pretty_json(document).encode()}, what=WANTED, listed=listed_files)
    return document


def check_place(folder: Path) -> None:
    """Refuse, before anything is replayed, a folder that `write_run` would refuse.

    Raises:
        SpecError: it holds something else, or cannot be written.
    """
    documents.check_writable(check_folder(folder, what=WANTED, listed=listed_files))


def listed_files(folder: Path) -> frozenset[str] | None:
    """Return the files of a run directory, or None where a folder is none."""
    try:
        document = documents.read_json_object(folder / RUN_FILE, WANTED)
    except SpecError:
        return None
    return frozenset((RUN_FILE, *(f"{name}.parquet" for name in TABLES))) if all(key in document for key in OWN_KEYS) else None


def read_run(folder: Path) -> tuple[Run, Document]:
    """Return the run and the manifest that `write_run` was given.

    Raises:
        SpecError: the folder is no run directory, or a file of it is missing, damaged or of another version.
    """
    if not folder.is_dir():
        raise SpecError(str(folder), "not a folder" if folder.exists() else "no such folder", WANTED, "check the path")
    where = folder / RUN_FILE
    if not where.is_file():
        raise SpecError(str(folder), f"a folder without {RUN_FILE}", WANTED, "check the path")
    document = documents.read_json_object(where, WANTED)
    documents.check(document, MANIFEST_SCHEMA, str(where))
    absent = [key for key in OWN_KEYS if key not in document]
    if absent:
        raise SpecError(str(where), f"it has no {absent[0]!r}", WANTED, "a baseline bundle has no tables: name a run directory")
    own, digests, _ = (document.pop(key) for key in OWN_KEYS)
    tables = {name: _read_table(folder, name, digests) for name in TABLES}
    rejected = tuple((entry["reason"], entry["requests"]) for entry in own["rejected"])
    document.pop("schema_version")
    fields = {name: own[name] for name in FIELDS} | {"seed": int(own["seed"])}
    return Run(**fields, **tables, rejected=rejected), document


def run_document(run: RunOutline, manifest: Document, digests: dict[str, str], summary: Document) -> Document:
    """Return the content of `run.json`; `digests` are of the tables, by file name."""
    fields: Document = {name: getattr(run, name) for name in FIELDS} | {"seed": str(run.seed)}
    fields["rejected"] = [{"reason": reason, "requests": count} for reason, count in run.rejected]
    return {"schema_version": "1", **manifest, "run": fields, "files": digests, "summary": summary}


def _read_table(folder: Path, name: str, digests: dict[str, str]) -> pa.Table:
    path = folder / f"{name}.parquet"
    fix = "run `replay run` again"
    data = documents.read_bytes(path, f"the {name} table of {WANTED}")
    if digest_bytes(data) != digests.get(path.name):
        raise SpecError(str(path), f"its content does not have the digest that {RUN_FILE} names", "the file as it was written", fix)
    try:
        table = pq.read_table(io.BytesIO(data))
    except pa.ArrowInvalid as error:
        raise SpecError(str(path), "it is not a Parquet file", f"the {name} table", fix) from error
    if not table.schema.equals(TABLES[name]):
        raise SpecError(str(path), "its columns are not those of this version", ", ".join(TABLES[name].names), fix)
    return table
