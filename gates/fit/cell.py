"""One cell of a workload fit matrix: a trace, a model, an accelerator and a mapping, replayed once and under the highest load it bears."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from gates.attribution.bottleneck import TERM_CLASSES, time_split
from gates.owners import UNOWNED, Owners
from gates.sweep.sweep import Question, highest_load, point_at
from replay.execution.step_costs import price_kernels
from replay.pipeline import source_seconds
from replay.tiling.step_table import MEASURED_ERROR_RATIO

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.specs.mapping import MappingSpec
    from replay.tiling.step_table import StepTable

LEAST_SOURCE_RATIO = 0.01
"""Share of the device time from which what a cost rests on is a reason of risk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCell:
    """Figures of one cell; None is what nothing is known of."""

    trace: str
    model: str
    hardware: str
    mapping: str
    problem: str | None
    """Why the mapping cannot run there; every figure is then None."""
    devices: int | None = None
    """That one server takes: ranks x replicas."""
    attainment_ratio: float | None = None
    goodput_per_s: float | None = None
    goodput_per_device_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None
    e2e_p99_s: float | None = None
    mfu_ratio: float | None = None
    memory_stall_ratio: float | None = None
    """Stalled share of the device time over all layers."""
    bottleneck_class: str | None = None
    """The class that most of the busy time is spent in."""
    kv_headroom_ratio: float | None = None
    """Share of the cache pool that is free at the fullest step."""
    joules_per_token: float | None = None
    board_w: float | None = None
    """Board limit of a device, as the mapping caps it."""
    thermal_headroom_c: float | None = None
    """Degrees between the hottest step and the temperature that throttles."""
    sustainable_ratio: float | None = None
    """Highest multiple of the recorded rate that keeps the limits."""
    fleet_devices: int | None = None
    """Devices that bear the recorded rate, split evenly among equal servers."""
    risk_ratio: float | None = None
    """Mean relative error to expect of the device time."""
    risk_reasons: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "risk_reasons": list(self.risk_reasons)}


def fit_cell(question: Question, mapping: MappingSpec, label: str, owners: Owners) -> FitCell:
    """Return the figures of a mapping on the question's trace, model and accelerator at the recorded rate.

    Raises:
        SpecError: the mapping cannot be lowered.
        TraceError: the trace has no arrivals.
    """
    replayer = question.replayer
    table, run = replayer.table(mapping), replayer.run(mapping)
    point = point_at(question, mapping, replayer.trace, 1.0)
    highest = highest_load(question, mapping, replayer.trace)
    devices = _devices(table, mapping)
    layers_s, stalls_s = (float(pc.sum(run.layers[name]).as_py() or 0.0) for name in ("time_s", "memory_stall_s"))
    power = table.power
    hottest = pc.max(run.steps["temperature_c"]).as_py()
    return FitCell(
        trace=replayer.trace.name,
        model=replayer.model.name,
        hardware=replayer.hardware.name,
        mapping=label,
        problem=None,
        devices=devices,
        attainment_ratio=point.attainment_ratio,
        goodput_per_s=point.goodput_per_s,
        goodput_per_device_per_s=point.goodput_per_s / devices,
        output_tokens_per_s=point.output_tokens_per_s,
        ttft_p95_s=point.latency_s["ttft_s.p95"],
        tpot_p95_s=point.latency_s["tpot_s.p95"],
        e2e_p99_s=point.latency_s["e2e_s.p99"],
        mfu_ratio=point.mfu_ratio,
        memory_stall_ratio=stalls_s / layers_s if layers_s > 0 else None,
        bottleneck_class=_main_class(table, run),
        kv_headroom_ratio=1.0 - float(pc.max(run.steps["kv_blocks"]).as_py() or 0) / table.pool.blocks_count
        if table.pool.blocks_count
        else 0.0,
        joules_per_token=point.joules_per_token,
        board_w=None if power is None else power.cap_w,
        thermal_headroom_c=None if power is None or hottest is None else power.throttle_c - float(hottest),
        sustainable_ratio=highest,
        fleet_devices=None if highest is None else devices * math.ceil(1.0 / highest),
        risk_ratio=expected_error(table, run),
        risk_reasons=tuple(_reasons(question, mapping, owners, run)),
    )


def expected_error(table: StepTable, run: Run) -> float | None:
    """Return the mean relative error to expect of each kernel's time, weighted by its time in a run; None where no kernel ran."""
    total, weighted = 0.0, 0.0
    for kernel, error in zip(price_kernels(table, run.steps), table.kernels["error_ratio"].to_pylist(), strict=True):
        seconds = (kernel.weight * kernel.time_s)[kernel.row]
        timed = kernel.measured_ratio[kernel.row]
        total += float(seconds.sum())
        weighted += float((seconds * (timed * MEASURED_ERROR_RATIO + (1.0 - timed) * error)).sum())
    return weighted / total if total > 0 else None


def _devices(table: StepTable, mapping: MappingSpec) -> int:
    return table.limits.all_replicas_count * mapping.count("parallelism.tensor") * mapping.count("parallelism.pipeline")


def _main_class(table: StepTable, run: Run) -> str | None:
    by_class: dict[str, float] = {}
    for (_, _, term), seconds in time_split(table, run.steps).items():
        by_class[TERM_CLASSES[term]] = by_class.get(TERM_CLASSES[term], 0.0) + seconds
    return max(sorted(by_class), key=lambda name: by_class[name]) if any(by_class.values()) else None


def _reasons(question: Question, mapping: MappingSpec, owners: Owners, run: Run) -> Iterator[str]:
    """Yield what makes the figures, or the operation, less certain."""
    seconds = source_seconds(question.replayer, mapping)
    total = sum(seconds.values())
    for source in ("datasheet", "calibrated"):
        share = seconds[source] / total if total > 0 else 0.0
        if share >= LEAST_SOURCE_RATIO:
            yield f"{share:.0%} of the device time is costed from {source} figures"
    told = {(one.knob.partition("@")[0], one.reason): one for one in question.replayer.schedule(mapping).decisions if one.reason}
    yield from (f"{one.knob} asks for {one.requested} and gets {one.effective}: {one.reason}" for one in told.values())
    unowned = sorted(setting.knob for setting in mapping.settings if owners.of(setting.knob).owner == UNOWNED)
    if unowned:
        yield f"{len(unowned)} knobs that the mapping sets have no owner"
    yield from (f"{count} requests can never fit: {reason}" for reason, count in run.rejected)
    if np.any(run.requests["preemptions_per_request"].to_numpy()):
        yield "requests are preempted at the recorded rate"
