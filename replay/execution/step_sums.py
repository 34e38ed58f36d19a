"""Sums over the recorded steps of a replay, for those that need no step of their own: re-simulations by the hundred."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.compiled import compiled
from replay.execution.step_costs import Floats, Records

_BUSY, _DECODES, _NEW_PREFILL, _OUTPUTS, _DECODE_PAIRS, _PREFILL_PAIRS, _LAST_END = range(7)


class Sums(NamedTuple):
    """What the steps of one replica did in all; counts as in `replay.assembly.layers.TimeShares`, recomputation left out."""

    busy_s: float
    decode_sequences: float
    new_prefill_tokens: float
    output_tokens: float
    decode_context_tokens: float
    prefill_pairs: float


class StepSums:
    """Takes the place of `StepColumns`, and keeps nothing but sums."""

    def __init__(self) -> None:
        self._sums: Floats = np.zeros(7)

    def drain(self, record: Records, state: Records, _requests_count: int) -> None:
        """Add the recorded steps and empty the record."""
        _add(record, int(state["steps"][0]), self._sums)
        state["steps"] = 0

    def sums(self) -> Sums:
        """Return the sums so far."""
        return Sums(*self._sums[:_LAST_END].tolist())


@compiled
def _add(record: Records, steps: int, sums: Floats) -> None:
    """Add steps [STEP] to sums; steps follow one another, each counts from where the one before it ended."""
    for place in range(steps):
        step = record[place]
        sums[_BUSY] += step.end_s - max(step.start_s, sums[_LAST_END])
        sums[_LAST_END] = step.end_s
        sums[_DECODES] += step.decode_sequences
        sums[_NEW_PREFILL] += step.prefill_tokens - step.recomputed_tokens
        sums[_OUTPUTS] += step.output_tokens
        sums[_DECODE_PAIRS] += step.decode_context_tokens
        if step.prefill_tokens > 0:
            sums[_PREFILL_PAIRS] += step.prefill_pairs * (1.0 - step.recomputed_tokens / step.prefill_tokens)
