"""Build ITEMS_SCHEMA from columns, with the checks that every source of items passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import SpecError
from replay.ingress.quality.result import ITEMS_SCHEMA

_FRACTIONS = ("task_accuracy_ratio", "top1_agreement_ratio", "degenerate_ratio", "batch_invariance_ratio", "preference_ratio")


def items_of(columns: Mapping[str, pa.Array | pa.ChunkedArray], where: str) -> pa.Table:
    """Return ITEMS_SCHEMA of columns by name; those that are not given are null, clusters are the items, weights are 1.

    Raises:
        SpecError: an item stands twice, or a value is missing, not finite or out of the range of its metric.
    """
    count = len(columns["item_id"])
    given = {"cluster": columns["item_id"], "weight": pa.array(np.ones(count)), **columns}
    table = pa.table({field.name: given.get(field.name, pa.nulls(count, field.type)) for field in ITEMS_SCHEMA}, schema=ITEMS_SCHEMA)
    _check_values(table, where)
    keys = keys_of(table)
    if pc.count_distinct(keys).as_py() < count:
        counted = Counter(keys.to_pylist())
        place = next(key for key, number in counted.items() if number > 1).replace("\x1f", "/")
        raise SpecError(where, f"the item {place[:80]!a} stands twice", "each item once for a task and metric", "remove or rename one")
    return table


def keys_of(table: pa.Table) -> pa.Array:
    """Return what an item is told by in another result: task, metric and item id [items]."""
    joined = pc.binary_join_element_wise(table["task"], table["metric"], table["item_id"], "\x1f")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def joined_tables(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of several tables of items."""
    return pa.concat_tables(tables).combine_chunks() if tables else ITEMS_SCHEMA.empty_table()


def _check_values(table: pa.Table, where: str) -> None:
    values, metrics = table["value"], table["metric"]
    needs = pc.not_equal(metrics, "output_match_ratio")
    missing = pc.and_(needs, pc.invert(pc.is_finite(pc.fill_null(values, float("nan")))))
    _refuse(table, missing, where, "a finite value")
    for name in _FRACTIONS:
        out = pc.and_(pc.equal(metrics, name), pc.or_(pc.less(values, 0.0), pc.greater(values, 1.0)))
        _refuse(table, out, where, "a fraction from 0 to 1")
    _refuse(table, pc.and_(pc.equal(metrics, "kl_nats_per_token"), pc.less(values, -1e-6)), where, "a divergence of 0 or more")
    if not pc.all(pc.greater(table["weight"], 0.0)).as_py() and table.num_rows:
        raise SpecError(where, "a weight is not above 0", "the tokens behind a mean, above 0", "correct or remove the row")
    if pc.any(pc.less(table["prompt_tokens"], 0)).as_py():
        raise SpecError(where, "prompt_tokens is negative", "whole numbers of tokens", "correct or remove the row")


def _refuse(table: pa.Table, bad: pa.ChunkedArray, where: str, want: str) -> None:
    if pc.any(pc.fill_null(bad, fill_value=False)).as_py():
        row = table.filter(pc.fill_null(bad, fill_value=False)).slice(0, 1).to_pylist()[0]
        got = f"{row['metric']} of item {row['item_id'][:60]!a} is {row['value']}"
        raise SpecError(where, got, want, "correct the value, or find out why the evaluation has none")
