"""Step cost of two tables on the *same* steps: what the mapping half changed, with every effect of queueing held still."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import step_seconds
from replay.tiling.step_table import StepTable

GROWTH_TOLERANCE_RATIO = 0.005
"""Growth of busy time that counts. Tables are exact, so any growth is real; half a percent is far below the margins that
policies set (a few percent) and above the rounding and padding that a harmless retune leaves."""

TAIL_SHARE_RATIO = 0.05
"""The dearest steps looked at on their own, because percentiles decide: a mapping may be slower only where steps are long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Some of the recorded steps."""

    name: str
    steps: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Busy time of a view's steps under two tables."""

    view: View
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """Growth as a fraction of the time before; 0 where there was none."""
        return self.after_s / self.before_s - 1.0 if self.before_s > 0 else 0.0

    @property
    def counts(self) -> bool:
        """Whether it is beyond the tolerance."""
        return self.ratio > GROWTH_TOLERANCE_RATIO


ALL_STEPS = "all steps"
PREFILL_STEPS = "steps with prefill tokens"
DECODE_STEPS = "decode-only steps"
TAIL_STEPS = "the longest 5 % of steps"


def step_growths(steps: pa.Table, before: StepTable, after: StepTable) -> tuple[Growth, ...]:
    """Return the growth over all steps, by phase, and over the longest ones under `before`; empty views are left out."""
    busy_before, busy_after = step_seconds(before, steps).duration_s, step_seconds(after, steps).duration_s
    prefill = steps["prefill_tokens"].to_numpy() > 0
    tail = np.zeros(len(busy_before), dtype=bool)
    count = int(np.ceil(TAIL_SHARE_RATIO * len(busy_before)))
    tail[np.argsort(-busy_before, kind="stable")[:count]] = True
    masks = {ALL_STEPS: np.ones_like(tail), PREFILL_STEPS: prefill, DECODE_STEPS: ~prefill, TAIL_STEPS: tail}
    return tuple(
        Growth(
            view=View(name=name, steps=steps.filter(pa.array(mask))),
            before_s=float(busy_before[mask].sum()),
            after_s=float(busy_after[mask].sum()),
        )
        for name, mask in masks.items()
        if mask.any()
    )


def growth_that_counts(growths: tuple[Growth, ...]) -> Growth | None:
    """Return the growth to explain: over all steps if that counts, else in the view that grew most; None where none counts."""
    if growths and growths[0].counts:
        return growths[0]
    worst = max(growths, key=lambda growth: growth.ratio, default=None)
    return worst if worst is not None and worst.counts else None
