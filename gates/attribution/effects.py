"""Effect of each changed knob on the metrics that decided, by replaying mixes of the two mappings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gates.attribution.mixes import RECORDED, JudgedTrace, Mixes
from gates.attribution.severity import by_severity
from gates.attribution.shapley import Floats, Order, Players, Worth, draw_orders, every_set, exact_values, sets_along, values_along
from gates.attribution.trials import Trials
from gates.claim import Claim, Interval
from gates.metrics import METRICS
from gates.statistics.student import t_bound
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.resimulation.traffic import PinnedTraffic

ORDER_PAIRS = 8
"""Drawn orders, each beside its reverse, where there are too many knobs to try every mix."""
EXACT_KNOBS = 5
"""Changed knobs of which every mix is always replayed."""
MOST_EXACT_KNOBS = 6
EXACT_REQUESTS = 12_000_000
"""Requests to replay in all up to which every mix of more knobs than that is: a little more than 32 mixes of W2 on 17 traces take."""
MAX_CLAIMS = 4
"""Metrics explained: the worst claim's and those of further disproved ones."""
ALPHA = 0.05
INTERACTION_SHARE = 0.5
"""Difference between what a knob does alone and on top of the others, as a share of the whole change, from which it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """What one knob does to one metric.

    Effects are fractions on the ratio scale (0.25 = the metric is 25 % higher with the candidate's value) and absolute on the
    difference scale; a rise is a rise, whatever the metric's direction.
    """

    knob: str
    metric: str
    """The claim's key: metric, percentile, layer type and stratum."""
    effect: float | None
    """The knob's part of the change from baseline to candidate (its Shapley value); the parts of all knobs make the whole change."""
    share: float | None
    """`effect` as a share of the whole change (of logarithms on the ratio scale); the shares of all knobs add up to 1."""
    effect_alone: float | None
    """The baseline with only this knob changed against the baseline."""
    effect_last: float | None
    """The candidate against the candidate with this knob reverted."""
    interval: Interval | None
    """Of `effect`, over traffic like the recorded one."""
    by_ratio: bool
    """Whether effects are on the ratio scale."""
    harm: float
    """`effect` in the metric's bad direction; 0 where it is unknown."""
    interacts: bool
    """Whether it does something else alone than on top of the others."""
    method: str

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the verdict's `attribution[]`."""
        names = ("knob", "metric", "effect", "share", "effect_alone", "effect_last")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        interval = None if self.interval is None else {name: getattr(self.interval, name) for name in self.interval.__slots__}
        return {**document, "interval": interval, "method": self.method}


def claims_to_explain(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims whose metrics the attribution is about: the worst blocking one and further disproved ones, the worst first."""
    blocking = {claim.id: claim for claim in claims if claim.blocking}
    order = [blocking[document["id"]] for document in by_severity(claim.to_document() for claim in blocking.values())]
    return tuple(claim for place, claim in enumerate(order) if place == 0 or claim.outcome == "disproved")[:MAX_CLAIMS]


def knob_effects(trials: Trials, claims: Sequence[Claim], traffic: PinnedTraffic | None = None) -> tuple[KnobEffect, ...]:
    """Return every changed knob's effect on each claim's metric, in the order of the claims, then of the changes.

    Without `traffic`, and for claims about quality, which no replay tells, the figures are those that the gate judges mixes by.
    """
    judged = JudgedTrace(trials)
    sources = [judged if traffic is None or METRICS[claim.metric].basis == "quality_items" else traffic for claim in claims]
    found: dict[tuple[str, str], KnobEffect] = {}
    for source in dict.fromkeys(sources):
        own = [claim for claim, of in zip(claims, sources, strict=True) if of is source]
        found |= {(effect.metric, effect.knob): effect for effect in _effects(trials, own, source)}
    return tuple(found[claim.key, knob] for claim in claims for knob in trials.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Design:
    """How knobs get their values: from every mix, or along drawn orders; and which mixes that takes on each traffic."""

    knobs: Players
    orders: tuple[Order, ...] = ()
    """Empty where every mix is replayed."""

    @classmethod
    def of(cls, trials: Trials, traffic: PinnedTraffic | JudgedTrace) -> _Design:
        knobs, requests = trials.knobs, (1 + traffic.replicates_count) * traffic.requests_count
        affordable = len(knobs) <= MOST_EXACT_KNOBS and 2 ** len(knobs) * requests <= EXACT_REQUESTS
        if len(knobs) <= EXACT_KNOBS or affordable:
            return cls(knobs=knobs)
        return cls(knobs=knobs, orders=draw_orders(knobs, ORDER_PAIRS, stream(trials.replayer.seed, "attribution.orders")))

    def sets(self) -> list[Players]:
        """Return all mixes."""
        return sets_along(self.orders) if self.orders else every_set(self.knobs)

    def followed(self, place: int) -> tuple[Order, ...]:
        """Return the orders at a place: all of them on the recorded trace, one pair on a resample, so that the spread over resamples
        holds what the drawn orders leave open.
        """
        first = 2 * ((place - 1) % ORDER_PAIRS)
        return self.orders if place == RECORDED else self.orders[first : first + 2]

    def values(self, worth: Worth, place: int) -> dict[str, Floats]:
        """Return each knob's value [claims] at a place."""
        return values_along(worth, self.followed(place)) if self.orders else exact_values(worth, self.knobs)

    def phrase(self, replicates: int) -> str:
        """Return the method in words."""
        resampled = f"95 % interval over {replicates} resamples of the traffic" if replicates > 1 else "no interval"
        if len(self.knobs) == 1:
            return f"replays of the candidate and the baseline; {resampled}"
        along = f" along {len(self.orders)} drawn orders" if self.orders else ""
        return f"Shapley values over replays of {len(self.sets())} mixes of the changed knobs{along}; {resampled}"


def _effects(trials: Trials, claims: Sequence[Claim], traffic: PinnedTraffic | JudgedTrace) -> Iterator[KnobEffect]:
    mixes, design, places = Mixes(trials, claims, traffic), _Design.of(trials, traffic), range(1 + traffic.replicates_count)
    needed = [frozenset(sets_along(design.followed(place)) if design.orders else design.sets()) for place in places]
    worth: list[dict[Players, Floats]] = [{} for _ in places]
    for changed in design.sets():  # one mix after the other, for its costs are tabulated once for all traffic
        for place, found in mixes.worth(changed, [place for place in places if changed in needed[place]]).items():
            worth[place][changed] = found
    values = [design.values(worth[place], place) for place in places]
    total = worth[RECORDED][trials.knobs] - worth[RECORDED][frozenset()]
    none, everything = mixes.built(frozenset()), mixes.built(trials.knobs)
    phrase = design.phrase(traffic.replicates_count)
    for knob in trials.changes:
        alone, without = mixes.built(frozenset({knob})), mixes.built(trials.knobs - {knob})
        parts = np.array([found[knob] for found in values])
        method = phrase + _needs(trials, knob)
        for index, claim in enumerate(claims):
            ends = _step(none, alone, index), _step(without, everything, index)
            yield _effect(claim, knob, parts[:, index], total=float(total[index]), ends=ends, method=method)


def _needs(trials: Trials, knob: str) -> str:
    cases = (
        ("with this knob reverted", trials.judged({knob})),
        ("with only this knob changed", trials.judged(trials.knobs - {knob})),
    )
    return "".join(f"; {case} the mapping cannot be built: {trial.problem}" for case, trial in cases if trial.problem is not None)


def _step(before: Floats | None, after: Floats | None, index: int) -> float:
    return math.nan if before is None or after is None else float(after[index] - before[index])


def _half_width(resampled: Floats) -> float:
    """Return the half width of an interval around the recorded trace's figure: resamples spread about it as it does about the truth."""
    if len(resampled) < 2:
        return math.nan
    return t_bound(ALPHA / 2, len(resampled) - 1) * float(np.std(resampled, ddof=1))


def _effect(claim: Claim, knob: str, parts: Floats, *, total: float, ends: tuple[float, float], method: str) -> KnobEffect:
    """Return the row of a knob's `parts` of a metric's change: on the recorded trace, then on each resample."""
    value, half_width = float(parts[RECORDED]), _half_width(parts[RECORDED + 1 :])

    def back(step: float) -> float | None:
        return None if math.isnan(step) else math.expm1(step) if claim.scale == "ratio" else step

    effect, lower, upper = (back(step) for step in (value, value - half_width, value + half_width))
    known = effect is not None and not math.isnan(total) and total != 0.0
    sign = 1.0 if claim.direction == "lower" else -1.0
    return KnobEffect(
        knob=knob,
        metric=claim.key,
        effect=effect,
        share=value / total if known else None,
        effect_alone=back(ends[0]),
        effect_last=back(ends[1]),
        interval=Interval(lower=lower, upper=upper, confidence=1.0 - ALPHA) if lower is not None and upper is not None else None,
        by_ratio=claim.scale == "ratio",
        harm=sign * effect if effect is not None else 0.0,
        interacts=known and abs(ends[1] - ends[0]) > INTERACTION_SHARE * abs(total),
        method=method,
    )
