"""Facts about a trace for people and machines: counts, rates, bursts, length percentiles, prefix reuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.ingress.trace import Trace
from replay.specs.routing import ExpertLoad

PERCENTILES = (50, 95, 99)


def summarize(trace: Trace) -> dict[str, Any]:
    """Return the facts of a trace as a JSON document; what the rows do not tell is null.

    `mean_rate_per_s` is gaps over span; `gap_cv` is the standard deviation of the gaps (n in the denominator) over their mean; the
    peaks count requests in the fullest of the consecutive bins that start at the first arrival; percentiles are interpolated linearly.
    """
    requests, provenance = trace.requests, trace.provenance
    return {
        "name": trace.name,
        "digest": trace.digest,
        "provenance": provenance.to_document(),
        "requests": requests.num_rows,
        **_arrival_facts(trace),
        "prompt_tokens": _length_facts(requests["prompt_tokens"]),
        "output_tokens": _length_facts(requests["output_tokens"]),
        "prefix_reuse_ratio": _prefix_reuse_ratio(requests["prefix_blocks"]),
        "sessions": pc.count_distinct(requests["session_id"]).as_py() or None,
        "priorities": pc.count_distinct(requests["priority"]).as_py() or None,
        "expert_load": None if trace.expert_load is None else _load_facts(trace.expert_load),
        "models": sorted(model for model in pc.unique(requests["model"]).to_pylist() if model is not None),
    }


def _arrival_facts(trace: Trace) -> dict[str, Any]:
    """Return what arrivals tell; each fact is null where the trace has none, or too few to tell."""
    names = ("span_s", "mean_rate_per_s", "peak_1s_requests", "peak_60s_requests", "gap_cv", "same_arrival_pairs")
    if not trace.has_arrivals:
        return dict.fromkeys(names)
    arrival_s = trace.requests["arrival_s"].to_numpy()
    gaps_s = np.diff(arrival_s)
    span_s = trace.span_s
    rate = len(gaps_s) / span_s if span_s > 0 else None
    gap_cv = float(gaps_s.std() / gaps_s.mean()) if span_s > 0 else None
    return dict(zip(names, (span_s, rate, _peak(arrival_s, 1), _peak(arrival_s, 60), gap_cv, int((gaps_s == 0).sum())), strict=True))


def _peak(arrival_s: np.ndarray, bin_s: int) -> int:
    """Return the count of the fullest bin; arrivals are sorted, so equal bins are runs and no bin is stored when it is empty."""
    _, counts = np.unique(np.floor(arrival_s / bin_s), return_counts=True)
    return int(counts.max())


def _length_facts(column: pa.ChunkedArray) -> dict[str, float | int]:
    lengths = column.to_numpy()
    points = np.percentile(lengths, PERCENTILES)
    facts: dict[str, float | int] = {f"p{p}": round(float(value), 6) for p, value in zip(PERCENTILES, points, strict=True)}
    return {"mean": float(lengths.mean()), **facts, "max": int(lengths.max())}


def _load_facts(load: ExpertLoad) -> dict[str, Any]:
    """Return what is known of the routing: of recorded loads also the most loaded expert over the mean, in the worst and mean layer."""
    facts: dict[str, Any] = {name: text for name, text in load.to_document().items() if name != "layers"}
    if not load.is_uniform:
        loads = np.array(load.layers)
        ratios = loads.max(axis=1) / loads.mean(axis=1)
        facts |= {"layers": len(loads), "experts": loads.shape[1]}
        facts |= {"max_over_mean_ratio": round(float(ratios.mean()), 6), "max_over_mean_ratio_worst_layer": round(float(ratios.max()), 6)}
    return facts


def _prefix_reuse_ratio(blocks: pa.ChunkedArray) -> float | None:
    """Return the share of prefix blocks whose hash occurred before in the trace: the hit rate of a cache without limits."""
    hashes = pc.list_flatten(blocks)
    if not len(hashes):
        return None
    return 1.0 - int(pc.count_distinct(hashes).as_py()) / len(hashes)
