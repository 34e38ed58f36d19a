"""sweep(replayer, mapping, ...) -> the curve of a mapping over loads, and the highest load under which the limits hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from gates.measure.goodput import goodput_per_s
from gates.measure.requests import read_metric
from gates.policy import SloLimits
from gates.resimulation.stitch import can_stitch, stitched
from gates.statistics.blocks import block_length, draw_blocks
from gates.statistics.student import t_bound
from gates.sweep.load import Axis
from replay.assembly.headline import headline_of
from replay.assembly.layers import ALL_LAYERS
from replay.assembly.percentile import percentile
from replay.seeds import stream

if TYPE_CHECKING:
    from replay.ingress.trace import Trace
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec

PERCENTS = (50.0, 95.0, 99.0)
METRICS = ("ttft_s", "tpot_s", "e2e_s")
REPLICATES, BLOCKS = 8, 25
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """A mapping under one load."""

    load: float
    """Of the axis."""
    offered_per_s: float | None
    """Requests per second of the trace so sent; None for clients that wait."""
    served_per_s: float
    """Requests that ended, over the time from the first arrival to the last end."""
    output_tokens_per_s: float
    goodput_per_s: float
    attainment_ratio: float
    """Share of all requests that met every limit."""
    latency_s: dict[str, float | None]
    """By metric and percentile: ``ttft_s.p95``."""
    mfu_ratio: float
    joules_per_token: float | None
    """Per token of prompt and answer that was computed; None where the device has no power."""
    preemptions: int
    rejected: int

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustainable:
    """The highest load found under which enough requests meet the limits."""

    load: float | None
    """None where not even the least load does."""
    lower: float | None
    upper: float | None
    """95 % interval over resamples of the traffic; None where the trace allows none."""
    sentence: str
    """What was found, or why nothing was."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A mapping's points by rising load, where the curve bends, and the highest sustainable load."""

    mapping: str
    points: tuple[SweepPoint, ...]
    knee: float | None
    sustainable: Sustainable

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        points = [point.to_document() for point in self.points]
        return {"mapping": self.mapping, "points": points, "knee": self.knee, "sustainable": self.sustainable.to_document()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a sweep is asked."""

    replayer: Replayer
    axis: Axis
    loads: tuple[float, ...]
    """Ascending."""
    slo: SloLimits
    attainment: float
    """Share of requests that has to meet all limits."""
    jobs: int
    progress: Callable[[str], None]


def sweep(question: Question, mapping: MappingSpec, label: str) -> Curve:
    """Return the curve of a mapping.

    Raises:
        SpecError: the mapping cannot be lowered, or a load is out of its range.
        TraceError: the trace has no arrivals to scale.
    """
    question.replayer.table(mapping)  # once, before the threads ask for it
    with ThreadPoolExecutor(max_workers=question.jobs) as pool:
        points = tuple(pool.map(lambda load: point_at(question, mapping, question.replayer.trace, load), question.loads))
        question.progress(f"{label}: looking for the highest load that keeps the limits")
        sustainable = _sustainable(question, mapping, pool)
    return Curve(mapping=label, points=points, knee=knee_of(points), sustainable=sustainable)


def point_at(question: Question, mapping: MappingSpec, trace: Trace, load: float) -> SweepPoint:
    """Return the figures of one replay of a trace under a load."""
    sent = question.axis.trace_at(trace, load)
    run = question.replayer.run_on(sent, mapping)
    requests, head = run.requests, headline_of(run)
    ended = requests.filter(pc.is_valid(requests["e2e_s"]))
    last_s = float(np.max(ended["arrival_s"].to_numpy() + ended["e2e_s"].to_numpy(), initial=0.0))
    tokens = int(pc.sum(ended["output_tokens"]).as_py() or 0)
    sums = {name: head.sums.get((ALL_LAYERS, name), 0.0) for name in ("time_s", "flops", "tokens")}
    energy_j = head.sums.get((ALL_LAYERS, "energy_j"))
    open_loop = question.axis.name == "rate_ratio" and sent.span_s > 0
    return SweepPoint(
        load=load,
        offered_per_s=(sent.requests.num_rows - 1) / sent.span_s if open_loop else None,
        served_per_s=ended.num_rows / last_s if last_s > 0 else 0.0,
        output_tokens_per_s=tokens / last_s if last_s > 0 else 0.0,
        goodput_per_s=goodput_per_s(requests, question.slo) if last_s > 0 else 0.0,
        attainment_ratio=_attainment(requests, question.slo),
        latency_s={f"{metric}.p{percent:g}": _percentile(ended[metric], percent) for metric in METRICS for percent in PERCENTS},
        mfu_ratio=sums["flops"] / (sums["time_s"] * head.reference_flops_per_s) if sums["time_s"] > 0 else 0.0,
        joules_per_token=energy_j / sums["tokens"] if energy_j is not None and sums["tokens"] else None,
        preemptions=int(pc.sum(requests["preemptions_per_request"]).as_py() or 0),
        rejected=sum(count for _, count in run.rejected),
    )


def knee_of(points: Sequence[SweepPoint]) -> float | None:
    """Return the load at which p95 of the end-to-end latency leaves the straight line from the first to the last point furthest below.

    Both axes scaled to 0..1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011). None below three points, or where it never does.
    """
    known = [(point.load, value) for point in points if (value := point.latency_s["e2e_s.p95"]) is not None]
    if len(known) < 3:
        return None
    loads, values = (np.array(column) for column in zip(*known, strict=True))
    if np.ptp(values) <= 0 or np.ptp(loads) <= 0:
        return None
    below = (loads - loads[0]) / np.ptp(loads) - (values - values[0]) / np.ptp(values)
    place = int(np.argmax(below))
    return float(loads[place]) if below[place] > 0 else None


def _sustainable(question: Question, mapping: MappingSpec, pool: ThreadPoolExecutor) -> Sustainable:
    replayer, axis = question.replayer, question.axis
    found = highest_load(question, mapping, replayer.trace)
    low, high = axis.bounds
    if found is None:
        least = point_at(question, mapping, replayer.trace, low)
        wanted = f"{question.attainment:.4g} of the requests"
        sentence = f"at the least load tried ({low:g}) {least.attainment_ratio:.4g} of the requests meet the limits, and {wanted} have to"
        return Sustainable(load=None, lower=None, upper=None, sentence=sentence)
    if found >= high:
        return Sustainable(load=found, lower=None, upper=None, sentence=f"the limits hold at every load tried, up to {high:g}")
    n = replayer.trace.requests.num_rows
    if not can_stitch(replayer.trace) or n < 2 * BLOCKS:
        return Sustainable(load=found, lower=None, upper=None, sentence="no interval: the trace cannot be resampled in blocks")
    generator = stream(replayer.seed, "sweep.blocks")
    draw = draw_blocks(n, length=block_length(n, BLOCKS), replicates=REPLICATES, generator=generator)
    traces = [stitched(replayer.trace, draw, place) for place in range(REPLICATES)]
    resampled = list(pool.map(lambda trace: highest_load(question, mapping, trace, near=found), traces))
    logs = np.log([one for one in resampled if one is not None])
    if len(logs) < REPLICATES:
        return Sustainable(load=found, lower=None, upper=None, sentence="no interval: some resamples of the traffic sustain no load")
    width = t_bound(ALPHA / 2, REPLICATES - 1) * float(np.std(logs, ddof=1))
    lower, upper = found * math.exp(-width), found * math.exp(width)
    return Sustainable(load=found, lower=lower, upper=upper, sentence=f"95 % interval over {REPLICATES} resamples of the traffic")


def highest_load(question: Question, mapping: MappingSpec, trace: Trace, *, near: float = 1.0) -> float | None:
    """Return the highest load under which the limits hold, by doubling from `near` and bisection; None where the least load breaks them.

    Attainment falls with the load; where it does not (a batch that only fills under load), the crossing next to the start is found.
    """
    axis = question.axis
    low_end, high_end = axis.bounds

    def holds(load: float) -> bool:
        sent = axis.trace_at(trace, load)
        head = question.replayer.headline(sent, mapping, {}, by_layer=False)
        return _attainment(head.requests, question.slo) >= question.attainment

    value = min(max(near, low_end), high_end)
    value = float(round(value)) if axis.name == "concurrency" else value
    if holds(value):
        low, high = value, value
        while high < high_end:
            high = min(2 * high, high_end)
            if not holds(high):
                break
            low = high
        else:
            return high_end
    else:
        low, high = value, value
        while low > low_end:
            low = max(low / 2, low_end) if axis.name == "rate_ratio" else max(float(int(low) // 2), low_end)
            if holds(low):
                break
            high = low
        else:
            return None
    while (middle := axis.between(low, high)) is not None:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _attainment(requests: Any, slo: SloLimits) -> float:
    return float(np.mean(read_metric(requests, "slo_met", slo)[0])) if requests.num_rows else 0.0


def _percentile(column: Any, percent: float) -> float | None:
    values = column.drop_null().to_numpy()
    return percentile(values, percent) if len(values) else None
