"""Items of two evaluations side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gates.statistics.blocks import Floats
from replay.ingress.quality.items import keys_of
from replay.ingress.quality.result import QualityResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedItems:
    """Items that both arms have, and how many only one has."""

    items: pa.Table
    """The baseline's rows [pairs]."""
    before: Floats
    after: Floats
    """Values of the baseline and of the candidate [pairs]."""
    only_baseline: int
    only_candidate: int
    prompts_differ: int
    targets_differ: int
    """Pairs whose prompts or targets are not the same ones."""

    def chosen(self, mask: npt.NDArray[np.bool_]) -> PairedItems:
        """Return the pairs of a mask [pairs]."""
        return PairedItems(
            items=self.items.filter(pa.array(mask)),
            before=self.before[mask],
            after=self.after[mask],
            only_baseline=self.only_baseline,
            only_candidate=self.only_candidate,
            prompts_differ=self.prompts_differ,
            targets_differ=self.targets_differ,
        )

    @property
    def clusters(self) -> npt.NDArray[np.int64]:
        """Which cluster each pair is of, counted from 0 [pairs]."""
        encoded = self.items["cluster"].combine_chunks().dictionary_encode()
        found: npt.NDArray[np.int64] = encoded.indices.to_numpy().astype(np.int64)
        return found


def pair_items(baseline: QualityResult, candidate: QualityResult) -> PairedItems:
    """Return the items that both have by task, metric and id, in the baseline's order.

    The value of an output is whether it is the baseline's. A divergence has its floor in the baseline's own one, from another run of it.
    """
    own, other = keys_of(baseline.items), keys_of(candidate.items)
    places = pc.index_in(own, value_set=other)
    has = pc.is_valid(places)
    before, after = baseline.items.filter(has), candidate.items.take(places.filter(has))
    equal = pc.equal(before["output"], after["output"])
    is_output = pc.equal(before["metric"], "output_match_ratio")
    return PairedItems(
        items=before,
        before=_numbers(pc.if_else(is_output, 1.0, before["value"])),
        after=_numbers(pc.if_else(is_output, pc.cast(pc.fill_null(equal, fill_value=False), pa.float64()), after["value"])),
        only_baseline=len(own) - before.num_rows,
        only_candidate=len(other) - before.num_rows,
        prompts_differ=_differing(before["prompt_hash"], after["prompt_hash"]),
        targets_differ=_differing(before["target_hash"], after["target_hash"]),
    )


def _differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    """Return how many known values differ."""
    return int(pc.sum(pc.fill_null(pc.not_equal(one, other), fill_value=False)).as_py() or 0)


def _numbers(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy(), dtype=np.float64)
