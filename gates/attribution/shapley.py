"""Shapley values: each player's part of what a set of players makes together, over the orders in which they may join.

Exact for few players (L. S. Shapley, "A value for n-person games", 1953); along pinned orders, each beside its reverse, for many
(antithetic sampling: R. Mitchell et al., "Sampling permutations for Shapley value estimation", 2022). In both the parts add up to the
whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Players = frozenset[str]
Worth = Mapping[Players, Floats]
"""What each set of players makes [figures]; NaN where a set has no such figure."""
Order = tuple[str, ...]


def every_set(players: Iterable[str]) -> list[Players]:
    """Return all sets of the players, the empty one first, by size."""
    names = sorted(players)
    return [frozenset(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size)]


def exact_values(worth: Worth, players: Iterable[str]) -> dict[str, Floats]:
    """Return each player's value [figures], from what every set of them makes."""
    names = sorted(players)
    count = len(names)
    values = {}
    for name in names:
        others = every_set(other for other in names if other != name)
        # The share of orders in which exactly these others come before.
        weights = [math.factorial(len(some)) * math.factorial(count - len(some) - 1) / math.factorial(count) for some in others]
        values[name] = sum((weight * (worth[some | {name}] - worth[some]) for weight, some in zip(weights, others, strict=True)), start=0.0)
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def draw_orders(players: Iterable[str], pairs: int, generator: np.random.Generator) -> tuple[Order, ...]:
    """Return `pairs` drawn orders of the players, each followed by its reverse."""
    names = sorted(players)
    drawn = [tuple(names[index] for index in generator.permutation(len(names))) for _ in range(pairs)]
    return tuple(order for forward in drawn for order in (forward, forward[::-1]))


def sets_along(orders: Sequence[Order]) -> list[Players]:
    """Return the distinct sets that arise as the players join in each of the orders."""
    return list(dict.fromkeys(frozenset(order[:size]) for order in orders for size in range(len(order) + 1)))


def values_along(worth: Worth, orders: Sequence[Order]) -> dict[str, Floats]:
    """Return each player's mean part [figures] over orders of all players, from what the sets along them make."""
    parts: dict[str, list[Floats]] = {}
    for order in orders:
        for place, name in enumerate(order):
            before = frozenset(order[:place])
            parts.setdefault(name, []).append(worth[before | {name}] - worth[before])
    return {name: np.asarray(np.mean(found, axis=0)) for name, found in parts.items()}
