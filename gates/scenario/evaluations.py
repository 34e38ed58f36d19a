"""Evaluations made for a scenario: items whose share of right answers, or mean per token, is that of its recipe.

Each item has draws of its own that hang on the recipe's seed alone, so two evaluations of one seed are of the same items and agree but
where their shares differ, or where an item is `redrawn`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gates.scenario.traffic import drawn_lengths
from replay.errors import SpecError
from replay.seeds import stream

SHARES = ("correct", "top1_equal", "batch_invariant")
"""Measures that are 0 or 1 for an item, in the names of tables of items."""
MEANS = ("nll_nats_per_token",)
"""Measures with a mean and a standard deviation over items."""


def make_evaluation(name: str, recipe: dict[str, Any], folder: Path) -> Path:
    """Write a table of items (one row per item, columns as `replay.ingress.quality.table` reads them) and return its path.

    Raises:
        SpecError: not every part states the same measures.
    """
    seed, parts = recipe.get("seed", 0), recipe["items"]
    measures = [measure for measure in (*SHARES, *MEANS) if measure in parts[0]]
    for place, part in enumerate(parts[1:], start=2):
        if (found := [measure for measure in (*SHARES, *MEANS) if measure in part]) != measures:
            got = f"part {place} with {' and '.join(found)}, and part 1 with {' and '.join(measures)}"
            raise SpecError(f"evaluations.{name}", got, "the same measures in every part", "state them for all parts")
    tables = [_part(name, seed, place, part, measures) for place, part in enumerate(parts)]
    path = folder / f"{name}.items.parquet"
    pq.write_table(pa.concat_tables(tables), path)
    return path


def _part(name: str, seed: int, place: int, part: dict[str, Any], measures: list[str]) -> pa.Table:
    count, where = part["items_count"], f"{place}"
    ids = [f"{where}/{index}" for index in range(count)]
    columns: dict[str, Any] = {
        "item_id": ids,
        "task": [part.get("task", "all")] * count,
        "prompt_hash": [f"{seed}/{one}" for one in ids],
    }
    if "prompt_tokens" in part:
        draws = stream(seed, f"scenario/items/{where}/prompt_tokens")
        columns["prompt_tokens"] = drawn_lengths(part["prompt_tokens"], "prompt_tokens", draws, count)
    again = stream(seed, f"scenario/items/{where}/again/{name}").random(count) < part.get("redrawn_ratio", 0.0)
    for measure in measures:
        shared, own = (stream(seed, f"scenario/items/{where}/{measure}{arm}") for arm in ("", f"/{name}"))
        columns[measure] = _values(part[measure], np.where(again, own.standard_normal(count), shared.standard_normal(count)))
    return pa.table(columns)


def _values(wanted: Any, normal: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a measure of items from standard normal draws: 1 for the share of them that lies lowest, or mean and deviation."""
    if isinstance(wanted, dict):
        return np.asarray(wanted["mean"] + wanted["sd"] * normal, dtype=np.float64)
    from scipy.stats import norm

    return np.asarray(normal < norm.ppf(wanted), dtype=np.float64)
