"""From two quality results to figures and estimates for every planned claim about quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from gates.claim import ALL_REQUESTS, ClaimSpec
from gates.measure.measured import Measured
from gates.quality.claims import BinTraffic, beyond_traffic, in_bin
from gates.quality.pairs import PairedItems, pair_items
from gates.statistics.clustered import clustered_difference
from gates.statistics.estimate import Estimate, from_t
from gates.statistics.paired_binary import paired_shares, sign_test
from gates.strata import parse_stratum
from replay.ingress.quality.result import QualityResult, Summary
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.plan import PlannedCell

FEWEST_CLUSTERS = 10
"""Documents below which a resampled mean has no interval to trust."""
_NORMAL_DEGREES = 1e9
_WORST_TOLD = 3
UNPAIRED = "the evaluations report means without items: both arms' errors count in full, as if the items were not the same"
METHOD = "paired_items"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPair:
    """Both arms' results, and how the trace's requests spread over prompt lengths."""

    baseline: QualityResult
    candidate: QualityResult
    traffic: tuple[BinTraffic, ...]


def measure_quality(cell: PlannedCell, specs: Sequence[ClaimSpec], pair: QualityPair) -> list[Measured]:
    """Return the figures of the claims about quality, in their order; every claim gets an entry."""
    pairs = pair_items(pair.baseline, pair.candidate)
    return [_measured(cell, spec, pair, pairs) for spec in specs]


def unchanged(measured: Sequence[Measured], alpha: float) -> list[Measured]:
    """Return the figures of a candidate that computes what the baseline computes: no difference, whatever was measured of another one."""
    same = Estimate(
        method="paired_score", estimate=0.0, standard_error=0.0, degrees=_NORMAL_DEGREES, lower=0.0, upper=0.0, alpha=alpha,
        p_no_increase=1.0, p_no_decrease=1.0, minimum_detectable_effect=0.0, scale="difference",
    )  # fmt: skip
    return [
        Measured(n=one.n, baseline=one.baseline or 0.0, candidate=one.baseline or 0.0, estimate=same, method="same_formats")
        for one in measured
    ]


def unknown(measured: Sequence[Measured]) -> list[Measured]:
    """Return the figures of a mapping whose formats are neither arm's: nobody has evaluated it."""
    sentence = "no evaluation is of this mix of formats"
    return [Measured(n=0, problem=("metric_absent", sentence), method=METHOD) for _ in measured]


def _measured(cell: PlannedCell, spec: ClaimSpec, pair: QualityPair, pairs: PairedItems) -> Measured:
    mask = pc.equal(pairs.items["metric"], spec.metric)
    share = None
    if spec.stratum == ALL_REQUESTS:
        mask = pc.and_not(mask, beyond_traffic(pairs.items, pair.traffic))
    else:
        one = parse_stratum(spec.stratum)
        mask = pc.and_(mask, in_bin(pairs.items["prompt_tokens"], one))
        share = next(found.share for found in pair.traffic if found.bin == one)
    chosen = pairs.chosen(mask.to_numpy().astype(np.bool_))
    warnings = () if share is None else (f"{100 * share:.3g} % of the trace's requests are {parse_stratum(spec.stratum).phrase}",)
    if len(chosen.before):
        return _of_items(cell, spec, chosen, warnings)
    if spec.stratum == ALL_REQUESTS:
        return _of_summaries(cell, spec, pair, warnings)
    sentence = f"no item of the evaluation has such a prompt, and {100 * (share or 0.0):.3g} % of the trace's requests do"
    return Measured(problem=("stratum_absent", sentence), warnings=warnings, method=METHOD)


def _of_items(cell: PlannedCell, spec: ClaimSpec, pairs: PairedItems, warnings: tuple[str, ...]) -> Measured:
    alpha, weights = cell.policy.alpha, pairs.items["weight"].to_numpy()
    n = len(pairs.before)
    if spec.metric == "preference_ratio":
        won, lost = int((pairs.after > 0.5).sum()), int((pairs.after < 0.5).sum())
        told = (*warnings, f"{n - won - lost} of {n} comparisons are ties and left out")
        if won + lost == 0:
            return Measured(n=n, problem=("too_few_samples", "every comparison is a tie"), warnings=told, method="sign_test")
        estimate = sign_test(won, lost, alpha=alpha)
        return Measured(n=n, baseline=0.5, candidate=won / (won + lost), estimate=estimate, warnings=told, method=estimate.method)
    before, after = (float(np.average(arm, weights=weights)) for arm in (pairs.before, pairs.after))
    told = (*warnings, *_worst_tasks(spec, pairs))
    clusters = pairs.clusters
    if _is_binary(pairs) and bool((weights == 1.0).all()) and int(clusters.max()) + 1 == n:
        lost, won = int((pairs.before > pairs.after).sum()), int((pairs.after > pairs.before).sum())
        estimate = paired_shares(lost, won, n, alpha=alpha)
        told = (*told, f"{lost} items only the baseline has, {won} only the candidate")
        return Measured(n=n, baseline=before, candidate=after, estimate=estimate, warnings=told, method=estimate.method)
    count = int(clusters.max()) + 1
    if count < FEWEST_CLUSTERS:
        sentence = f"{n} items are of {count} documents and {FEWEST_CLUSTERS} are needed"
        return Measured(
            n=n, baseline=before, candidate=after, problem=("too_few_samples", sentence), warnings=told, method="cluster_bootstrap"
        )
    estimate = clustered_difference(
        pairs.after - pairs.before,
        weights,
        clusters,
        replicates=cell.policy.replicates,
        alpha=alpha,
        generator=stream(cell.seed, f"quality.{spec.key}"),
    )
    return Measured(n=n, baseline=before, candidate=after, estimate=estimate, warnings=told, method=estimate.method)


def _is_binary(pairs: PairedItems) -> bool:
    return all(bool(((arm == 0.0) | (arm == 1.0)).all()) for arm in (pairs.before, pairs.after))


def _worst_tasks(spec: ClaimSpec, pairs: PairedItems) -> Iterator[str]:
    """Yield the tasks that got worse most, where there are several: what a mean over all of them may hide."""
    encoded = pairs.items["task"].combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if len(names) < 2:
        return
    counts = np.bincount(codes, minlength=len(names))
    worse = np.bincount(codes, pairs.after - pairs.before, len(names)) / counts
    worse = -worse if spec.definition.direction == "higher" else worse
    order = [int(place) for place in np.argsort(-worse)[:_WORST_TOLD] if worse[place] > 0]
    if order:
        scale, word = (100.0, " points") if spec.definition.unit == "fraction" else (1.0, "")
        told = ", ".join(f"{names[place]} by {scale * worse[place]:.3g}{word} ({counts[place]} items)" for place in order)
        yield f"of {len(names)} tasks the worst are {told}"


def _of_summaries(cell: PlannedCell, spec: ClaimSpec, pair: QualityPair, warnings: tuple[str, ...]) -> Measured:
    """Return figures of means that both arms report for the same tasks, each task counted once."""
    arms = [{one.task: one for one in arm.summaries if one.metric == spec.metric} for arm in (pair.baseline, pair.candidate)]
    shared = [task for task in arms[0] if task in arms[1]]
    if not shared:
        return Measured(problem=("metric_absent", f"not both evaluations tell {spec.definition.label}"), warnings=warnings, method=METHOD)
    if len(shared) < max(map(len, arms)):
        sentence = f"only {len(shared)} of {max(map(len, arms))} tasks are in both evaluations"
        return Measured(problem=("unpaired_arms", sentence), warnings=warnings, method=METHOD)
    values = [[arm[task].value for task in shared] for arm in arms]
    errors = [[_error(arm[task]) for task in shared] for arm in arms]
    before, after = (float(np.mean(arm)) for arm in values)
    missing = next((task for task, *pairs in zip(shared, *errors, strict=True) if None in pairs), None)
    if missing is not None:
        sentence = f"{missing} is a mean that states neither an error nor its items"
        return Measured(
            n=len(shared), baseline=before, candidate=after, problem=("summary_only", sentence), warnings=warnings, method=METHOD
        )
    error = math.sqrt(sum(one**2 for arm in errors for one in arm if one is not None)) / len(shared)
    estimate = replace(from_t("reported_errors", after - before, error, _NORMAL_DEGREES, cell.policy.alpha), scale="difference")
    items = sum(arms[1][task].items_count or 0 for task in shared)
    return Measured(
        n=items or len(shared), baseline=before, candidate=after, estimate=estimate, warnings=(*warnings, UNPAIRED), method=estimate.method
    )


def _error(summary: Summary) -> float | None:
    """Return the standard error of a mean; one of exactly 0 (all right or all wrong) is the upper bound that so many items leave.

    Three in n items (the rule of three) is a 95 % bound, which is 1.645 errors of a normal distribution.
    """
    if summary.standard_error is not None and summary.standard_error > 0:
        return summary.standard_error
    n = summary.items_count
    if n is None:
        return None
    if 0 < summary.value < 1:
        return math.sqrt(summary.value * (1 - summary.value) / n)
    return 3.0 / n / NormalDist().inv_cdf(0.95)
