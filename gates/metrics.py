"""The metrics a claim can be about: unit, direction and where the figures come from. Direction is declared, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["lower", "higher"]
Scale = Literal["ratio", "difference"]
Basis = Literal["request_percentile", "request_mean", "window_ratio", "quality_items"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """One metric.

    `basis` says what is resampled: a percentile over requests, a mean over requests, a ratio of sums over time windows, or items of a
    quality evaluation, which no replay tells.
    """

    name: str
    label: str
    """How people call it."""
    unit: str
    direction: Direction
    basis: Basis
    scale: Scale
    """How baseline and candidate are compared: fractions of [0, 1] by difference, the rest by ratio."""
    column: str = ""
    """Column of `Run.requests` for the request bases."""
    numerator: str = ""
    denominator: str = ""
    """Columns of `Run.windows` for the window basis; a denominator of `reference` is busy time x reference peak, one of `busy` the mean
    busy time of the replicas, one of `run` the seconds of the run (numerator `slo_met`: requests that met all limits).
    """
    by_layer_type: bool = False

    @property
    def needs_windows(self) -> bool:
        """Whether only the windows of a whole run tell it, not sums over a replay's steps."""
        return self.by_layer_type or self.numerator in ("energy_j", "drift")


def _requests(name: str, label: str) -> MetricDefinition:
    return MetricDefinition(name=name, label=label, unit="s", direction="lower", basis="request_percentile", scale="ratio", column=name)


def _means(name: str, label: str, unit: str, direction: Direction, column: str) -> MetricDefinition:
    return MetricDefinition(name=name, label=label, unit=unit, direction=direction, basis="request_mean", scale="difference", column=column)


def _windows(
    name: str, label: str, unit: str, direction: Direction, scale: Scale, numerator: str, denominator: str, by_layer_type: bool = False
) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        label=label,
        unit=unit,
        direction=direction,
        basis="window_ratio",
        scale=scale,
        numerator=numerator,
        denominator=denominator,
        by_layer_type=by_layer_type,
    )


def _quality(name: str, label: str, unit: str, direction: Direction) -> MetricDefinition:
    return MetricDefinition(name=name, label=label, unit=unit, direction=direction, basis="quality_items", scale="difference")


METRICS: dict[str, MetricDefinition] = {
    metric.name: metric
    for metric in (
        _requests("ttft_s", "TTFT"),
        _requests("tpot_s", "TPOT"),
        _requests("itl_s", "ITL (a request's longest gap)"),
        _requests("e2e_s", "end-to-end latency"),
        _requests("queue_s", "queueing time"),
        _means("slo_attainment_ratio", "SLO attainment", "fraction", "higher", "slo_met"),
        _means("preemptions_per_request", "preemptions per request", "count", "lower", "preemptions_per_request"),
        _windows("throughput_tokens_per_s", "tokens per busy second", "tokens/s", "higher", "ratio", "tokens", "busy"),
        _windows("sustained_flops_per_s", "sustained FLOP/s", "FLOP/s", "higher", "ratio", "flops", "busy"),
        _windows("mfu_ratio", "MFU", "fraction", "higher", "difference", "flops", "reference"),
        _windows("memory_stall_ratio", "memory-stall fraction", "fraction", "lower", "difference", "memory_stall_s", "time_s", True),
        _windows("memory_stall_s_per_token", "memory stall per token", "s/token", "lower", "ratio", "memory_stall_s", "tokens", True),
        _windows("joules_per_token", "energy per token", "J/token", "lower", "ratio", "energy_j", "tokens"),
        _windows("window_drift_ratio", "drift over the run", "last third / first third", "lower", "ratio", "drift", "drift"),
        _quality("task_accuracy_ratio", "task score", "fraction", "higher"),
        _quality("nll_nats_per_token", "negative log likelihood", "nats/token", "lower"),
        _quality("kl_nats_per_token", "KL divergence beyond the baseline's own", "nats/token", "lower"),
        _quality("top1_agreement_ratio", "agreement on the likeliest token", "fraction", "higher"),
        _quality("output_match_ratio", "answers equal to the baseline's", "fraction", "higher"),
        _quality("degenerate_ratio", "empty, endless or looping answers", "fraction", "lower"),
        _quality("batch_invariance_ratio", "answers that do not depend on the batch", "fraction", "higher"),
        _quality("preference_ratio", "preferred answers", "fraction", "higher"),
        _windows("goodput_per_s", "goodput", "requests/s", "higher", "ratio", "slo_met", "run"),
    )
}
