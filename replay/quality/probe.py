"""The probe: the same prompts through a model's own weights under two arithmetics, and what of the difference each format makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.quality.compare import Answers, Arm, Compared, compare, figures
from replay.quality.elements import Values
from replay.quality.layer_errors import LayerErrors
from replay.quality.model import ProbeModel, Tokens
from replay.quality.numerics import KNOB_OF, Numerics, Place, differing
from replay.quality.probes import Probe
from replay.specs.knobs import KNOBS, REVERT_COSTS

FLOOR_PARTS = 2
"""Parts that sums are taken in by the run that the floor is measured with: what another order of sums alone changes."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedItem:
    """What one probe shows."""

    probe: Probe
    labels: Tokens
    answers: Answers
    compared: Compared
    floor: Compared
    """The baseline against itself with sums in another order."""
    alone_equal: tuple[bool, bool] | None
    """Whether the baseline and the candidate answer the same with no other probe in the batch; None where that was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a set of probes shows."""

    items: tuple[ProbedItem, ...]
    layers: tuple[dict[str, Any], ...]
    """Errors of layer types on the baseline's own inputs, worst first (`LayerErrors.rows`)."""
    reverts: tuple[dict[str, Any], ...]
    """Drift that is left with one knob of one layer type as the baseline has it, the one that helps most first."""
    attributed: tuple[ProbedItem, ...]
    """Probes that layers and reverts are measured on."""

    @property
    def attributed_kl_nats(self) -> float | None:
        """Mean divergence on them, all formats together: what the reverts are to be compared with."""
        return _mean_kl([item.compared for item in self.attributed]) if self.attributed else None


def run_probes(
    model: ProbeModel,
    baseline: Numerics,
    candidate: Numerics,
    probes: Sequence[Probe],
    *,
    answer_tokens: int,
    attribution_tokens: int,
    batch_invariance: bool = False,
    progress: Progress,
) -> Probed:
    """Return the drift of a candidate from a baseline on probes that fit the model.

    Layer errors and reverts take the first probes, as many as have `attribution_tokens` tokens together; none where that is 0.
    """
    prompts = [probe.tokens for probe in probes]
    progress("answering as the baseline does")
    before = model.answers(baseline, prompts, answer_tokens)
    progress("answering as the candidate does")
    after = model.answers(candidate, prompts, answer_tokens)
    items, states = [], []
    for place, (probe, own, other) in enumerate(zip(probes, before, after, strict=True)):
        progress(f"comparing probe {place + 1} of {len(probes)}")
        labels = model.labels(probe.tokens, own.tokens)
        arms = [
            _arm(model, baseline, probe, labels, own.states),
            _arm(model, candidate, probe, labels, other.states),
            _arm(model, baseline.with_order(FLOOR_PARTS), probe, labels),
        ]
        compared, floor = compare(model, arms[0], arms[1:], labels)
        answers = Answers(baseline=own.tokens, candidate=other.tokens)
        alone = _alone_equal(model, (baseline, candidate), probe, answers, answer_tokens) if batch_invariance else None
        states.append(arms[0].states)
        items.append(ProbedItem(probe=probe, labels=labels, answers=answers, compared=compared, floor=floor, alone_equal=alone))
    chosen = list(_first(items, attribution_tokens))
    return Probed(
        items=tuple(items),
        layers=tuple(_layer_errors(model, baseline, candidate, chosen)),
        reverts=tuple(_reverts(model, baseline, candidate, chosen, states, progress)),
        attributed=tuple(chosen),
    )


def _arm(model: ProbeModel, numerics: Numerics, probe: Probe, labels: Tokens, known: Values | None = None) -> Arm:
    states = model.states(numerics, probe.tokens, labels) if known is None else known
    return Arm(numerics=numerics, states=states)


def _alone_equal(
    model: ProbeModel, arms: tuple[Numerics, Numerics], probe: Probe, answers: Answers, answer_tokens: int
) -> tuple[bool, bool]:
    before, after = (model.answers(numerics, [probe.tokens], answer_tokens)[0].tokens for numerics in arms)
    return list(answers.baseline) == before, list(answers.candidate) == after


def _first(items: Sequence[ProbedItem], tokens: int) -> Iterator[ProbedItem]:
    """Yield the first probes up to a number of tokens, at least one where any are wanted."""
    taken = 0
    for item in items:
        if taken >= tokens or (taken and taken + len(item.probe.tokens) > tokens):
            return
        taken += len(item.probe.tokens)
        yield item


def _layer_errors(model: ProbeModel, baseline: Numerics, candidate: Numerics, items: Sequence[ProbedItem]) -> list[dict[str, Any]]:
    errors = LayerErrors(candidate)
    for item in items:
        states = model.states(baseline, item.probe.tokens, item.labels, errors)
        errors("lm_head", "lm_head", model.logits(baseline, states), lambda numerics, own=states: model.logits(numerics, own))  # type: ignore[misc]
    return errors.rows()


def _reverts(
    model: ProbeModel, baseline: Numerics, candidate: Numerics, items: Sequence[ProbedItem], states: Sequence[Values], progress: Progress
) -> list[dict[str, Any]]:
    """Return what undoing each knob of each layer type alone leaves of the divergence; of equal ones the cheapest to undo first."""
    if not items:
        return []
    places = [place for place in differing(candidate, baseline) if place[1] in model.layer_types]
    undone = [candidate.with_places_of(baseline, [place]) for place in places]
    found = []
    for number, (item, own) in enumerate(zip(items, states, strict=False), 1):
        arms = []
        for place, numerics in zip(places, undone, strict=True):
            progress(f"undoing {KNOB_OF[place[0]]} of {place[1]}, probe {number} of {len(items)}")
            arms.append(_arm(model, numerics, item.probe, item.labels))
        found.append(compare(model, Arm(numerics=baseline, states=own), arms, item.labels))
    whole = _mean_kl([item.compared for item in items])
    left = [_mean_kl(compared) for compared in zip(*found, strict=True)]
    rows = [_revert(place, baseline, candidate, whole, one) for place, one in zip(places, left, strict=True)]
    return sorted(rows, key=lambda row: (-_or_least(row["undone_share_ratio"]), REVERT_COSTS.index(row["revert_cost"])))


def _revert(place: Place, baseline: Numerics, candidate: Numerics, whole: float | None, left: float | None) -> dict[str, Any]:
    knob = KNOB_OF[place[0]]
    share = None if left is None or not whole else 1 - left / whole
    if whole is None and left is not None:
        share = 1.0  # logits that were not finite are finite again
    return {
        "knob": knob,
        "layer_type": place[1],
        "baseline": str(baseline.values[place]),
        "candidate": str(candidate.values[place]),
        "revert_cost": KNOBS[knob].revert_cost,
        "kl_mean_nats_left": left,
        "undone_share_ratio": share,
    }


def _mean_kl(compared: Sequence[Compared]) -> float | None:
    """Return the mean divergence of predictions; None where one is not finite."""
    mean = float(np.concatenate([one.kl_nats for one in compared]).mean())
    return mean if np.isfinite(mean) else None


def _or_least(share: float | None) -> float:
    return -np.inf if share is None else share


def figures_of(items: Sequence[ProbedItem]) -> dict[str, Any]:
    """Return the figures of some probes."""
    return figures((item.compared for item in items), (item.answers for item in items))
