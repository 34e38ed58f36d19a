"""Predictions of two arithmetics side by side: divergence, likelihood, agreement, and the states they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.quality.elements import Values
from replay.quality.model import ProbeModel, Tokens
from replay.quality.numerics import Numerics

Floats = npt.NDArray[np.float64]
_ROWS = 64
"""Predictions compared at once, which bounds the logits that are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arithmetic and the states that it gave for one probe [labels, size]."""

    numerics: Numerics
    states: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Predictions of one probe's labels [labels]; NaN where an arm's logits are not finite."""

    kl_nats: Floats
    """KL divergence of the candidate's distribution from the baseline's: ``sum p log(p / q)``, p the baseline's."""
    nll_baseline_nats: Floats
    nll_candidate_nats: Floats
    """Negative log likelihood of the label."""
    top1_equal: npt.NDArray[np.bool_]
    """Whether both find the same token likeliest."""
    cosine: float
    """Of the angle between both arms' last states."""
    not_finite: int
    """Predictions with NaN or infinity among the candidate's logits."""


def compare(model: ProbeModel, baseline: Arm, others: Sequence[Arm], labels: Tokens) -> list[Compared]:
    """Return the predictions of labels by each of the others beside the baseline's."""
    parts: list[list[tuple[Any, ...]]] = [[] for _ in others]
    for first in range(0, len(labels), _ROWS):
        rows = slice(first, first + _ROWS)
        before = _Predicted.of(model, baseline, rows)
        for found, other in zip(parts, others, strict=True):
            found.append(before.beside(_Predicted.of(model, other, rows), np.asarray(labels[rows])))
    return [_compared(found, baseline, other) for found, other in zip(parts, others, strict=True)]


def _compared(parts: Sequence[tuple[Any, ...]], baseline: Arm, other: Arm) -> Compared:
    kl, before, after, equal, broken = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Compared(
        kl_nats=kl,
        nll_baseline_nats=before,
        nll_candidate_nats=after,
        top1_equal=equal,
        cosine=_cosine(baseline.states[-1], other.states[-1]),
        not_finite=int(broken.sum()),
    )


@dataclass(frozen=True, slots=True)
class _Predicted:
    """Distributions of a few predictions [predictions, vocabulary], and which of them are finite [predictions]."""

    logs: Floats
    shares: Floats
    best: npt.NDArray[np.int64]
    finite: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, model: ProbeModel, arm: Arm, rows: slice) -> _Predicted:
        logits = model.logits(arm.numerics, arm.states[rows]).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            logs = logits - logits.max(axis=1, keepdims=True)
            shares = np.exp(logs)
            sums = shares.sum(axis=1, keepdims=True)
            return cls(logs - np.log(sums), shares / sums, logits.argmax(axis=1), np.asarray(np.isfinite(logits).all(axis=1)))

    def beside(self, other: _Predicted, labels: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        places = np.arange(len(labels))
        nll = [np.where(own.finite, -own.logs[places, labels], np.nan) for own in (self, other)]
        with np.errstate(invalid="ignore", over="ignore"):
            kl = np.maximum(np.einsum("ij,ij->i", self.shares, self.logs - other.logs), 0.0)
        both = self.finite & other.finite
        return np.where(both, kl, np.nan), *nll, (self.best == other.best) & both, ~other.finite


def _cosine(one: Values, other: Values) -> float:
    first, second = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def first_divergence(before: Tokens, after: Tokens) -> int | None:
    """Return the place of the first token that differs, counted from 0; None where both answers are equal."""
    for place, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return place
    return None if len(before) == len(after) else min(len(before), len(after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Greedy answers of both arms to one probe."""

    baseline: Sequence[int]
    candidate: Sequence[int]

    @property
    def divergence(self) -> int | None:
        """Place of the first token that differs."""
        return first_divergence(self.baseline, self.candidate)


def figures(compared: Iterable[Compared], answers: Iterable[Answers]) -> dict[str, Any]:
    """Return the figures of several probes; None where none of their logits are finite."""
    items, answered = list(compared), list(answers)
    kl, before, after = (np.concatenate([getattr(item, name) for item in items]) for name in (
        "kl_nats", "nll_baseline_nats", "nll_candidate_nats"
    ))  # fmt: skip
    finite = ~np.isnan(kl)
    places = [answer.divergence for answer in answered]
    apart = [place for place in places if place is not None]
    change = float((after - before)[finite].mean()) if finite.any() else None
    cosines = np.array([item.cosine for item in items])
    return {
        "items": len(items),
        "predictions": len(kl),
        "kl_mean_nats": _of(np.mean, kl[finite]),
        "kl_p99_nats": _of(lambda values: np.quantile(values, 0.99), kl[finite]),
        "kl_max_nats": _of(np.max, kl[finite]),
        "top1_agreement_ratio": float(np.concatenate([item.top1_equal for item in items]).mean()),
        "nll_baseline_nats_per_token": _of(np.mean, before[finite]),
        "nll_candidate_nats_per_token": _of(np.mean, after[finite]),
        "nll_change_nats_per_token": change,
        "perplexity_ratio": None if change is None or change > 700 else float(np.exp(change)),
        "answers_equal_ratio": 1 - len(apart) / len(places),
        "first_divergence_median_tokens": _of(np.median, np.array(apart, dtype=np.float64)),
        "embedding_cosine_mean": _of(np.mean, cosines[np.isfinite(cosines)]),
        "embedding_cosine_min": _of(np.min, cosines[np.isfinite(cosines)]),
        "not_finite_predictions": sum(item.not_finite for item in items),
    }


def _of(statistic: Any, values: Floats) -> float | None:
    return float(statistic(values)) if len(values) else None
