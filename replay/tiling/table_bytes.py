"""A schedule's step table and decisions as bytes, so that a tabulated mapping can be kept and found again.

Layout: SHA-256 of all that follows and of the key, then one Arrow stream for each table of TABLES; the schema of the first carries
everything else as JSON. Floats go through whole: what is read equals what was written bit by bit.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import fields
from typing import Any

import pyarrow as pa

from replay.lowering.kernel_plan import Decision
from replay.provenance import canonical_json
from replay.tiling.step_table import KvPool, StepLimits, StepPower, StepTable

TABLES = ("kernels", "token_terms", "sequence_terms", "decode_terms", "prefill_terms", "capture", "measured", "stages")
_REST = b"replay.rest"
_SEAL_BYTES = hashlib.sha256().digest_size


def pack(key: str, table: StepTable, decisions: tuple[Decision, ...]) -> bytes:
    """Return the bytes that `unpack` reads under the same key."""
    rest = {field.name: getattr(table, field.name) for field in fields(StepTable) if field.name not in TABLES}
    metadata = {_REST: canonical_json({"table": rest, "decisions": decisions})}
    buffer = io.BytesIO()
    for name in TABLES:
        one = getattr(table, name).combine_chunks().replace_schema_metadata(metadata if name == TABLES[0] else None)
        with pa.ipc.new_stream(buffer, one.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(one)
    content = buffer.getvalue()
    return _seal(key, content) + content


def unpack(key: str, data: bytes) -> tuple[StepTable, tuple[Decision, ...]] | None:
    """Return the table and decisions that were packed under `key`; None where the bytes are damaged, foreign or of another key."""
    content = memoryview(data)[_SEAL_BYTES:]
    if _seal(key, content) != data[:_SEAL_BYTES]:
        return None
    reader = pa.BufferReader(pa.py_buffer(content))
    tables: dict[str, pa.Table] = {name: pa.ipc.open_stream(reader).read_all() for name in TABLES}
    document: dict[str, Any] = json.loads(tables[TABLES[0]].schema.metadata[_REST])
    tables = {name: table.replace_schema_metadata(None) for name, table in tables.items()}
    rest = document["table"]
    rest |= {"pool": KvPool(**rest["pool"]), "limits": _limits(rest["limits"])}
    if rest["power"] is not None:
        rest["power"] = StepPower.from_document(rest["power"])
    return StepTable(**tables, **rest), tuple(Decision(**decision) for decision in document["decisions"])


def _limits(document: dict[str, Any]) -> StepLimits:
    return StepLimits(**document | {name: tuple(document[name]) for name in ("preferred_sizes", "compile_bins")})


def _seal(key: str, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(content)
    digest.update(key.encode())
    return digest.digest()
