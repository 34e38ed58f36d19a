"""Figures of any mapping in a cell, on its trace and on pinned resamples of it: the traffic that knobs are compared on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from gates.measure.points import measure_points
from gates.resimulation.stitch import can_stitch, stitched
from gates.statistics.blocks import BlockDraw, block_length, draw_blocks
from replay.errors import SpecError
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from replay.assembly.headline import Headline
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec
    from replay.tiling.step_table import StepTable

REPLICATES = 16
LEAST_REPLICATES = 8
"""Fewer give no interval that is worth its time."""
MOST_REQUESTS = 4_000_000
"""Requests of the baseline on all resamples that are kept: 135 bytes each, half a gigabyte."""


class PinnedTraffic:
    """The cell's trace and the same few resamples of it for every mapping (common random numbers), without the hardware model's error."""

    def __init__(self, cell: PlannedCell, replayer: Replayer, baseline: MappingSpec, *, jobs: int) -> None:
        self._cell, self._replayer, self._baseline, self._jobs = cell, replayer, baseline, jobs
        count = self.requests_count
        most = min(REPLICATES, MOST_REQUESTS // count) if count else 0
        self.replicates_count = most if most >= LEAST_REPLICATES and can_stitch(replayer.trace) else 0

    @property
    def requests_count(self) -> int:
        """Requests of each replay."""
        return int(self._replayer.trace.requests.num_rows)

    def figures(self, mapping: MappingSpec, places: Sequence[int]) -> list[Mapping[str, float]] | None:
        """Return each claim's figure by its id, of the requests that the baseline serves as well, on the recorded trace (place 0) and on
        resamples (from 1 on); None where the mapping cannot be built.
        """
        try:
            self._replayer.table(mapping)  # once, before the threads ask for it
        except SpecError:
            return None
        return [self._measured(place, headline) for place, headline in zip(places, self._headlines(mapping, places), strict=True)]

    def figures_under(self, table: StepTable) -> Mapping[str, float]:
        """Return each claim's figure on the recorded trace under a step table, which need not be a mapping's."""
        return self._measured(0, self._replayer.headline_under(table, self._replayer.trace, by_layer=self._by_layer))

    def _measured(self, place: int, headline: Headline) -> Mapping[str, float]:
        specs = [claim.spec for claim in self._cell.claims]
        points = measure_points(specs, self._cell.policy.slo, self._of_baseline[place], headline)
        return {claim.id: candidate for claim, (_, candidate) in zip(self._cell.claims, points, strict=True)}

    @property
    def _by_layer(self) -> bool:
        return any(claim.spec.blocking and claim.spec.definition.needs_windows for claim in self._cell.claims)

    @cached_property
    def _of_baseline(self) -> Sequence[Headline]:
        return self._headlines(self._baseline, range(1 + self.replicates_count))

    @cached_property
    def _draw(self) -> BlockDraw:
        n = self.requests_count
        length = block_length(n, self._cell.policy.blocks)
        generator = stream(self._cell.seed, "attribution.blocks")
        return draw_blocks(n, length=length, replicates=self.replicates_count, generator=generator)

    def _headlines(self, mapping: MappingSpec, places: Iterable[int]) -> list[Headline]:
        draw = self._draw if self.replicates_count else None

        def headline(place: int) -> Headline:
            recorded = self._replayer.trace
            trace = recorded if place == 0 or draw is None else stitched(recorded, draw, place - 1)
            return self._replayer.headline(trace, mapping, {}, by_layer=self._by_layer)

        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            return list(pool.map(headline, places))
