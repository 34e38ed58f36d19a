"""Tune a mapping for the tail of latencies: coordinate descent by replaying the whole trace, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log

from replay.assembly.percentile import percentile
from replay.assembly.run import Run
from replay.errors import SpecError
from replay.execution.tables import NEVER_FITS
from replay.pipeline import Replayer
from replay.specs.mapping import MappingSpec
from replay.tuning.moves import LEAST_GAIN_RATIO, Move
from replay.tuning.settings import with_value
from replay.tuning.tune import Progress, Tuner

PERCENT = 99
METRICS = ("e2e_s", "ttft_s", "tpot_s")
BATCHING = {
    "batching.max_batched_tokens": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "batching.max_running": (16, 32, 64, 128, 256, 512, 1024),
}
"""Ladders of the batching knobs; `max_batched_tokens` is the chunk that prompts are cut into."""
Change = Callable[[MappingSpec], MappingSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """The p99 of each latency that any request has, and the requests that are refused."""

    seconds: dict[str, float]
    refused_count: int

    def score(self, other: Tails) -> float:
        """Return the mean logarithm of these tails over another's; below 0 is better."""
        ratios = [log(seconds / other.seconds[name]) for name, seconds in self.seconds.items() if other.seconds.get(name)]
        return sum(ratios) / max(len(ratios), 1)

    def is_worse(self, other: Tails) -> bool:
        """Return whether any of them is worse than another's by LEAST_GAIN_RATIO, or more requests are refused."""
        slower = any(seconds > other.seconds.get(name, 0.0) * (1.0 + LEAST_GAIN_RATIO) for name, seconds in self.seconds.items())
        return slower or self.refused_count > other.refused_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TailKept:
    """A change that was kept, and the tails around it."""

    knob: str
    move: Move | None
    """None for a batching knob."""
    before: Tails
    after: Tails


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTuned:
    """A mapping tuned for the tails of a trace."""

    mapping: MappingSpec
    kept: tuple[TailKept, ...]
    before: Tails
    after: Tails
    replays_count: int


class TailTuner:
    """Coordinate descent over the moves that shorten the steps and over the batching knobs."""

    def __init__(self, replayer: Replayer, *, most_replays: int, progress: Progress) -> None:
        self.replayer, self.most_replays, self.progress = replayer, most_replays, progress
        self.replays_count = 0

    def tune(self, mapping: MappingSpec) -> TailTuned:
        """Return the mapping after passes over all coordinates until none helps or the replays are used up.

        A change is kept if the mean logarithm of the p99s falls by LEAST_GAIN_RATIO and none of them is worse than under the
        mapping that was given.
        """
        mapping = mapping.on(self.replayer.hardware.name)
        given = now = self._tails(self._run(mapping))
        steps = self.replayer.run(mapping).steps
        routing = self.replayer.trace.expert_load
        tuner = Tuner(model=self.replayer.model, hardware=self.replayer.hardware, steps=steps, progress=self.progress, routing=routing)
        tuned = tuner.tune(mapping)
        moves = [one.move for one in tuned.kept]
        kept: list[TailKept] = []
        improved = True
        while improved and self.replays_count < self.most_replays:
            improved = False
            for knob, move, change in self._coordinates(moves, mapping, tuned.layers):
                tried = change(mapping)
                tails = self._tried(tried, knob) if tried.digest != mapping.digest else None
                if tails is not None and tails.score(now) < -LEAST_GAIN_RATIO and not tails.is_worse(given):
                    kept.append(TailKept(knob=knob, move=move, before=now, after=tails))
                    mapping, now, improved = tried, tails, True
        return TailTuned(mapping=replace(mapping, chip=None), kept=tuple(kept), before=given, after=now, replays_count=self.replays_count)

    def _coordinates(self, moves: list[Move], mapping: MappingSpec, layers: tuple[str, ...]) -> Iterator[tuple[str, Move | None, Change]]:
        """Yield what may change: each move, then a step up and a step down of each batching knob's ladder."""
        for move in moves:
            yield str(move), move, lambda there, move=move: move.apply(there, layers)  # type: ignore[misc]
        for knob, ladder in BATCHING.items():
            for up in (True, False):
                yield knob, None, lambda there, knob=knob, ladder=ladder, up=up: _stepped(there, knob, ladder, up=up)  # type: ignore[misc]

    def _tried(self, mapping: MappingSpec, knob: str) -> Tails | None:
        """Return the tails under a mapping; None where the replays are used up or it cannot be built."""
        if self.replays_count >= self.most_replays:
            return None
        self.progress(f"replay {self.replays_count + 1} of at most {self.most_replays}: {knob}")
        try:
            return self._tails(self._run(mapping))
        except SpecError:
            return None

    def _run(self, mapping: MappingSpec) -> Run:
        self.replays_count += 1
        return self.replayer.run(mapping)

    def _tails(self, run: Run) -> Tails:
        columns = {name: run.requests[name].drop_null().to_numpy() for name in METRICS}
        refused = sum(status == NEVER_FITS for status in run.requests["status"].to_pylist())
        return Tails(seconds={name: percentile(values, PERCENT) for name, values in columns.items() if len(values)}, refused_count=refused)


def _stepped(mapping: MappingSpec, knob: str, ladder: tuple[int, ...], *, up: bool) -> MappingSpec:
    """Return the mapping with the next value of a ladder; at its end, as it is."""
    now = mapping.count(knob)
    further = [value for value in (ladder if up else reversed(ladder)) if (value > now) == up and value != now]
    return with_value(mapping, knob, further[0]) if further else mapping
