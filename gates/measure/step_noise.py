"""The noise of recorded step times, taken out of a pair's log ratio and out of the log percentile of each of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gates.measure.figures import values_of
from gates.measure.pairing import in_arrival_order
from gates.measure.step_replay import StepReplay, step_replay
from gates.statistics.blocks import Floats
from gates.statistics.estimate import Fallback
from gates.statistics.noise_fit import Noise
from gates.statistics.noise_swap import NoiseSwap, denoised_log_percentiles, noise_swap
from gates.statistics.pairs import is_tail_known
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.claim import ClaimSpec
    from gates.measure.requests import RequestPair
    from gates.plan import PlannedCell
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.specs.mapping import MappingSpec

FALLBACKS: dict[Fallback, str] = {
    "too_few_requests": "there are too few requests",
    "tail_not_reproduced": "the baseline replayed with its own step times does not reproduce its own tail",
    "more_stalls": "the candidate has more stalled steps than chance explains, so that it cannot be released either",
    "residuals_differ": "the arms' steps differ in a way that their model does not know",
}
"""Why a replay may not price the noise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairNoise:
    """The replay of two runs of the same requests."""

    replays: StepReplay
    tables: tuple[pa.Table, pa.Table]

    def swap(self, cell: PlannedCell, spec: ClaimSpec, values: RequestPair) -> NoiseSwap:
        """Return the estimate of a claim about a percentile whose tail is known in both arms."""
        assert spec.percentile is not None
        members, arrivals = values.members, self.tables[0]["arrival_s"].to_numpy()
        steps = (self.replays.steps_of(0, arrivals[members]), self.replays.steps_of(1, arrivals[members]))
        generator = stream(cell.seed, "bootstrap")

        def replayed(effects: Floats, noise: Noise) -> Floats:
            return self.replays.latencies(spec.metric, effects, noise)[members]

        return noise_swap(values.samples, steps, spec.percentile, replayed, alpha=cell.policy.alpha, generator=generator)


def pair_noise(
    runs: tuple[MeasuredRun, MeasuredRun], tables: tuple[pa.Table, pa.Table], mappings: Sequence[MappingSpec | None]
) -> PairNoise | str:
    """Return the replay of a pair whose `tables` hold the same requests, or why there is none."""
    if any(run.requests.num_rows != table.num_rows for run, table in zip(runs, tables, strict=True)):
        return "the arms do not hold the same requests throughout"
    found = step_replay(runs, tables[0], mappings)
    if isinstance(found, str):
        return found
    shifts = np.abs(tables[0]["arrival_s"].to_numpy() - tables[1]["arrival_s"].fill_null(float("inf")).to_numpy())
    if float(shifts.max()) > found.median_step_s:
        return "requests arrived at other times in the arms, by more than a step takes"
    return PairNoise(replays=found, tables=tables)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunNoise:
    """Replays of single runs, each with its own step times."""

    mapping: MappingSpec | None
    built: dict[int, StepReplay | str] = field(default_factory=dict)
    """By the identity of the run, which whoever asks keeps."""

    def log_percentile(self, cell: PlannedCell, spec: ClaimSpec, run: MeasuredRun) -> float | None:
        """Return the log percentile of a run without the noise of its steps; None where no replay gives the run's own tail."""
        table = in_arrival_order(run.requests)
        if id(run) not in self.built:
            self.built[id(run)] = step_replay([run], table, [self.mapping])
        replays = self.built[id(run)]
        values, members = values_of(cell, spec, table)
        sample = values[members]
        if isinstance(replays, str) or spec.percentile is None or not len(sample) or not is_tail_known(sample, spec.percentile):
            return None
        steps = replays.steps_of(0, table["arrival_s"].to_numpy()[members])

        def replayed(effects: Floats, noise: Noise) -> Floats:
            return replays.latencies(spec.metric, effects, noise)[members]

        logs, reproductions = denoised_log_percentiles([(sample, steps, replayed)], spec.percentile)
        return float(logs[0]) if reproductions[0].holds else None
