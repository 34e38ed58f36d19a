"""Figures of mixes of two mappings, on the recorded trace and on resamples of it: what shares of a change are worked out from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gates.attribution.shapley import Floats, Players
from gates.attribution.trials import Trials
from gates.claim import Claim
from replay.specs.mapping import MappingSpec

if TYPE_CHECKING:
    from gates.resimulation.traffic import PinnedTraffic

Figures = Mapping[str, float | None]
"""A claim's metric by the claim's id, in the claim's unit."""


RECORDED = 0
"""The place of the recorded trace among all traffic; its resamples follow, from 1 on."""


class JudgedTrace:
    """Figures as the cell's gate has them, on the recorded trace alone: for what no replay of other traffic tells."""

    replicates_count = 0

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self.requests_count = trials.replayer.trace.requests.num_rows

    def figures(self, mapping: MappingSpec, places: Sequence[int]) -> Sequence[Figures] | None:
        """Return a mapping's figures, the same at each of the places; None where the mapping cannot be built."""
        judgement = self._trials.judged_mapping(mapping)
        return None if judgement is None else [{claim.id: claim.candidate for claim in judgement.claims} for _ in places]


class Mixes:
    """What each set of changed knobs makes of some claims' metrics.

    On the ratio scale figures are logarithms, so that parts add up. A set that cannot be built counts as its largest part that can be (of
    several the first by name): knobs that need each other count from where the last of them joins.
    """

    def __init__(self, trials: Trials, claims: Sequence[Claim], traffic: PinnedTraffic | JudgedTrace) -> None:
        self._trials, self._claims, self._traffic = trials, claims, traffic
        self._known: dict[Players, dict[int, Floats]] = {}
        self._unbuildable: set[Players] = set()

    def worth(self, changed: Players, places: Sequence[int]) -> dict[int, Floats]:
        """Return [claims] the figures of the baseline with the knobs of `changed`, by place."""
        sizes = range(len(changed), -1, -1)
        parts = (frozenset(some) for size in sizes for some in itertools.combinations(sorted(changed), size))
        found = (self._figures(part, places) for part in parts)
        return next(one for one in found if one is not None)  # the empty set is the baseline, which has been replayed

    def built(self, changed: Players) -> Floats | None:
        """Return the figures on the recorded trace, None where exactly this set cannot be built."""
        found = self._figures(changed, (RECORDED,))
        return None if found is None else found[RECORDED]

    def _figures(self, changed: Players, places: Sequence[int]) -> dict[int, Floats] | None:
        if changed in self._unbuildable:
            return None
        known = self._known.setdefault(changed, {})
        missing = [place for place in places if place not in known]
        figures = self._traffic.figures(self._trials.only(changed), missing) if missing else ()
        if figures is None:
            self._unbuildable.add(changed)
            return None
        for place, one in zip(missing, figures, strict=True):
            known[place] = np.array([_scaled(claim, one.get(claim.id)) for claim in self._claims])
        return {place: known[place] for place in places}


def _scaled(claim: Claim, value: float | None) -> float:
    if value is None or math.isnan(value):
        return math.nan
    if claim.scale == "difference":
        return value
    return math.log(value) if value > 0 else math.nan
