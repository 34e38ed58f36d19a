"""Tables of items - CSV, JSON Lines or Parquet - whose columns are declared by their names: `item_id` and one or more of MEASURES."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import SpecError
from replay.ingress.quality.items import items_of, joined_tables
from replay.ingress.quality.result import QualityFacts, QualityResult

MEASURES = {
    "correct": "task_accuracy_ratio",
    "nll_nats_per_token": "nll_nats_per_token",
    "kl_nats_per_token": "kl_nats_per_token",
    "top1_equal": "top1_agreement_ratio",
    "batch_invariant": "batch_invariance_ratio",
    "preference": "preference_ratio",
}
"""Column -> metric: what each holds for an item. `output`, the text of the answer, gives two more: equality between the arms, and
degeneration.
"""
WANTED = (
    f"a table with item_id, one of {', '.join(MEASURES)} or output, and optionally task, cluster, prompt_tokens, prompt_hash, target_hash, "
    "tokens, finish_reason"
)
_ABOUT = ("cluster", "prompt_tokens", "prompt_hash", "target_hash")
_WEIGHTED = ("nll_nats_per_token", "kl_nats_per_token", "top1_equal")
_REPEATED = re.compile(r"(.{1,80}?)\1{4,}\s*$", re.DOTALL)
"""A text that ends in five or more times the same up to 80 characters: what a model in a loop writes."""
_LEAST_REPEATED = 40  # characters of the repetition: "!!!!!" is none


def is_quality_table(names: list[str]) -> bool:
    """Return whether columns are those of a table of items."""
    return "item_id" in names and any(name in names for name in (*MEASURES, "output"))


def read_table(table: pa.Table, path: Path, digest: str) -> QualityResult:
    """Return the result in a table (columns: WANTED).

    Raises:
        SpecError: a column cannot be used.
    """
    where = str(path)
    count = table.num_rows
    if not count:
        raise SpecError(where, "a table without rows", "at least one item", "check how it was produced")
    ids = _texts(table, "item_id", where)
    if ids.null_count:
        raise SpecError(where, "an item_id is missing", "an id in every row", "correct or remove the row")
    task = _texts(table, "task", where) if "task" in table.column_names else pa.array(["all"] * count)
    about = {name: _column(table, name, where) for name in _ABOUT if name in table.column_names}
    if "cluster" in about and about["cluster"].null_count:
        about["cluster"] = pc.coalesce(about["cluster"], ids)
    parts = [items_of({"task": task, "item_id": ids, **about, **columns}, where) for columns in _measured(table, where, count)]
    kept = [part.filter(pc.or_(pc.is_valid(part["value"]), pc.is_valid(part["output"]))) for part in parts]
    return QualityResult(items=joined_tables(kept), facts=QualityFacts(format="table of items", digest=digest))


def _measured(table: pa.Table, where: str, count: int) -> Iterator[dict[str, pa.Array]]:
    """Yield the columns of each metric that a table holds."""
    for column, metric in MEASURES.items():
        if column in table.column_names:
            weight = {"weight": _numbers(table, "tokens", where)} if "tokens" in table.column_names and column in _WEIGHTED else {}
            yield {"metric": _same(metric, count), "value": _numbers(table, column, where), **weight}
    if "output" in table.column_names:
        outputs = [text or "" for text in _texts(table, "output", where).to_pylist()]
        reasons = _texts(table, "finish_reason", where).to_pylist() if "finish_reason" in table.column_names else [None] * count
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in outputs]
        yield {"metric": _same("output_match_ratio", count), "output": pa.array(hashes)}
        degenerate = [float(is_degenerate(text) or reason == "length") for text, reason in zip(outputs, reasons, strict=True)]
        yield {"metric": _same("degenerate_ratio", count), "value": pa.array(degenerate)}


def is_degenerate(output: str) -> bool:
    """Return whether an answer is empty or ends in a loop."""
    if not output.strip():
        return True
    found = _REPEATED.search(output[-4096:])
    return found is not None and len(found.group().rstrip()) >= _LEAST_REPEATED


def _same(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([text])).cast(pa.string())


def _column(table: pa.Table, name: str, where: str) -> pa.Array:
    return _numbers(table, name, where, pa.int64()) if name == "prompt_tokens" else _texts(table, name, where)


def _texts(table: pa.Table, name: str, where: str) -> pa.Array:
    return _cast(table, name, where, pa.string(), "texts")


def _numbers(table: pa.Table, name: str, where: str, wanted: pa.DataType | None = None) -> pa.Array:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return _cast(table.set_column(table.column_names.index(name), name, column), name, where, wanted or pa.float64(), "numbers")


def _cast(table: pa.Table, name: str, where: str, wanted: pa.DataType, said: str) -> pa.Array:
    try:
        return table[name].combine_chunks().cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        got = f"column {name} holds {table[name].type}"
        raise SpecError(where, got, said, "correct the column") from error
