"""Holm's step-down correction: the chance of any false alarm stays at alpha however many claims there are."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return adjusted p-values in the order given (Holm 1979): the k-th smallest times (m - k + 1), made monotone, at most 1."""
    ascending = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for done, index in enumerate(ascending):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
