"""Cohorts: which part of the traffic carries a regression, and which share of the traffic it is.

For a percentile, the requests counted are those beyond the *baseline's* percentile: by definition a known few of the baseline's own, and
more of the candidate's. The share of a cohort is its part of what came on top. For a mean it is its part of the sum of the differences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gates.claim import Claim
from gates.measure.requests import members_of, read_metric
from gates.metrics import METRICS
from gates.policy import SloLimits
from gates.strata import PromptBin
from replay.assembly.percentile import percentile
from replay.assembly.run import Run
from replay.ingress.trace import Trace

LEAST_COUNT = 20
"""Requests beyond the percentile on top of the baseline's; fewer say nothing about where they are."""
LEAST_SHARE = 0.5
LEAST_LIFT = 1.5
"""A cohort *carries* the regression with at least half of it and one and a half times its share of the traffic."""
OUTPUT_EDGES_TOKENS = (64, 256, 1024)
RUNNING_EDGES = (8, 32, 128)
WINDOWS = 10
PREFIX_GROUPS = 8
"""Groups of requests that begin alike which are told apart: the largest ones."""

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """One part of the traffic."""

    dimension: str
    cohort: str
    requests: int
    traffic_ratio: float
    regression_ratio: float
    """Its part of the regression; negative where the cohort got better."""
    carries: bool

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the verdict's `cohorts[]`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def sentence(self) -> str:
        """Return it for people."""
        return f"{self.cohort}: {self.traffic_ratio:.0%} of the requests, {self.regression_ratio:.0%} of the regression"


def find_cohorts(
    claim: Claim, trace: Trace, runs: tuple[Run, Run], *, bins: Sequence[PromptBin], slo: SloLimits | None
) -> tuple[Cohort, ...]:
    """Return the cohorts of a claim's regression from the baseline's to the candidate's run, by dimension; none where too little got worse.

    Claims about windows of the run, and those of which the requests do not say enough, have none.
    """
    definition = METRICS[claim.metric]
    if definition.basis not in ("request_percentile", "request_mean"):
        return ()
    (before, there), (after, also_there) = (read_metric(run.requests, definition.column, slo) for run in runs)
    members = there & also_there & members_of(claim.stratum, runs[0].requests)
    if not members.any():
        return ()
    sign = 1.0 if definition.direction == "lower" else -1.0
    if claim.percentile is None:
        worse = sign * (after - before)
    else:
        limit = percentile(before[members], claim.percentile)
        worse = (after > limit).astype(float) - (before > limit).astype(float)
    total = float(worse[members].sum())
    if total < LEAST_COUNT if claim.percentile is not None else total <= 0.0:
        return ()
    found: list[Cohort] = []
    for dimension, labels, names in _dimensions(trace, runs[0], bins):
        rows = [(name, members & (labels == place)) for place, name in enumerate(names)]
        present = [(name, mask) for name, mask in rows if mask.any()]
        if len(present) > 1:
            found += [_cohort(dimension, name, mask, worse, total, int(members.sum())) for name, mask in present]
    return tuple(found)


def _cohort(dimension: str, name: str, mask: NDArray[np.bool_], worse: NDArray[np.float64], total: float, count: int) -> Cohort:
    traffic, share = int(mask.sum()) / count, float(worse[mask].sum()) / total
    return Cohort(
        dimension=dimension,
        cohort=name,
        requests=int(mask.sum()),
        traffic_ratio=traffic,
        regression_ratio=share,
        carries=share >= LEAST_SHARE and share >= LEAST_LIFT * traffic,
    )


def _dimensions(trace: Trace, baseline: Run, bins: Sequence[PromptBin]) -> Iterator[tuple[str, Labels, list[str]]]:
    """Yield each dimension with the label of every request [requests] and the labels' names."""
    requests = trace.requests
    edges = [one.tokens_to for one in bins if one.tokens_to is not None]
    yield "prompt_tokens", _binned(requests["prompt_tokens"].to_numpy(), edges), [one.phrase for one in bins]
    yield "output_tokens", *_ranges(requests["output_tokens"].to_numpy(), OUTPUT_EDGES_TOKENS, "outputs of {} tokens")
    running = _running_at_start(baseline)
    if running is not None:
        yield "batch", *_ranges(running, RUNNING_EDGES, "started beside {} sequences")
    yield "window", *_windows(baseline)
    yield from _columns(requests)


def _binned(values: NDArray[np.int64], edges: Sequence[int]) -> Labels:
    return np.searchsorted(np.asarray(edges), values, side="right")


def _ranges(values: NDArray[np.int64], edges: Sequence[int], phrase: str) -> tuple[Labels, list[str]]:
    lows = [0, *edges]
    names = [phrase.format(f"{low} to {high - 1}") for low, high in zip(lows, edges, strict=False)]
    return _binned(values, edges), [*names, phrase.format(f"{edges[-1]} or more")]


def _running_at_start(baseline: Run) -> NDArray[np.int64] | None:
    """Return the sequences that held cache when the baseline's server first computed each request [requests]."""
    steps = baseline.steps
    if steps.num_rows == 0 or len(pc.unique(steps["replica"])) > 1:
        return None  # steps of several replicas are not told apart by their time
    started_s = np.asarray(pc.add(baseline.requests["sent_s"], baseline.requests["queue_s"]).to_numpy(zero_copy_only=False), dtype=float)
    places = np.searchsorted(steps["start_s"].to_numpy(), np.nan_to_num(started_s) + 1e-9, side="right") - 1
    return np.asarray(steps["running"].to_numpy()[np.clip(places, 0, steps.num_rows - 1)])


def _windows(baseline: Run) -> tuple[Labels, list[str]]:
    arrival_s = baseline.requests["arrival_s"].to_numpy()
    since_s, span_s = arrival_s - arrival_s[0], float(arrival_s[-1] - arrival_s[0])
    labels = np.minimum(since_s * (WINDOWS / span_s if span_s > 0 else 0.0), WINDOWS - 1).astype(np.int64)
    ends = [span_s * place / WINDOWS for place in range(WINDOWS + 1)]
    return labels, [f"arrived from {low:.4g} to {high:.4g} s" for low, high in itertools.pairwise(ends)]


def _columns(requests: pa.Table) -> Iterator[tuple[str, Labels, list[str]]]:
    for column, phrase in (("priority", "priority {}"), ("model", "model {}")):
        yield column, *_values(requests[column], phrase)
    blocks = requests["prefix_blocks"]
    if blocks.null_count < requests.num_rows:
        stated = pc.if_else(pc.greater(pc.list_value_length(blocks), 0), blocks, None)
        yield "prefix_group", *_values(pc.list_element(stated, 0), "beginning with block {}", most=PREFIX_GROUPS)


def _values(column: pa.ChunkedArray, phrase: str, most: int | None = None) -> tuple[Labels, list[str]]:
    """Return labels by value, the most frequent first; beyond `most` values, the others share one label."""
    counted = sorted(pc.value_counts(column).to_pylist(), key=lambda row: (-row["counts"], str(row["values"])))
    kept = [row["values"] for row in counted[:most]]
    place = {value: index for index, value in enumerate(kept)}
    labels = np.array([place.get(value, len(kept)) for value in column.to_pylist()], dtype=np.int64)
    names = ["none stated" if value is None else phrase.format(value) for value in kept]
    return labels, [*names, "any other"]
