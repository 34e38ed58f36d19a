"""What power and heat add to a step table: the limits that a mapping sets, the clocks, and what a FLOP of each kernel costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from replay.lowering.kernel_plan import MATRIX_RATES, Decision, Kernel, KernelPlan
from replay.specs.hardware import HardwareSpec, PowerSpec
from replay.specs.mapping import MappingSpec
from replay.tiling.step_table import StepPower

CAP, CLOCK = "power.cap_w", "power.max_clock_hz"


def step_power(plan: KernelPlan, hardware: HardwareSpec, mapping: MappingSpec) -> StepPower | None:
    """Return how the devices of a plan draw power under a mapping; None where none is described.

    A kernel's FLOP costs `compute_w` over the peak of the format that its matrix multiplies run in, that of bf16 in attention. Vector
    units, structured sparsity and links are not counted. The devices of all pipeline stages share a step, each with its share of the
    bytes that a rank moves.
    """
    power = hardware.power
    if power is None:
        return None
    stages = mapping.count("parallelism.pipeline")
    return StepPower(
        idle_w=power.idle_w,
        cap_w=_cap_w(power, mapping),
        average_s=power.average_s,
        ambient_c=power.ambient_c,
        throttle_c=power.throttle_c,
        thermal_resistance_k_per_w=power.thermal_resistance_k_per_w,
        thermal_s=power.thermal_s,
        memory_energy_j_per_byte=power.memory_energy_j_per_byte / stages,
        full_clock_hz=hardware.clock_hz,
        clocks_hz=_clocks_hz(hardware.clock_hz, power, mapping),
        ranks_count=plan.graph.ranks_count * stages,
        flop_energy_j=tuple(power.compute_w / hardware.matrix_flops_per_s[_rate(kernel, hardware)] for kernel in plan.kernels),
    )


def power_decisions(hardware: HardwareSpec, mapping: MappingSpec, *, overlapping: bool) -> Iterator[Decision]:
    """Yield the power knobs that are set; where steps overlap in a pipeline, the power of its devices is not known."""
    for knob in (CAP, CLOCK):
        asked = mapping.value(knob)
        if asked == "device":
            continue
        effective, reason = "none", f"the description of {hardware.name} has no power section"
        if overlapping:
            reason = "several steps are under way in the pipeline (batching.inflight_microbatches)"
        elif hardware.power is not None:
            own, kept = {
                CAP: (hardware.power.cap_w, _cap_w(hardware.power, mapping)),
                CLOCK: (hardware.clock_hz, _clocks_hz(hardware.clock_hz, hardware.power, mapping)[0]),
            }[knob]
            effective, reason = f"{kept:g}", f"{hardware.name} allows {own:g}" if kept == own else f"the next of its clocks is {kept:g}"
        differs = effective != f"{mapping.number(knob):g}"
        yield Decision(knob=knob, requested=str(asked), effective=effective, reason=reason if differs else None, stage="execution")


def _cap_w(power: PowerSpec, mapping: MappingSpec) -> float:
    asked = mapping.value(CAP)
    return power.cap_w if asked == "device" else min(power.cap_w, mapping.number(CAP))


def _clocks_hz(full_hz: float, power: PowerSpec, mapping: MappingSpec) -> tuple[float, ...]:
    """Return the clocks that may be chosen, from the highest; the lowest one where a mapping asks for less."""
    steps = math.floor((full_hz - power.min_clock_hz) / power.clock_step_hz)
    clocks = [full_hz - step * power.clock_step_hz for step in range(steps + 1)]
    most_hz = full_hz if mapping.value(CLOCK) == "device" else mapping.number(CLOCK)
    return tuple(clock for clock in clocks if clock <= most_hz) or (clocks[-1],)


def _rate(kernel: Kernel, hardware: HardwareSpec) -> str:
    """Return the matrix rate that a kernel's products run at."""
    rate = MATRIX_RATES.get(kernel.activations_format, "bf16") if kernel.backends else "bf16"
    return rate if rate in hardware.matrix_flops_per_s else "bf16"
