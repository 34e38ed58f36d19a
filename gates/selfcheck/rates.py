"""Let the gate decide on each draw of traffic as if it were the recorded trace, and count what it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gates.judge import judge_measured
from gates.measure.measured import Measured
from gates.plan import RESIMULATION_METHOD, PlannedCell
from gates.selfcheck.pool import Pool
from gates.selfcheck.regressions import Kind, Regression
from gates.statistics.blocks import Counts, Floats
from gates.statistics.proportion import wilson
from gates.verdict import decide_cell
from replay.seeds import stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rate and its 95 % Wilson interval."""

    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, trials: int) -> Share:
        """Return the share of `count` in `trials`."""
        low, high = wilson(count, trials)
        return cls(rate=count / trials, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the gate decides about one kind of candidate."""

    kind: Kind
    level: float
    """Worsening asked for."""
    shift: float
    """Largest worsening of a blocking latency in the long run: exp of the mean log ratio, minus 1."""
    trials: int
    release: Share
    regression: Share
    inconclusive: Share

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trials:
    """What all trials of a cell share."""

    cell: PlannedCell
    recorded: Sequence[Measured]
    """Of the recorded trace: how many samples each claim has, and what forbids to decide it."""
    members: Counts
    """[trials, replicates] the draws that stand for each trial's own replicates."""
    errors: Floats
    """[trials, 1 + replicates] standard normal errors of a changed kernel: the trial's true one, and those that the gate draws."""
    amplification: Floats
    """[claims] log change of each figure for a log change of all kernels' times."""
    step_error_ratio: float
    """Standard deviation of the log of what the changed kernels' error does to a step's time."""

    @classmethod
    def of(
        cls, cell: PlannedCell, recorded: Sequence[Measured], draws: int, *, amplification: Floats, step_error_ratio: float = 0.0
    ) -> Trials:
        """Return as many trials as draws; each has the other draws, or as many of them as the policy replays, as its replicates."""
        draw = stream(cell.seed, "selfcheck.trials")
        count = min(draws - 1, max(cell.policy.resimulations, math.ceil(sum(c.spec.blocking for c in cell.claims) / cell.policy.alpha)))
        others = [np.delete(np.arange(draws), trial) for trial in range(draws)]
        members = np.stack([draw.choice(rest, size=count, replace=False) for rest in others])
        errors = draw.standard_normal((draws, 1 + count))
        return cls(
            cell=cell, recorded=recorded, members=members, errors=errors, amplification=amplification, step_error_ratio=step_error_ratio
        )

    def row(self, regression: Regression, pool: Pool, candidate: int, shift: float) -> Row:
        """Return how often each basis is decided over all trials."""
        trials = len(self.members)
        bases = [self._basis(trial, pool.baseline, pool.candidates[candidate]) for trial in range(trials)]
        counts = {name: bases.count(name) for name in ("proven_safe", "regression", "inconclusive")}
        release, worse, open_ = (Share.of(count, trials) for count in counts.values())
        return Row(
            kind=regression.kind,
            level=regression.level,
            shift=math.expm1(shift),
            trials=trials,
            release=release,
            regression=worse,
            inconclusive=open_,
        )

    def _basis(self, trial: int, baseline: Floats, candidate: Floats) -> str:
        measured = [self._measured(trial, place, one, baseline, candidate) for place, one in enumerate(self.recorded)]
        return decide_cell(judge_measured(self.cell, measured), ())[1]

    def _measured(self, trial: int, place: int, recorded: Measured, baseline: Floats, candidate: Floats) -> Measured:
        """Return a claim's figures in one trial.

        The draws' effects, moved so that their mean is the trial's own, stand for the replicates that the gate would draw from the trial's
        trace: draws of draws spread as draws do.
        """
        before, after = baseline[:, place], candidate[:, place]
        if recorded.problem is not None or np.isnan(before).any() or np.isnan(after).any():
            return recorded
        rows = self.members[trial]
        error = self.step_error_ratio * self.amplification[place] * self.errors[trial]
        if (before > 0).all() and (after > 0).all():
            effects = np.log(after / before)
            moved = np.exp(effects[rows] - effects[rows].mean() + effects[trial] + error[0] + error[1:])
            own, replicates = before[trial] * math.exp(effects[trial] + error[0]), before[rows] * moved
        else:
            effects = after - before
            own, replicates = after[trial], before[rows] + effects[rows] - effects[rows].mean() + effects[trial]
        return replace(
            recorded,
            baseline=float(before[trial]),
            candidate=float(own),
            replicates=(before[rows], replicates),
            method=RESIMULATION_METHOD,
        )
