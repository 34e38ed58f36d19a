"""Claims over requests: percentiles and means of a metric over a stratum, paired by position in the trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gates.claim import ALL_REQUESTS, ClaimSpec
from gates.measure.measured import Measured, Problem, divide, draw_units, read_column, usable
from gates.plan import PlannedCell
from gates.policy import SLO_LIMITS, SloLimits
from gates.statistics.blocks import BlockDraw, Floats, block_counts, block_sums
from gates.statistics.tails import Sample, resampled_percentiles
from gates.strata import parse_stratum
from replay.assembly.percentile import percentile, rank, samples_needed
from replay.execution.tables import COMPLETED

Mask = NDArray[np.bool_]
Key = tuple[str, str]
"""Column and stratum."""
_EVENT_FREE_BOUND = 3.0  # with no event in n trials the upper 95 % bound of the rate is 3 / n (rule of three)


def measure_requests(
    cell: PlannedCell, wanted: Sequence[tuple[int, ClaimSpec]], baseline: pa.Table, candidate: pa.Table
) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim; both tables hold the same requests in arrival order."""
    if baseline.num_rows == 0:
        yield from ((index, Measured(problem=("metric_absent", "the trace has no requests"))) for index, _ in wanted)
        return
    pairs = {pair_key(spec): pair_requests(spec, cell.policy.slo, baseline, candidate) for _, spec in wanted}
    draw = draw_units(cell, baseline.num_rows, "bootstrap")
    tails = _tails(draw, [spec for _, spec in wanted], pairs)
    for index, spec in wanted:
        pair = pairs[pair_key(spec)]
        if pair.problem is not None:
            yield index, Measured(n=pair.n, warnings=pair.warnings, problem=pair.problem)
        elif spec.percentile is None:
            yield index, _mean(cell, spec, draw, pair)
        else:
            yield index, _percentile(cell, spec.percentile, pair, tails[pair_key(spec), spec.percentile])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestPair:
    """One metric of both arms over the requests of one stratum."""

    baseline: Floats
    """[requests] 0 where missing."""
    candidate: Floats
    members: Mask
    """[requests] in the stratum, with the metric in both arms."""
    warnings: tuple[str, ...]
    problem: Problem | None

    @property
    def n(self) -> int:
        """Members."""
        return int(self.members.sum())

    @property
    def arms(self) -> tuple[Floats, Floats]:
        """Baseline and candidate."""
        return self.baseline, self.candidate


def pair_key(spec: ClaimSpec) -> Key:
    """Return what claims share that are about one metric of one stratum."""
    return spec.definition.column, spec.stratum


def pair_requests(spec: ClaimSpec, slo: SloLimits | None, baseline: pa.Table, candidate: pa.Table) -> RequestPair:
    """Return a claim's metric in both arms, and why it cannot be compared where it cannot."""
    column = spec.definition.column
    values, present = zip(*(read_metric(table, column, slo) for table in (baseline, candidate)), strict=True)
    completed = [_completed(table) for table in (baseline, candidate)]
    stratum = members_of(spec.stratum, baseline)
    members = present[0] & present[1] & stratum
    one_sided = (present[0] != present[1]) & stratum
    served_by_both = completed[0] & completed[1]
    rejected_count, unexplained_count = int((one_sided & ~served_by_both).sum()), int((one_sided & served_by_both).sum())
    warnings = (f"{rejected_count} requests that one arm rejects are left out",) if rejected_count else ()
    problem: Problem | None = None
    if unexplained_count:
        problem = ("one_sided_values", f"{unexplained_count} requests that both arms served have {column} in one arm only")
    elif not stratum.any():
        problem = ("stratum_absent", "the trace has no such request")
    elif not members.any():
        problem = ("metric_absent", f"{_lacking(present, stratum)} {column} for any such request")
    return RequestPair(baseline=values[0], candidate=values[1], members=members, warnings=warnings, problem=problem)


def _lacking(present: Sequence[Mask], stratum: Mask) -> str:
    has = [bool((arm & stratum).any()) for arm in present]
    if has == [False, False]:
        return "neither arm has"
    if has == [True, True]:
        return "the arms never both have"
    return "the candidate does not have" if has[0] else "the baseline does not have"


def read_metric(table: pa.Table, column: str, slo: SloLimits | None) -> tuple[Floats, Mask]:
    """Return a metric's values [requests] (0 where missing) and where they are present; whether the limits are met is always known."""
    if column != "slo_met":
        return read_column(table, column)
    met = _completed(table)
    for name in SLO_LIMITS:
        limit_s = getattr(slo, name)
        if limit_s is not None:
            values, present = read_column(table, name)
            met &= ~present | (values <= limit_s)
    return met.astype(np.float64), np.ones(len(met), dtype=np.bool_)


def _completed(table: pa.Table) -> Mask:
    done: Mask = pc.equal(table["status"], COMPLETED).to_numpy()
    return done


def members_of(stratum: str, table: pa.Table) -> Mask:
    """Return which requests [requests] belong to a stratum; one whose prompt length is unknown belongs to `all` alone."""
    if stratum == ALL_REQUESTS:
        return np.ones(table.num_rows, dtype=np.bool_)
    one_bin = parse_stratum(stratum)
    prompts_tokens, known = read_column(table, "prompt_tokens")
    inside: Mask = known & (prompts_tokens >= one_bin.tokens_from)
    return inside if one_bin.tokens_to is None else inside & (prompts_tokens < one_bin.tokens_to)


def _tails(draw: BlockDraw, specs: Sequence[ClaimSpec], pairs: dict[Key, RequestPair]) -> dict[tuple[Key, float], tuple[Floats, Floats]]:
    """Return both arms' replicates by column, stratum and percentile, from one pass over the resamples."""
    asked: dict[Key, list[float]] = {}
    for spec in specs:
        if spec.percentile is not None and pairs[pair_key(spec)].problem is None:
            asked.setdefault(pair_key(spec), []).append(spec.percentile)
    samples = [
        Sample(values=arm[pairs[key].members], positions=np.flatnonzero(pairs[key].members), percents=tuple(percents))
        for key, percents in asked.items()
        for arm in pairs[key].arms
    ]
    replicates = iter(resampled_percentiles(draw, samples))
    found = {}
    for key, percents in asked.items():
        baseline, candidate = next(replicates), next(replicates)
        for column, percent in enumerate(percents):
            found[key, percent] = (baseline[:, column], candidate[:, column])
    return found


def _percentile(cell: PlannedCell, percent: float, pair: RequestPair, replicates: tuple[Floats, Floats]) -> Measured:
    return percentile_figures(cell, percent, (pair.baseline[pair.members], pair.candidate[pair.members]), replicates, pair.warnings)


def percentile_figures(
    cell: PlannedCell, percent: float, samples: tuple[Floats, Floats], replicates: tuple[Floats, Floats], warnings: tuple[str, ...]
) -> Measured:
    """Return the figures of a percentile of both arms' values, with what speaks against deciding on so few; samples are not empty."""
    minimum, steady = cell.policy.minimum_beyond, cell.policy.warning_beyond
    n = min(len(sample) for sample in samples)
    beyond = n - rank(n, percent)
    baseline, candidate = (percentile(sample, percent) for sample in samples)
    measured = Measured(n=n, n_beyond=beyond, baseline=baseline, candidate=candidate, warnings=warnings)
    if beyond < minimum:
        n_needed = samples_needed(minimum, percent)
        sentence = f"{beyond} samples lie beyond p{percent:g} and {minimum} are needed: about {n_needed} requests"
        measured = replace(measured, problem=("too_few_samples", sentence), n_needed=n_needed)
    elif beyond < steady:
        warning = f"only {beyond} samples lie beyond p{percent:g}; from {steady} on the figure is steady"
        measured = replace(measured, warnings=(*measured.warnings, warning))
    return _with_replicates(measured, replicates)


def _mean(cell: PlannedCell, spec: ClaimSpec, draw: BlockDraw, pair: RequestPair) -> Measured:
    replicates = (resampled_means(draw, pair.baseline, pair.members), resampled_means(draw, pair.candidate, pair.members))
    return mean_figures(cell, spec, (pair.baseline[pair.members], pair.candidate[pair.members]), replicates, pair.warnings)


def resampled_means(draw: BlockDraw, values: Floats, members: Mask) -> Floats:
    """Return [replicates] the mean of the members of each resample, NaN where it holds none."""
    return divide(block_sums(draw, np.where(members, values, 0.0)), block_counts(draw, members).astype(np.float64))


def mean_figures(
    cell: PlannedCell, spec: ClaimSpec, samples: tuple[Floats, Floats], replicates: tuple[Floats, Floats], warnings: tuple[str, ...]
) -> Measured:
    """Return the figures of a mean of both arms' values, with what speaks against deciding on so few; samples are not empty."""
    n = min(len(sample) for sample in samples)
    measured = Measured(n=n, baseline=float(samples[0].mean()), candidate=float(samples[1].mean()), warnings=warnings)
    n_needed = max(cell.policy.minimum_beyond, math.ceil(_EVENT_FREE_BOUND / spec.margin))
    if n < n_needed:
        sentence = f"{n} requests cannot show a margin of {spec.margin:g}: {n_needed} are needed"
        measured = replace(measured, problem=("too_few_samples", sentence), n_needed=n_needed)
    return _with_replicates(measured, replicates)


def _with_replicates(measured: Measured, replicates: tuple[Floats, Floats]) -> Measured:
    if usable(replicates):
        return replace(measured, replicates=replicates)
    sentence = "its requests stand so close together in the trace that some resamples hold none of them"
    return replace(measured, problem=measured.problem or ("undefined_resamples", sentence))
