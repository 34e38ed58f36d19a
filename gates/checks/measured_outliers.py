"""Outliers: one run of an arm that is unlike the others of the same arm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.finding import Finding
from replay.assembly.percentile import percentile
from replay.ingress.measured.measured_run import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.ingress.measured.measured_run import MeasuredRun

FEWEST_RUNS = 4
"""Of three runs the one in the middle has a neighbour by chance, which makes the third look far away."""
OUTLIER_Z = 8.0
"""Distance from the median in robust standard deviations (1.4826 x the median absolute deviation). Of 4 or 5 normal runs the farthest is
beyond it in 4 to 5 % of cases (40,000 simulated arms; beyond the usual 3.5 in 17 to 21 %), of 8 and more in 1 %.
"""
_NORMAL_MAD = 1.4826  # makes the median absolute deviation that of a normal distribution's standard deviation
_METRICS, _PERCENTS = ("ttft_s", "tpot_s", "e2e_s"), (50.0, 95.0)


def outlier_run(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find a run far from the others of its arm in the log of a percentile; a spread below the policy's run effect counts as that."""
    for name, arm in (("the baseline", evidence.baseline), ("the candidate", evidence.candidate)):
        if len(arm) < FEWEST_RUNS:
            continue
        far = [found for metric in _METRICS for percent in _PERCENTS if (found := _farthest(arm, metric, percent, evidence))]
        if far:
            z, place, phrase = max(far)
            message = (
                f"run {place + 1} of {name} ({arm[place].facts.file_name}) is an outlier: {phrase}, {z:.0f} robust deviations off. "
                "It is kept; find out what happened in it, or repeat it"
            )
            yield about_runs("outlier_run", message, "informs")


def _farthest(arm: Sequence[MeasuredRun], metric: str, percent: float, evidence: MeasuredEvidence) -> tuple[float, int, str] | None:
    """Return (z, place, words) of the run farthest from the median where it is beyond OUTLIER_Z."""
    figures = [_figure(run, metric, percent) for run in arm]
    if any(figure is None or figure <= 0 for figure in figures):
        return None
    logs = np.log(np.array(figures, dtype=np.float64))
    distances = np.abs(logs - np.median(logs))
    spread = max(_NORMAL_MAD * float(np.median(distances)), evidence.policy.run_effect_sd)
    place = int(np.argmax(distances))
    z = float(distances[place]) / spread if spread > 0 else math.inf if distances[place] > 0 else 0.0
    words = (
        f"{metric} p{percent:g} is {figures[place]:.4g} s and the median of the {len(arm)} runs {math.exp(float(np.median(logs))):.4g} s"
    )
    return (z, place, words) if z > OUTLIER_Z else None


def _figure(run: MeasuredRun, metric: str, percent: float) -> float | None:
    import pyarrow.compute as pc

    values = run.requests.filter(pc.equal(run.requests["status"], COMPLETED))[metric].drop_null().to_numpy()
    return percentile(values, percent) if len(values) else None
