"""Run directories: `run.json` with digests and summary, and one Parquet file per table."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from replay import documents
from replay.assembly.assemble import summary
from replay.assembly.run import LAYERS_SCHEMA, METRICS_SCHEMA, WINDOWS_SCHEMA, Run
from replay.documents import Document
from replay.errors import SpecError
from replay.execution.tables import STEPS_SCHEMA
from replay.provenance import digest_bytes

RUN_FILE = "run.json"
MANIFEST_SCHEMA = "baseline.v1"
TABLES = {"requests": METRICS_SCHEMA, "steps": STEPS_SCHEMA, "layers": LAYERS_SCHEMA, "windows": WINDOWS_SCHEMA}
"""Name of each table of a Run, which is also its file's, and its schema."""
FIELDS = ("trace", "trace_digest", "hardware", "model", "mapping_digest", "seed", "window_s", "reference_flops_per_s")
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
    folder = Path(os.path.realpath(folder))
    _refuse_other_content(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            fresh.chmod(0o755)
            document = _write_files(run, fresh, manifest)
            _put_in_place(fresh, folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise SpecError(str(folder), f"it cannot be written ({error.strerror})", "a folder to write to", "choose another folder") from error
    return document


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


def _write_files(run: Run, folder: Path, manifest: Document) -> Document:
    digests = {}
    for name in TABLES:
        data = _parquet_bytes(getattr(run, name))
        documents.write_atomic(folder / f"{name}.parquet", data)
        digests[f"{name}.parquet"] = digest_bytes(data)
    fields: Document = {name: getattr(run, name) for name in FIELDS} | {"seed": str(run.seed)}
    fields["rejected"] = [{"reason": reason, "requests": count} for reason, count in run.rejected]
    document = {"schema_version": "1", **manifest, "run": fields, "files": digests, "summary": summary(run)}
    documents.check(document, MANIFEST_SCHEMA, str(folder / RUN_FILE))
    documents.write_json(folder / RUN_FILE, document)
    return document


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _put_in_place(fresh: Path, folder: Path) -> None:
    """Rename the finished folder to its name; what stood there goes only once the new one is in place."""
    if not folder.exists():
        os.rename(fresh, folder)
        return
    old = fresh.with_name(fresh.name + ".old")
    os.rename(folder, old)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rename(old, folder)
        raise
    shutil.rmtree(old)


def _refuse_other_content(folder: Path) -> None:
    if not folder.exists():
        return
    fix = "choose another folder, or clear this one"
    if not folder.is_dir():
        raise SpecError(str(folder), "a file of that name", "a folder to write to", fix)
    names = {entry.name for entry in folder.iterdir()}
    own = {RUN_FILE, *(f"{name}.parquet" for name in TABLES)}
    if names and not (names <= own and _is_run_file(folder / RUN_FILE)):
        other = min(names - own, default=RUN_FILE)
        raise SpecError(str(folder), f"a folder with other content ({other})", "an empty folder or a run directory", fix)


def _is_run_file(path: Path) -> bool:
    try:
        return all(key in documents.read_json_object(path, WANTED) for key in OWN_KEYS)
    except SpecError:
        return False


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
