"""Claims: one metric on one stratum of one trace on one accelerator, with a margin fixed before the candidate is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gates.metrics import METRICS, MetricDefinition
from gates.strata import parse_stratum

Outcome = Literal["holds", "disproved", "undecided"]
DriftOf = Literal["throughput_tokens_per_s", "tpot_s", "clock_hz"]
ALL_REQUESTS = "all"


def claim_key(claim_id: str, trace: str, hardware: str) -> str:
    """Return a claim's id within its cell, of its id in the plan: ``ttft_s.p99`` of ``chat/h100-sxm/ttft_s.p99``."""
    return claim_id.removeprefix(f"{trace}/{hardware}/")


def subject_phrase(metric: str, *, layer_type: str | None, percentile: float | None, stratum: str, of: str | None = None) -> str:
    """Return what a claim is about, for people: ``TTFT p99 (prompts of 512 to 2047 tokens)``, ``memory-stall fraction of mlp``."""
    parts = [METRICS[metric].label]
    if layer_type is not None:
        parts.append(f"of {layer_type}")
    if percentile is not None:
        parts.append(f"p{percentile:g}")
    if of is not None:
        parts.append(f"of {of}")
    phrase = " ".join(parts)
    return phrase if stratum == ALL_REQUESTS else f"{phrase} ({parse_stratum(stratum).phrase})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """What a policy asks about every (trace, accelerator) cell."""

    metric: str
    margin: float
    """Largest worsening accepted: a fraction of the baseline for ratios, absolute for differences."""
    blocking: bool
    percentile: float | None = None
    layer_type: str | None = None
    of: DriftOf | None = None
    """The figure that a claim about drift is about; None for all others."""
    stratum: str = ALL_REQUESTS
    """`all`, or a prompt-length bin such as ``prompt_tokens[512,2048)``."""

    @property
    def definition(self) -> MetricDefinition:
        """The metric's definition."""
        return METRICS[self.metric]

    @property
    def key(self) -> str:
        """The claim's id within a cell: ``ttft_s.p99``, ``memory_stall_ratio.attention``, ``ttft_s.p95@prompt_tokens[0,512)``."""
        parts = [self.metric]
        if self.percentile is not None:
            parts.append(f"p{self.percentile:g}")
        if self.layer_type is not None:
            parts.append(self.layer_type)
        if self.of is not None:
            parts.append(self.of)
        suffix = "" if self.stratum == ALL_REQUESTS else f"@{self.stratum}"
        return ".".join(parts) + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Two one-sided bounds; `confidence` is that of the two-sided interval they make."""

    lower: float
    upper: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim with its evidence and outcome; the fields are those of the verdict document (None becomes null there)."""

    id: str
    """``<trace>/<hardware>/<key>``."""
    metric: str
    layer_type: str | None
    percentile: float | None
    trace: str
    hardware: str
    stratum: str
    direction: str
    unit: str
    baseline: float | None
    candidate: float | None
    scale: str
    ratio: float | None
    """candidate / baseline; None where the baseline is 0 or missing."""
    difference: float | None
    interval: Interval | None
    """Of the ratio or of the difference, as `scale` says."""
    margin: float
    method: str
    n: int
    n_beyond: int | None
    """Samples beyond the percentile."""
    replicates: int
    """Resamples behind the interval; 0 where it is a t interval or there is none."""
    minimum_detectable_effect: float | None
    """Smallest true worsening found with 80 % power at the plan's alpha: 2.49 x the standard error where no degrees of freedom widen it."""
    disproof_criterion: str
    rollback_boundary: str
    outcome: Outcome
    blocking: bool
    adjusted_p: float | None
    """Holm-adjusted one-sided p-value of "no worse than the baseline", over the cell's blocking claims."""
    flip_ratio: float | None = None
    """Share of the paired replays that lie on the other side of the margin's end than the recorded trace's own."""
    warnings: tuple[str, ...] = ()
    reason_code: str | None = None
    """Why it is undecided, for machines; None once it is decided."""
    reason: str | None = None
    """The same for people, with how much more data would decide it where that is known."""
    n_needed: int | None = None
    """Requests (or windows) that would decide it with 80 % power if the estimate stands."""
    runs_needed: int | None = None
    """The same in measured runs per arm, where it is those that count."""
    of: str | None = None
    """The figure whose drift it is about; the document leaves it out where there is none."""

    @property
    def key(self) -> str:
        """The id within its cell, as `ClaimSpec.key`."""
        return claim_key(self.id, self.trace, self.hardware)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form for the verdict document."""
        document: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if self.interval is not None:
            document["interval"] = {name: getattr(self.interval, name) for name in self.interval.__slots__}
        document["warnings"] = list(self.warnings)
        if self.of is None:
            del document["of"]
        return document
