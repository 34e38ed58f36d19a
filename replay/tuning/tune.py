"""Tune a mapping for the steps of a replay: each knob at each place in turn, kept only where the priced steps get shorter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from replay.execution.step_costs import step_seconds
from replay.pipeline import compile_mapping
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.specs.routing import ExpertLoad
from replay.tiling.library import KernelLibrary
from replay.tiling.pricing import Pricer
from replay.tiling.schedule import Schedule
from replay.tuning.candidates import Predictor
from replay.tuning.graphs import graph_move
from replay.tuning.mix import ShapeMix, shape_mix
from replay.tuning.moves import LEAST_GAIN_RATIO, ROW_KNOBS, Move, one_shot_move, product_layers, row_move
from replay.tuning.settings import places

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A move that was kept, and the time of all steps around it."""

    move: Move
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A mapping tuned for some steps."""

    mapping: MappingSpec
    kept: tuple[Kept, ...]
    """In the order in which they were made."""
    before_s: float
    """Time of the steps under the mapping that was given."""
    after_s: float
    layers: tuple[str, ...]
    """Layer types of the model's products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """What is tuned for."""

    model: ModelSpec
    hardware: HardwareSpec
    steps: pa.Table
    """SHAPE_COLUMNS of `replay.execution.tables`, within the limits of the mapping."""
    progress: Progress
    routing: ExpertLoad | None = None
    """How often the steps' trace chooses each expert, where that is known."""

    def tune(self, mapping: MappingSpec) -> Tuned:
        """Return the mapping with every knob at its best place by place, for this accelerator; other knobs stay.

        A candidate is chosen by its cost on the shape mix, and kept if all steps, priced anew, save at least LEAST_GAIN_RATIO
        of the time of what it governs: the result is never slower on the steps.
        """
        mapping = mapping.on(self.hardware.name)
        schedule = compile_mapping(self.model, self.hardware, mapping, routing=self.routing)
        mix = shape_mix(schedule.table, self.steps)
        before_s = now_s = self._seconds(schedule)
        kept: list[Kept] = []
        for propose in self._proposals(schedule, mix):
            move = propose(mapping, schedule)
            if move is None:
                continue
            self.progress(f"trying {move}")
            tried = move.apply(mapping, product_layers(schedule))
            compiled = compile_mapping(self.model, self.hardware, tried, routing=self.routing)
            tried_s = self._seconds(compiled)
            if now_s - tried_s > LEAST_GAIN_RATIO * move.place_s:
                kept.append(Kept(move=move, before_s=now_s, after_s=tried_s))
                mapping, schedule, now_s = tried, compiled, tried_s
        layers = product_layers(schedule)
        return Tuned(mapping=replace(mapping, chip=None), kept=tuple(kept), before_s=before_s, after_s=now_s, layers=layers)

    def _proposals(self, schedule: Schedule, mix: ShapeMix) -> Iterator[Callable[[MappingSpec, Schedule], Move | None]]:
        """Yield what proposes a move under the mapping as it stands: tiles and splits by place, then collectives and graphs."""
        library = KernelLibrary(device=self.hardware)

        def predictor(mapping: MappingSpec, now: Schedule) -> Predictor:
            pricer = Pricer(library=library, mapping=mapping)
            return Predictor(plan=now.plan, pricer=pricer, limits=now.table.limits, mix=mix)

        for knob in ROW_KNOBS:
            for place in places(knob, product_layers(schedule)):
                yield lambda mapping, now, knob=knob, place=place: row_move(predictor(mapping, now), knob, place)  # type: ignore[misc]
        yield lambda mapping, now: one_shot_move(predictor(mapping, now))
        yield lambda mapping, now: graph_move(now.table, mapping, self.steps)

    def _seconds(self, schedule: Schedule) -> float:
        return float(step_seconds(schedule.table, self.steps).duration_s.sum())
