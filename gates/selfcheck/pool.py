"""Figures of a baseline and of candidates on many draws of one trace's traffic: each draw is replayed once, and shared by all trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gates.measure.points import measure_points
from gates.resimulation.stitch import stitched
from gates.selfcheck.regressions import Regression
from gates.statistics.blocks import BlockDraw, Floats, block_length, draw_blocks
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from replay.assembly.headline import Headline
    from replay.ingress.trace import Trace
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec

PILOT_DRAWS = 24
PILOT_STEPS = 4
_FIRST_SLOWDOWN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Figures [draws, claims] of the baseline and of each candidate; NaN where a draw has none."""

    baseline: Floats
    candidates: tuple[Floats, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """A cell, a mapping and the draws of its traffic."""

    cell: PlannedCell
    replayer: Replayer
    mapping: MappingSpec
    draw: BlockDraw
    jobs: int

    @classmethod
    def of(cls, cell: PlannedCell, replayer: Replayer, mapping: MappingSpec, *, draws: int, jobs: int) -> Bench:
        """Return the bench of so many draws, made as the gate makes its own, from another stream."""
        n = replayer.trace.requests.num_rows
        generator = stream(cell.seed, "selfcheck.blocks")
        draw = draw_blocks(n, length=block_length(n, cell.policy.blocks), replicates=draws, generator=generator)
        return cls(cell=cell, replayer=replayer, mapping=mapping, draw=draw, jobs=jobs)

    def pool(self, regressions: Sequence[Regression], say: Callable[[int, int], None], *, draws: int | None = None) -> Pool:
        """Return the figures of all candidates on the first `draws` draws, all unless given."""
        count = draws or self.draw.replicates
        rows = []
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            for done, row in enumerate(pool.map(lambda index: self._figures(index, regressions), range(count)), start=1):
                rows.append(row)
                say(done, count)
        figures = np.array(rows)  # [draws, 1 + candidates, claims]
        return Pool(baseline=figures[:, 0], candidates=tuple(figures[:, place + 1] for place in range(len(regressions))))

    def slowdown(self, kernels: Sequence[str], level: float) -> dict[str, float]:
        """Return factors of `kernels`, all alike, by which the worst-hit blocking latency grows by `level` in the long run.

        The long run is the mean logarithm over the first draws; found by the secant rule, to a few hundredths of the level.
        """
        target, slow, before, shift_before = math.log1p(level), _FIRST_SLOWDOWN, 0.0, 0.0
        for _ in range(PILOT_STEPS):
            factors = dict.fromkeys(kernels, math.exp(slow))
            pool = self.pool([Regression(kind="service", factors=factors)], lambda *_: None, draws=min(PILOT_DRAWS, self.draw.replicates))
            shift = self.largest_shift(pool, 0)
            slope = (shift - shift_before) / (slow - before)
            if abs(shift - target) < 0.02 * target or slope <= 0.0:
                break
            before, shift_before, slow = slow, shift, slow + (target - shift) / slope
        return factors

    def largest_shift(self, pool: Pool, candidate: int) -> float:
        """Return the largest mean log ratio of a blocking latency claim."""
        places = [
            place
            for place, claim in enumerate(self.cell.claims)
            if claim.spec.blocking and claim.spec.definition.scale == "ratio" and claim.spec.definition.direction == "lower"
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(pool.candidates[candidate][:, places] / pool.baseline[:, places])
        return float(np.max(np.mean(logs, axis=0))) if places and np.isfinite(logs).all() else 0.0

    def _figures(self, index: int, regressions: Sequence[Regression]) -> list[list[float]]:
        trace = stitched(self.replayer.trace, self.draw, index)
        baseline = self._headline(trace, {})
        specs, slo = [claim.spec for claim in self.cell.claims], self.cell.policy.slo
        rows = [[value for value, _ in measure_points(specs, slo, baseline, baseline)]]
        for regression in regressions:
            candidate = self._headline(trace, regression.factors) if regression.replays else regression.applied(baseline)
            rows.append([value for _, value in measure_points(specs, slo, baseline, candidate)])
        return rows

    def _headline(self, trace: Trace, factors: Mapping[str, float]) -> Headline:
        by_layer = any(claim.spec.blocking and claim.spec.definition.needs_windows for claim in self.cell.claims)
        return self.replayer.headline(trace, self.mapping, factors, by_layer=by_layer)
