"""run(trace, model, hardware, mapping) -> Run: the only file that sees all stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.assembly.assemble import assemble
from replay.execution.engine import replay
from replay.lowering.select import plan_kernels
from replay.tiling.schedule import Schedule, schedule

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.ingress.trace import Trace
    from replay.specs.hardware import HardwareSpec
    from replay.specs.mapping import MappingSpec
    from replay.specs.model import ModelSpec
    from replay.tiling.step_table import StepTable


def compile_mapping(model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec) -> Schedule:
    """Return the schedule of a mapping: stages 2 and 3.

    Raises:
        SpecError: the mapping's tensor-parallel ranks do not divide the model.
    """
    return schedule(plan_kernels(model, hardware, mapping), model, hardware, mapping)


def run(trace: Trace, model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec, *, seed: int) -> Run:
    """Return what would have happened had `trace` been served by `model` on `hardware` under `mapping`.

    Raises:
        TraceError: the trace has no arrival times.
        SpecError: the mapping cannot be lowered for the model.
    """
    return Replayer(trace=trace, model=model, hardware=hardware, seed=seed).run(mapping)


class Replayer:
    """Replays mappings on one trace, model and accelerator; remembers each mapping's schedule and run by digest."""

    def __init__(self, *, trace: Trace, model: ModelSpec, hardware: HardwareSpec, seed: int) -> None:
        self.trace, self.model, self.hardware, self.seed = trace, model, hardware, seed
        self._schedules: dict[str, Schedule] = {}
        self._runs: dict[str, Run] = {}

    def schedule(self, mapping: MappingSpec) -> Schedule:
        """Return the mapping's schedule."""
        if mapping.digest not in self._schedules:
            self._schedules[mapping.digest] = compile_mapping(self.model, self.hardware, mapping)
        return self._schedules[mapping.digest]

    def table(self, mapping: MappingSpec) -> StepTable:
        """Return the mapping's step table."""
        return self.schedule(mapping).table

    def run(self, mapping: MappingSpec) -> Run:
        """Return the mapping's run."""
        if mapping.digest not in self._runs:
            table = self.table(mapping)
            self._runs[mapping.digest] = assemble(
                trace=self.trace,
                table=table,
                replayed=replay(self.trace, table),
                model=self.model.name,
                hardware=self.hardware.name,
                mapping_digest=mapping.digest,
                seed=self.seed,
            )
        return self._runs[mapping.digest]
