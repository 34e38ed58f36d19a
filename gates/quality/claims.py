"""Which claims a quality result leads to: planned from the policy, the baseline's result and the trace, before the candidate's is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from gates.claim import ClaimSpec
from gates.quality.policy import OPT_IN
from gates.strata import PromptBin, prompt_bins

if TYPE_CHECKING:
    from gates.policy import PolicySpec
    from replay.ingress.quality.result import QualityResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BinTraffic:
    """A bin of prompt lengths and its share of a trace's requests."""

    bin: PromptBin
    share: float


def quality_specs(policy: PolicySpec, baseline: QualityResult, prompt_tokens: pa.ChunkedArray) -> tuple[ClaimSpec, ...]:
    """Return the claims about quality on requests of these lengths [requests]: over all items, then by bin of prompt lengths.

    A bin with traffic is claimed where items tell their lengths, whether or not it holds any of them; where none tells, every bin beyond
    the length that unknown ones stand for.
    """
    return tuple(_specs(policy, baseline, prompt_tokens))


def traffic_by_bin(policy: PolicySpec, prompt_tokens: pa.ChunkedArray) -> tuple[BinTraffic, ...]:
    """Return every bin of the policy with its share of requests of these lengths [requests]."""
    count = max(1, len(prompt_tokens))
    bins = prompt_bins(policy.prompt_bin_edges_tokens)
    return tuple(BinTraffic(bin=one, share=(pc.sum(in_bin(prompt_tokens, one)).as_py() or 0) / count) for one in bins)


def beyond_traffic(items: pa.Table, traffic: tuple[BinTraffic, ...]) -> pa.ChunkedArray:
    """Return which items have longer prompts than any request, by bin [items]; none of a metric whose items are all so long.

    How good such answers are says nothing of the trace's: broken long ones would weigh on requests that nobody sends, and sound ones
    would make up for what short ones lose.
    """
    longest = max((found.bin for found in traffic if found.share > 0), key=lambda one: one.tokens_from, default=None)
    if longest is None or longest.tokens_to is None:
        return pa.chunked_array([pa.array([False] * items.num_rows)])
    beyond = pc.fill_null(pc.greater_equal(items["prompt_tokens"], longest.tokens_to), fill_value=False)
    kept = pc.unique(items["metric"].filter(pc.invert(beyond)))
    return pc.and_(beyond, pc.is_in(items["metric"], value_set=kept))


def in_bin(prompt_tokens: pa.ChunkedArray, one: PromptBin) -> pa.ChunkedArray:
    """Return which lengths are in a bin [rows]; one that is not known is in none."""
    inside = pc.greater_equal(prompt_tokens, one.tokens_from)
    if one.tokens_to is not None:
        inside = pc.and_(inside, pc.less(prompt_tokens, one.tokens_to))
    return pc.fill_null(inside, fill_value=False)


def _specs(policy: PolicySpec, baseline: QualityResult, prompt_tokens: pa.ChunkedArray) -> Iterator[ClaimSpec]:
    asked = policy.quality
    present = set(pc.unique(baseline.items["metric"]).to_pylist()) | {summary.metric for summary in baseline.summaries}
    wanted = [(metric, margin) for metric, margin in asked.margins if metric in present or metric in OPT_IN]
    yield from (ClaimSpec(metric=metric, margin=margin, blocking=True) for metric, margin in wanted)
    with_lengths = set(pc.unique(baseline.items.filter(pc.is_valid(baseline.items["prompt_tokens"]))["metric"]).to_pylist())
    margins = dict(asked.by_prompt_bin)
    for found in traffic_by_bin(policy, prompt_tokens):
        is_long = found.bin.tokens_to is None or found.bin.tokens_to > asked.unknown_lengths_to_tokens
        for metric, _ in wanted:
            if metric in margins and found.share >= asked.min_traffic_ratio and (metric in with_lengths or is_long):
                yield ClaimSpec(metric=metric, margin=margins[metric], blocking=True, stratum=found.bin.stratum)
