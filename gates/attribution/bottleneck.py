"""Bottleneck class: which term of the time grew, in which layer type and phase, priced on the same recorded steps.

The time of a layer type splits without remainder into exposed terms: memory stall (time that infinite bandwidth would
save), launch floors, synchronisation, and compute for the rest; the host adds what it exceeds the device by, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gates.attribution.growth import ALL_STEPS, Growth, growth_that_counts, step_growths
from gates.attribution.invariants import NEGLIGIBLE
from gates.attribution.pool import mean_queue_s, pool_failure, pool_tokens, preemptions_count
from gates.attribution.trials import Trials
from gates.rejections import CONTEXT_LIMIT, KV_CAPACITY, LIMITS, rejected_more
from replay.assembly.run import Run
from replay.errors import SpecError
from replay.execution.step_costs import Floats, PricedKernel, price_kernels, step_seconds, swap_seconds
from replay.tiling.step_table import StepTable
from replay.tiling.terms import BOTTLENECK_OF_TERM, COLLECTIVE_LAYER

HOST_WAIT, COLLECTIVES = "waiting for the host", "collectives"
TERM_PHRASES = {"compute_s": "compute", "memory_s": "memory stall", "launch_s": "kernel launches", "sync_s": "synchronisation"}
"""How people call the exposed part of each term of a kernel."""
TERM_CLASSES = {
    **{TERM_PHRASES[term]: name for term, name in BOTTLENECK_OF_TERM.items()},
    HOST_WAIT: "launch_sync",
    COLLECTIVES: "interconnect",
}
"""Class of each exposed part of the time."""

HOST = "host"

Split = dict[tuple[str, str, str], float]
"""Seconds by (phase, layer type, term)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The class, where it grew most, and the figures in one sentence."""

    bottleneck_class: str
    layer_type: str | None
    phase: str | None
    message: str
    term: str | None = None
    """The part of the time that grew most, as people call it; None where no step costs more."""
    before_s: float | None = None
    after_s: float | None = None
    """Its time on the baseline's steps under both mappings."""

    @property
    def reason(self) -> dict[str, str]:
        """The reason that carries it."""
        return {"code": "bottleneck", "message": self.message}


def find_bottleneck(trials: Trials, blamed: frozenset[str]) -> Bottleneck | None:
    """Return the bottleneck class of a regression, from the baseline with only the blamed knobs changed.

    Where these cannot be built without the others, or change nothing without them, all changed knobs are taken; None where that cannot be
    priced either.
    """
    for knobs in dict.fromkeys((blamed, trials.knobs)):
        try:
            if knobs == trials.knobs or not _is_idle(trials, knobs):
                return _bottleneck(trials, knobs)
        except SpecError:
            continue
    return None


def _is_idle(trials: Trials, knobs: frozenset[str]) -> bool:
    """Return whether knobs alone leave every request of the baseline as it is: they act only together with others."""
    baseline, changed = trials.replayer.run(trials.baseline), trials.replayer.run(trials.only(knobs))
    return bool(changed.requests.equals(baseline.requests))


def _bottleneck(trials: Trials, knobs: frozenset[str]) -> Bottleneck:
    # Batching knobs are left out of the pricing: they decide which steps there are, not what a given step costs.
    batching = frozenset(knob for knob in knobs if knob.startswith("batching."))
    baseline = trials.replayer.run(trials.baseline)
    before = trials.replayer.table(trials.baseline)
    after = trials.replayer.table(trials.only(knobs - batching))
    growth = growth_that_counts(step_growths(baseline.steps, before, after))
    if growth is None:
        changed = trials.only(knobs)
        return _of_the_queue(baseline, trials.replayer.run(changed), before, trials.replayer.table(changed))
    return _of_the_step(growth, time_split(before, growth.view.steps), time_split(after, growth.view.steps))


def _of_the_queue(baseline: Run, changed: Run, before: StepTable, after: StepTable) -> Bottleneck:
    same = "the same steps cost no more"
    shrunk = pool_failure(baseline, changed, before, after)
    if shrunk is not None:
        return Bottleneck(bottleneck_class="memory_capacity", layer_type=None, phase=None, message=f"{same}; {shrunk}")
    preempted, refused = preemptions_count(changed) - preemptions_count(baseline), rejected_more(baseline, changed)
    if preempted > 0 or KV_CAPACITY in refused:
        pool = f"a cache pool of {pool_tokens(after)} tokens"
        message = f"{same}; on replay {preempted:+d} preemptions and {refused.get(KV_CAPACITY, 0):+d} requests that never fit, with {pool}"
        return Bottleneck(bottleneck_class="memory_capacity", layer_type=None, phase=None, message=message)
    if CONTEXT_LIMIT in refused:
        limits = f"{after.limits.max_context_tokens} tokens instead of {before.limits.max_context_tokens}"
        message = f"{same}; {refused[CONTEXT_LIMIT]} more requests are refused, by a context limit of {limits}, so less is served"
        return Bottleneck(bottleneck_class=LIMITS[CONTEXT_LIMIT].bottleneck_class, layer_type=None, phase=None, message=message)
    compiled = [float(pc.sum(run.steps["compile_s"]).as_py() or 0.0) for run in (baseline, changed)]
    if compiled[1] - compiled[0] > NEGLIGIBLE * baseline.busy_s:
        message = f"{same}; they wait {compiled[1]:.4g} s for kernels that are compiled when first needed instead of {compiled[0]:.4g} s"
        return Bottleneck(bottleneck_class="launch_sync", layer_type=None, phase=None, message=message)
    (before_s, after_s), counts = (mean_queue_s(baseline), mean_queue_s(changed)), (baseline.steps.num_rows, changed.steps.num_rows)
    message = (
        f"{same}; requests queue {after_s:.4g} s on average instead of {before_s:.4g} s, over {counts[1]} steps instead of {counts[0]}"
    )
    return Bottleneck(bottleneck_class="queueing", layer_type=None, phase=None, message=message)


def _of_the_step(growth: Growth, before: Split, after: Split) -> Bottleneck:
    grown = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in sorted({*before, *after})}
    by_class: dict[str, float] = {}
    for (_, _, term), delta_s in grown.items():
        name = TERM_CLASSES[term]
        by_class[name] = by_class.get(name, 0.0) + delta_s
    winner = max(sorted(by_class), key=lambda name: by_class[name])
    phase, layer, term = max((key for key in grown if TERM_CLASSES[key[2]] == winner), key=lambda key: grown[key])
    key = (phase, layer, term)
    place = f"{layer} in {phase} steps" if layer != HOST else f"{phase} steps"
    of_view = "" if growth.view.name == ALL_STEPS else f" ({growth.view.name})"
    message = (
        f"{term} of {place} grows from {before.get(key, 0.0):.4g} s to {after.get(key, 0.0):.4g} s on the baseline's steps{of_view}, "
        f"whose time goes from {growth.before_s:.4g} s to {growth.after_s:.4g} s"
    )
    return Bottleneck(
        bottleneck_class=winner,
        layer_type=None if layer == HOST else layer,
        phase=phase,
        message=message,
        term=term,
        before_s=before.get(key, 0.0),
        after_s=after.get(key, 0.0),
    )


def time_split(table: StepTable, steps: pa.Table) -> Split:
    """Return the busy time of the steps by phase, layer type and exposed term; the parts add up to it."""
    split: Split = {}
    prefill = steps["prefill_tokens"].to_numpy() > 0
    phases = {name: mask for name, mask in (("prefill", prefill), ("decode", ~prefill)) if mask.any()}
    seconds = step_seconds(table, steps)
    host_s = seconds.duration_s - seconds.device_s + swap_seconds(table, steps)
    for phase, mask in phases.items():
        split[phase, HOST, HOST_WAIT] = float(host_s[mask].sum())
    for kernel in price_kernels(table, steps):
        for term, one_call_s in _exposed(kernel).items():
            each_s = (kernel.weight * one_call_s)[kernel.row]
            for phase, mask in phases.items():
                key = (phase, kernel.layer_type, term)
                split[key] = split.get(key, 0.0) + float(each_s[mask].sum())
    return split


def _exposed(kernel: PricedKernel) -> dict[str, Floats]:
    """Return the time of one call by exposed part [rows]; everything about a collective is the interconnect's, nothing else is."""
    time_s, stall_s = kernel.time_s, kernel.stall_s
    if kernel.layer_type == COLLECTIVE_LAYER:
        return {COLLECTIVES: time_s}
    compute_s = time_s - stall_s - kernel.launch_s - kernel.sync_s
    exposed = {"compute_s": compute_s, "memory_s": stall_s, "launch_s": kernel.launch_s, "sync_s": kernel.sync_s}
    return {TERM_PHRASES[term]: seconds for term, seconds in exposed.items()}
