"""Moves: what one knob is changed to at one place, and what that is predicted to save there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import CollectiveShape
from replay.specs.knobs import KNOBS, Value
from replay.specs.mapping import MappingSpec
from replay.specs.scopes import UNBOUNDED_ROWS
from replay.tiling.schedule import Schedule
from replay.tuning.candidates import AUTO, Candidates, Predictor
from replay.tuning.mix import Counts
from replay.tuning.ranges import LEAVE, best_ranges
from replay.tuning.settings import Place, Ranges, places, ranges_at, with_ranges, with_value

LEAST_GAIN_RATIO = 0.001
"""What a setting has to save of a place's time to be written; measurements differ by more from run to run."""
ROW_KNOBS = ("gemm.tile", "gemm.split_k", "attention.tile", "attention.kv_split")
ONE_SHOT = "all_reduce.one_shot_max_bytes"
ONE_SHOT_BYTES = (0, *(2**power for power in range(15, 25)))
"""Thresholds to try: none, then 32 KiB to 16 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeGain:
    """What one range of the traffic's rows saves by a new value."""

    first_row: int
    last_row: int
    was: Value
    value: Value
    before_s: float
    """Time of the place's kernels in the trace's steps with such rows."""
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A knob's new values at a place, or its one new value (`place` is None)."""

    knob: str
    place: Place | None
    value: Value | None
    ranges: Ranges
    place_s: float
    """Time, in all steps of the trace, of what the knob governs at the place."""
    gains: tuple[RangeGain, ...]

    def apply(self, mapping: MappingSpec, layers: tuple[str, ...]) -> MappingSpec:
        """Return the mapping with this move made; the knob's other places stay."""
        if self.place is None:
            assert self.value is not None
            return with_value(mapping, self.knob, self.value)
        wanted = {place: ranges_at(mapping, self.knob, place) for place in places(self.knob, layers)}
        return with_ranges(mapping, self.knob, {**wanted, self.place: self.ranges})

    def __str__(self) -> str:
        if self.place is None:
            return self.knob
        return f"{self.knob}@{self.place}" if self.place.layer in KNOBS[self.knob].layers else f"{self.knob}@{self.place.phase}"


def product_layers(schedule: Schedule) -> tuple[str, ...]:
    """Return the layer types of a model's products, in execution order."""
    return tuple(dict.fromkeys(kernel.layer_type for kernel in schedule.plan.kernels if kernel.backends))


def row_move(predictor: Predictor, knob: str, place: Place) -> Move | None:
    """Return the best move of a knob at a place, or None where the traffic has no such rows or none of them changes."""
    found = predictor.candidates(knob, place)
    if found is None:
        return None
    wanted = _ranges(found)
    old, new = _at(found, ranges_at(predictor.pricer.mapping, knob, place)), _at(found, wanted)
    if (old == new).all():
        return None
    rows = np.arange(len(found.rows))
    before, after = found.seconds[old, rows], found.seconds[new, rows]
    gains = []
    for (was, value), group in groupby(rows.tolist(), key=lambda row: (int(old[row]), int(new[row]))):
        there = list(group)
        if was != value:
            first, last = int(found.rows[there[0]]), int(found.rows[there[-1]])
            seconds = {"before_s": float(before[there].sum()), "after_s": float(after[there].sum())}
            gains.append(RangeGain(first_row=first, last_row=last, was=found.values[was], value=found.values[value], **seconds))
    return Move(knob=knob, place=place, value=None, ranges=wanted, place_s=float(before.sum()), gains=tuple(gains))


def _ranges(found: Candidates) -> Ranges:
    """Return the best values by ranges of rows; rows below, above and beside the traffic that is set are left alone.

    Rows without traffic between two settings go with the lower one.
    """
    chosen = best_ranges(found.seconds, LEAST_GAIN_RATIO * float(found.seconds[LEAVE].sum()))
    pieces: list[tuple[int, int, Value]] = []
    free_from = 1
    for range_, following in zip(chosen, [*chosen[1:], None], strict=True):
        if range_.choice == LEAVE:
            continue
        first, last = int(found.rows[range_.first]), int(found.rows[range_.last])
        if following is not None and following.choice != LEAVE:
            last = int(found.rows[following.first]) - 1
        if first > free_from:
            pieces.append((free_from, first - 1, AUTO))
        pieces.append((first, last, found.values[range_.choice]))
        free_from = last + 1
    return (*pieces, (free_from, UNBOUNDED_ROWS, AUTO))


def _at(found: Candidates, ranges: Ranges) -> Counts:
    """Return the place of the value that ranges give each row of the traffic; what cannot run is the default."""
    index = {value: place for place, value in enumerate(found.values)}
    values = [next(value for first, last, value in ranges if first <= row <= last) for row in found.rows.tolist()]
    return np.array([index.get(value, LEAVE) for value in values], dtype=np.int64)


def one_shot_move(predictor: Predictor) -> Move | None:
    """Return the best threshold of one-shot collectives, or None where there are none or the one given is as good."""
    collectives = [kernel for kernel in predictor.plan.kernels if isinstance(kernel.shape, CollectiveShape)]
    given = predictor.pricer.mapping.count(ONE_SHOT)
    seconds: dict[int, float] = {}
    for threshold in dict.fromkeys((given, *ONE_SHOT_BYTES)):
        pricer = replace(predictor.pricer, mapping=with_value(predictor.pricer.mapping, ONE_SHOT, threshold))
        seconds[threshold] = sum(_collective_s(replace(predictor, pricer=pricer), kernel) for kernel in collectives)
    best = min(seconds, key=lambda threshold: seconds[threshold])
    if not collectives or best == given:
        return None
    return single_move(ONE_SHOT, was=given, value=best, before_s=seconds[given], after_s=seconds[best])


def _collective_s(predictor: Predictor, kernel: Kernel) -> float:
    """Return the time of all calls of a collective."""
    mix = predictor.mix
    rows = (mix.sequences,) if kernel.axis == "sequences" else mix.tokens
    found = [
        float((predictor.pricer.movement(kernel, part.rows.astype(np.float64)).time_s * part.steps_count).sum())
        for part in rows
        if len(part.rows)
    ]
    return sum(found) * kernel.calls_count


def single_move(knob: str, *, was: Value, value: Value, before_s: float, after_s: float) -> Move:
    """Return the move of a knob that has one value for the whole model."""
    gain = RangeGain(first_row=1, last_row=UNBOUNDED_ROWS, was=was, value=value, before_s=before_s, after_s=after_s)
    return Move(knob=knob, place=None, value=value, ranges=(), place_s=before_s, gains=(gain,))
