"""The door: a file or folder of quality results -> `QualityResult`. The content decides the format."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay import documents
from replay.errors import SpecError
from replay.ingress.quality import baseline_yaml, llama_cpp, lm_eval, table
from replay.ingress.quality.result import QualityResult
from replay.provenance import digest_bytes

FORMATS = f"lm-eval samples (a folder or a file) or results, llama-perplexity's KL divergence, expected scores in YAML, or {table.WANTED}"
_PARQUET = b"PAR1"
_FIX = "name a result of an evaluation"


def read_quality(path: Path) -> QualityResult:
    """Return the quality result in a file or folder.

    Raises:
        SpecError: it is of no known format, or something in it cannot be used.
    """
    if path.is_dir():
        return lm_eval.read_folder(path)
    where = str(path)
    data = documents.read_bytes(path, FORMATS)
    digest = digest_bytes(data)
    if data.startswith(_PARQUET):
        return _table(_parsed(data, "parquet", where), path, digest)
    head = data.lstrip()[: 1 << 16]
    if head.startswith(b"{"):
        return _json(data, path, digest)
    text = documents.decode(data, where, FORMATS)
    if llama_cpp.is_kl_divergence(text):
        return llama_cpp.read_kl_divergence(text, path, digest)
    if "item_id" in text.split("\n", 1)[0]:
        return _table(_parsed(data, "csv", where), path, digest)
    if path.suffix in (".yaml", ".yml"):
        return baseline_yaml.read_baseline(text, path, digest)
    raise SpecError(where, "no known form of quality results", FORMATS, _FIX)


def _json(data: bytes, path: Path, digest: str) -> QualityResult:
    where = str(path)
    first = _object(data.lstrip().split(b"\n", 1)[0])
    if first is not None and lm_eval.is_samples(first):
        return lm_eval.read_samples(path)
    if first is not None and table.is_quality_table(list(first)):
        return _table(_parsed(data, "json", where), path, digest)
    document = documents.read_json_object(path, FORMATS)
    if lm_eval.is_results(document):
        return lm_eval.read_results(path)
    raise SpecError(where, f"a JSON document with {', '.join(list(document)[:6])}", FORMATS, _FIX)


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None where the line is none, as that of an indented document."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _parsed(data: bytes, form: str, where: str) -> pa.Table:
    try:
        if form == "parquet":
            import pyarrow.parquet as pq

            return pq.read_table(io.BytesIO(data))
        if form == "csv":
            import pyarrow.csv as pcsv

            return pcsv.read_csv(io.BytesIO(data), convert_options=pcsv.ConvertOptions(column_types={"item_id": pa.string()}))
        import pyarrow.json as pj

        return pj.read_json(io.BytesIO(data))
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise SpecError(where, f"it cannot be read as {form} ({str(error)[:120]!a})", table.WANTED, "mend the file") from error


def _table(found: pa.Table, path: Path, digest: str) -> QualityResult:
    if not table.is_quality_table(found.column_names):
        raise SpecError(str(path), f"columns {', '.join(found.column_names[:8])}", table.WANTED, "name the columns so")
    return table.read_table(found, path, digest)
