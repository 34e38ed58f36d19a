"""Candidates that are worse by a known amount."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from gates.strata import parse_stratum
from replay.assembly.headline import Headline
from replay.assembly.percentile import percentile

Kind = Literal["none", "uniform", "tail", "stratum", "layer_type", "service"]
KINDS: Mapping[Kind, str] = {
    "none": "nothing changes",
    "uniform": "every latency longer",
    "tail": "latencies beyond p97 longer, those below p90 unchanged",
    "stratum": "every latency of one prompt bin longer",
    "layer_type": "kernels of one layer type slower, through the queue",
    "service": "every kernel slower, through the queue",
}
LATENCIES = ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")
TAIL_PERCENTS = (90.0, 97.0)
"""Where a worsening of the tail begins, and from where on it is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One candidate; `level` is the worsening asked for (0.03 = 3 %)."""

    kind: Kind
    level: float = 0.0
    factors: Mapping[str, float] = field(default_factory=dict)
    """Factor of each kernel's whole time, of the kinds that go through the queue."""
    stratum: str = ""

    @property
    def replays(self) -> bool:
        """Whether the candidate has to be replayed; else the baseline's requests say what it would give."""
        return bool(self.factors)

    def applied(self, baseline: Headline) -> Headline:
        """Return a replay of the baseline as this candidate would have given it, where nothing has to be replayed."""
        table = baseline.requests
        members = _members(self.stratum, table) if self.kind == "stratum" else np.ones(table.num_rows, dtype=np.bool_)
        for name in LATENCIES if self.kind != "none" else ():
            values = table[name].to_numpy()  # NaN where missing
            growth = self.level * (_in_tail(values) if self.kind == "tail" else members)
            changed = pa.array(values * (1.0 + growth), mask=np.isnan(values))
            table = table.set_column(table.column_names.index(name), name, changed)
        return replace(baseline, requests=table)


def _members(stratum: str, table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    one_bin, prompts = parse_stratum(stratum), table["prompt_tokens"].to_numpy()
    inside: np.ndarray[tuple[int], np.dtype[np.bool_]] = prompts >= one_bin.tokens_from
    return inside if one_bin.tokens_to is None else inside & (prompts < one_bin.tokens_to)


def _in_tail(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return 0 up to the first of TAIL_PERCENTS, 1 from the second on, and a straight line between [requests]."""
    there = values[~np.isnan(values)]
    low, high = (percentile(there, percent) for percent in TAIL_PERCENTS) if len(there) else (0.0, 1.0)
    return np.asarray(np.clip((np.nan_to_num(values) - low) / max(high - low, np.finfo(float).tiny), 0.0, 1.0))
