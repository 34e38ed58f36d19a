"""Smallest set of knobs whose revert turns the cell's verdict to release, each tried by replay and the full gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gates.attribution.trials import Effects, Trials
from replay.specs.knobs import KNOBS, REVERT_COSTS, RevertCost

MAX_SET_SIZE = 3
MAX_SETS = 96
"""Sets tried before the search turns greedy: all sets of up to three of eight changed knobs are 92."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestRevert:
    """A revert that releases, verified by replay and the full gate.

    `exhaustive`: every smaller set, and every cheaper one of the same size, was tried and does not release; otherwise the set
    was found greedily and only no single knob can be left out of it.
    """

    knobs: tuple[str, ...]
    exhaustive: bool
    everything: bool
    """Nothing short of all changed knobs released."""

    @property
    def revert_cost(self) -> RevertCost:
        """The dearest of the knobs' revert costs."""
        return dearest(self.knobs)


def dearest(knobs: Iterable[str]) -> RevertCost:
    """Return the dearest revert cost among knob ids (at least one)."""
    return REVERT_COSTS[max(_cost(knob) for knob in knobs)]


def smallest_revert(trials: Trials, harms: Effects) -> SmallestRevert | None:
    """Return the smallest releasing revert, or None where not even the baseline releases against itself (evidence too weak).

    Sets are tried by size, then by the dearest and the summed revert cost, then by name; up to three knobs and MAX_SETS sets.
    Beyond that, knobs are added from the most harmful on until the gate releases, and those not needed are taken out again.
    """
    everything = trials.knobs
    if not everything or not trials.releases(everything):
        return None
    sets = list(itertools.islice(_sets(everything), MAX_SETS + 1))
    found = next((chosen for chosen in sets[:MAX_SETS] if trials.releases(chosen)), None)
    if found is not None:
        return _result(found, everything, exhaustive=True)
    complete = len(sets) <= MAX_SETS and len(everything) <= MAX_SET_SIZE + 1
    chosen = everything if complete else _greedy(trials, harms)
    return _result(chosen, everything, exhaustive=complete)


def _sets(knobs: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield the sets of one to three knobs, smallest and cheapest first."""
    for size in range(1, min(MAX_SET_SIZE, len(knobs)) + 1):
        yield from map(frozenset, sorted(itertools.combinations(sorted(knobs), size), key=_order))


def _order(knobs: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
    costs = [_cost(knob) for knob in knobs]
    return max(costs), sum(costs), knobs


def _greedy(trials: Trials, harms: Effects) -> frozenset[str]:
    chosen: frozenset[str] = frozenset()
    for knob in sorted(trials.knobs, key=lambda name: (-harms.get(name, 0.0), name)):
        chosen |= {knob}
        if trials.releases(chosen):
            break
    while (spare := _spare(trials, chosen, harms)) is not None:
        chosen -= {spare}
    return chosen


def _spare(trials: Trials, chosen: frozenset[str], harms: Effects) -> str | None:
    """Return a knob that the revert releases without: the dearest, then the least harmful one; None where all are needed."""
    if len(chosen) == 1:
        return None
    order = sorted(chosen, key=lambda name: (-_cost(name), harms.get(name, 0.0), name))
    return next((knob for knob in order if trials.releases(chosen - {knob})), None)


def _result(chosen: frozenset[str], everything: frozenset[str], *, exhaustive: bool) -> SmallestRevert:
    return SmallestRevert(knobs=tuple(sorted(chosen)), exhaustive=exhaustive, everything=chosen == everything and len(chosen) > 1)


def _cost(knob: str) -> int:
    return REVERT_COSTS.index(KNOBS[knob.split("@", 1)[0]].revert_cost)
