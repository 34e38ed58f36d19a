"""Rows per expert behind published timings of a mixture of experts: the load laws that their `distribution` column names.

The timings were taken with made-up routing of two kinds. *Balanced*: choice i of token t goes to expert t + i ceil(E / k) modulo
E, or with fewer tokens than that stride, to evenly spread ones. *Power law of exponent a*: the loads of all experts are drawn
from a density x^-a, between 1 and 0.8 tokens (0.01 and 2 while there are fewer choices than experts), scaled to the number of
choices and rounded; what rounding leaves over goes to idle experts, evenly spread. The rank timed is the one with most rows.

Single draws are unknown, so a law's load is an average over seeded ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.errors import SpecError
from replay.seeds import stream
from replay.tiling.families.expert_tiles import most_loaded_rank
from replay.tiling.terms import Array

DRAWS = 16
_SEED = 1
_LAW = "power_law_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """Rows of the timed rank's experts, over draws."""

    rows: Array
    """[draws, experts of the rank]"""
    tokens: float
    """Tokens with at least one choice on the rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingCase:
    """One batch and the ranks its experts are dealt to."""

    tokens: int
    choices: int
    experts: int
    ranks: int
    exponent: float | None
    """Of the power law; None for a balanced load."""


def load_exponent(distribution: str, where: str) -> float | None:
    """Return the power law's exponent of a `distribution` cell, None for a balanced one.

    Raises:
        SpecError: it is neither.
    """
    if distribution == "balanced":
        return None
    try:
        exponent = float(distribution.removeprefix(_LAW))
    except ValueError:
        exponent = -1.0
    if not distribution.startswith(_LAW) or not 0.0 < exponent < 10.0 or exponent == 1.0:
        want = "balanced, or power_law_ and an exponent other than 1 (power_law_1.2)"
        raise SpecError(f"{where}: distribution", repr(distribution), want, "name one of these loads")
    return exponent


def rank_load(case: RoutingCase) -> RankLoad:
    """Return the load of the most loaded rank."""
    if case.exponent is None:
        return _balanced(case)
    if case.ranks == 1:
        levels = (np.arange(case.experts)[None, :] + 0.5) / case.experts
    else:
        levels = stream(_SEED, "calibration/routing").random((DRAWS, case.experts))
    rows = most_loaded_rank(_power_law_rows(case, levels), case.ranks)
    missed = np.prod(1.0 - rows / case.tokens, axis=1)
    touched = np.maximum(case.tokens * (1.0 - missed), rows.max(axis=1))
    return RankLoad(rows=rows, tokens=max(float(touched.mean()), 1.0))


def _balanced(case: RoutingCase) -> RankLoad:
    stride = -(-case.experts // case.choices)
    token, choice = np.arange(case.tokens)[:, None], np.arange(case.choices)[None, :]
    first = token if case.tokens >= stride else token * stride // case.tokens
    expert = (first + choice * stride) % case.experts
    here = case.experts // case.ranks
    rows = np.bincount(expert[expert < here], minlength=here).astype(np.float64)
    return RankLoad(rows=rows[None, :], tokens=max(float((expert < here).any(axis=1).sum()), 1.0))


def _power_law_rows(case: RoutingCase, levels: Array) -> Array:
    """Return rows [draws, experts] for uniform `levels` [draws, experts]: the inverse of the law's distribution, rounded to sum up."""
    assert case.exponent is not None
    total = case.tokens * case.choices
    least, most = (1.0, 0.8 * case.tokens) if total > case.experts else (0.01, 2.0)
    power = 1.0 - case.exponent
    loads = ((most**power - least**power) * levels + least**power) ** (1.0 / power)
    loads = loads / loads.sum(axis=1, keepdims=True) * total
    rows = np.rint(loads)
    missing = total - rows.sum(axis=1, keepdims=True)
    if (missing > 0).any():
        rows = rows + _added(rows, loads, np.maximum(missing, 0.0))
    if (missing < 0).any():
        rows = rows - (_ranks(np.where(rows > 0, rows, np.inf)) < -missing)  # one from each of the least busy
    return np.asarray(np.minimum(rows, case.tokens))


def _added(rows: Array, loads: Array, missing: Array) -> Array:
    """Return what to add to `rows` [draws, experts] for `missing` [draws, 1] ones: to idle experts at even distances, then by load."""
    idle = rows == 0
    place = np.cumsum(idle, axis=1) - 1
    step = np.maximum(1.0, idle.sum(axis=1, keepdims=True) // np.maximum(missing, 1.0))
    first = (idle & (place % step == 0) & (place // step < missing)).astype(np.float64)
    left = missing - first.sum(axis=1, keepdims=True)
    if not left.any():
        return np.asarray(first)
    return np.asarray(first + np.ceil((left - _ranks(-loads)) / loads.shape[1]).clip(min=0.0))


def _ranks(values: Array) -> Array:
    """Return the place of each value in its row's ascending order [draws, experts]."""
    places = np.empty(values.shape)
    np.put_along_axis(places, np.argsort(values, axis=1, kind="stable"), np.arange(values.shape[1], dtype=np.float64)[None, :], axis=1)
    return places
