"""resimulate(...) -> figures of every claim in paired replays of resampled traffic, under drawn errors of the hardware model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gates.measure.points import Point, measure_points
from gates.resimulation.errors import Arm, ErrorDraw, KernelError, draw_errors, kernel_errors
from gates.resimulation.stitch import can_stitch, stitched
from gates.statistics.blocks import BlockDraw, Floats, block_length, draw_blocks
from replay.assembly.headline import headline_of
from replay.seeds import stream
from replay.specs.mapping import diff

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resimulated:
    """Paired replicates of one pair of mappings in one cell."""

    baseline: Floats
    """[replicates, claims]; NaN where a replicate has no figure, and for advisory claims about what only windows of whole runs tell."""
    candidate: Floats
    errors: tuple[KernelError, ...]
    specific: Floats
    """Standard normal errors of each changed kernel's own [replicates, kernels of `errors`]."""

    @property
    def replicates_count(self) -> int:
        """Paired replays."""
        return len(self.baseline)

    def of_claim(self, index: int) -> tuple[Floats, Floats] | None:
        """Return both arms' replicates [replicates] of the plan's claim at `index`, None where some have no figure."""
        arms = self.baseline[:, index], self.candidate[:, index]
        return None if any(bool(np.isnan(arm).any()) for arm in arms) else arms


Settled = Callable[[Resimulated], bool]
"""Whether more replicates could change no decision."""


def can_resimulate(cell: PlannedCell, replayer: Replayer) -> bool:
    """Return whether the cell's trace can be cut into blocks that are replayed in another order."""
    return can_stitch(replayer.trace) and bool(cell.claims)


def resimulate(cell: PlannedCell, replayer: Replayer, arms: tuple[MappingSpec, MappingSpec], *, jobs: int, settled: Settled) -> Resimulated:
    """Return the replicates of (baseline, candidate) in `arms`: as many as the policy starts with, and up to its cap until settled.

    Each replicate is one draw of traffic blocks and one draw of errors, the same in both arms where both share the error (common random
    numbers). Nothing depends on `jobs`, on the other arm or on how often it was done before.
    """
    rounds = _rounds(cell)
    if arms[0] == arms[1]:
        return _identical(cell, replayer, arms[0], rounds[0])
    trace, seed = replayer.trace, cell.seed
    n = trace.requests.num_rows
    draw = draw_blocks(n, length=block_length(n, cell.policy.blocks), replicates=rounds[-1], generator=stream(seed, "resimulation.blocks"))
    baseline, candidate = (Arm.of(replayer.table(mapping), replayer.run(mapping).steps) for mapping in arms)
    errors = kernel_errors(baseline, candidate, replayer.hardware, split=_split(*arms))
    replicate = _Replicate(cell=cell, replayer=replayer, arms=arms, draw=draw, errors=draw_errors(errors, rounds[-1], seed))
    points: list[list[Point]] = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for count in rounds:
            points += pool.map(replicate.points, range(len(points), count))
            found = replicate.result(points)
            if settled(found):
                break
    return found


def _identical(cell: PlannedCell, replayer: Replayer, mapping: MappingSpec, replicates: int) -> Resimulated:
    """Return the replicates of a mapping against itself: whatever the traffic and the errors, both arms agree."""
    run = headline_of(replayer.run(mapping))
    points = measure_points([claim.spec for claim in cell.claims], cell.policy.slo, run, run)
    figures = np.tile([baseline for baseline, _ in points], (replicates, 1))
    return Resimulated(baseline=figures, candidate=figures, errors=(), specific=np.zeros((replicates, 0)))


def _split(baseline: MappingSpec, candidate: MappingSpec) -> bool:
    """Return whether ranks share the operators otherwise, so that kernels have other shapes."""
    return any(change.knob.startswith("parallelism.") for change in diff(baseline, candidate))


def _rounds(cell: PlannedCell) -> tuple[int, ...]:
    """Return after how many replicates to look: enough for Holm to reject at all, then the cap of the one extension."""
    policy = cell.policy
    blocking = sum(claim.spec.blocking for claim in cell.claims)
    first = max(policy.resimulations, math.ceil(blocking / policy.alpha))
    return (first,) if policy.max_resimulations <= first else (first, policy.max_resimulations)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Replicate:
    cell: PlannedCell
    replayer: Replayer
    arms: tuple[MappingSpec, MappingSpec]
    draw: BlockDraw
    errors: ErrorDraw

    def points(self, index: int) -> list[Point]:
        """Return the figures of every claim in one replicate."""
        trace = stitched(self.replayer.trace, self.draw, index)
        specs = [claim.spec for claim in self.cell.claims]
        by_layer = any(spec.blocking and spec.definition.needs_windows for spec in specs)
        baseline, candidate = (
            self.replayer.headline(trace, mapping, self._factors(index, mapping, own=place == 1), by_layer=by_layer)
            for place, mapping in enumerate(self.arms)
        )
        return measure_points(specs, self.cell.policy.slo, baseline, candidate)

    def result(self, points: Sequence[Sequence[Point]]) -> Resimulated:
        """Return the replicates so far."""
        figures: NDArray[np.float64] = np.array(points, dtype=np.float64).reshape(len(points), len(self.cell.claims), 2)
        return Resimulated(
            baseline=figures[:, :, 0],
            candidate=figures[:, :, 1],
            errors=self.errors.errors,
            specific=self.errors.specific[: len(points)],
        )

    def _factors(self, index: int, mapping: MappingSpec, *, own: bool) -> dict[str, float]:
        return self.errors.factors(index, self.replayer.table(mapping), candidate=own)
