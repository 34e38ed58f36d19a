"""What differs from one measured run to the next beside the requests: assumed for a single pair, bounded or told by an A/A archive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.estimate import with_run_effect
from gates.statistics.power import needed_runs
from gates.statistics.runs import VariancePrior, fit_prior, run_effect_sd

if TYPE_CHECKING:
    from gates.claim import ClaimSpec
    from gates.measure.measured import Measured
    from gates.plan import PlannedCell
    from replay.ingress.measured.measured_run import MeasuredRun

ArchiveSets = Sequence[Sequence["MeasuredRun"]]
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSpread:
    """How much the figure of one claim differs between archived runs of one configuration."""

    variance: float
    """Pooled over the sets; of the log of the figure, or of the figure itself."""
    degrees: float
    prior: VariancePrior
    sets_count: int
    runs_count: int

    @property
    def upper_variance(self) -> float:
        """Upper 95 % bound: degrees x variance / chi-squared quantile (that by Wilson & Hilferty 1931)."""
        ninths = 2.0 / (9.0 * self.degrees)
        cube = 1.0 - ninths + NormalDist().inv_cdf(1.0 - _CONFIDENCE) * math.sqrt(ninths)
        return self.variance / max(cube, 1e-3) ** 3

    def bound(self, pair_error: float) -> float:
        """Return the largest run effect (standard deviation) that the runs leave, of which a pair's standard error explains a part."""
        return math.sqrt(max(0.0, self.upper_variance - 0.5 * pair_error**2))

    @property
    def phrase(self) -> str:
        """``20 archived runs in 4 sets``."""
        return f"{self.runs_count} archived runs in {self.sets_count} set{'s' if self.sets_count > 1 else ''}"


def archived_spread(sets: ArchiveSets, figures_of: Callable[[Sequence[MeasuredRun]], Floats | None]) -> ArchivedSpread | None:
    """Return the spread between the runs of each set, or None where no set has two runs whose figures differ.

    `figures_of` gives the figures [runs] of a set, None where not every run has one. A prior never weighs more than the runs it
    comes from; of one set, what it says is taken for the arms' own, as nothing tells how much sets differ.
    """
    found = [figures for one in sets if len(one) > 1 and (figures := figures_of(one)) is not None]
    found = [figures for figures in found if float(np.ptp(figures)) > 0]
    if not found:
        return None
    degrees = [float(len(figures) - 1) for figures in found]
    variances = [float(np.var(figures, ddof=1)) for figures in found]
    total = sum(degrees)
    pooled = float(np.dot(degrees, variances)) / total
    prior = fit_prior(variances, degrees) if len(found) > 1 else VariancePrior(variance=pooled, degrees=total)
    return ArchivedSpread(
        variance=pooled,
        degrees=total,
        prior=replace(prior, degrees=min(prior.degrees, total)),
        sets_count=len(found),
        runs_count=sum(len(figures) for figures in found),
    )


def with_single_run(
    cell: PlannedCell, spec: ClaimSpec, measured: Measured, archived: ArchivedSpread | None, effect: float = 1.0
) -> Measured:
    """Return the figures of one pair with the run effect in their interval, and how many runs per arm would decide.

    The effect is the policy's times `effect` (of the figure by a change of log latency), unless an archive bounds it lower: then the
    bound. An archive that shows more than the policy assumes counts with what it shows.
    """
    found = measured.estimate
    if found is None:
        return replace(measured, runs_count=1)
    assumed = abs(effect) * cell.policy.run_effect_sd
    sd, source = assumed, f"one run per arm cannot show how much runs differ: the interval assumes a run effect with {_sd(assumed)}"
    if archived is not None:
        shown = run_effect_sd(archived.prior, found.standard_error)
        bound = archived.bound(found.standard_error)
        if bound <= assumed:
            sd, source = bound, f"{archived.phrase} show no run effect beyond {_sd(bound)}, which the interval contains"
        elif shown > assumed:
            sd, source = shown, f"{archived.phrase} show a run effect with {_sd(shown)}, which the interval contains"
        else:
            source += f"; {archived.phrase} cannot show less (at most {_sd(bound)})"
    degrees = 0.0 if archived is None else archived.prior.degrees
    own = math.hypot(found.standard_error / math.sqrt(2.0), sd)
    runs = needed_runs(own, spec.margin, cell.policy.alpha, degrees) if found.scale == "ratio" and measured.problem is None else None
    if runs is not None:
        source += f"; {runs} runs per arm would show an unchanged candidate inside the margin"
    return replace(measured, estimate=with_run_effect(found, sd), warnings=(*measured.warnings, source), runs_count=1)


def figures_of_runs(figure: Callable[[MeasuredRun], float | None], *, by_ratio: bool) -> Callable[[Sequence[MeasuredRun]], Floats | None]:
    """Return what gives the figures of a set of runs [runs], as logs where claims are by ratio; None where one is missing or has no log."""

    def of(runs: Sequence[MeasuredRun]) -> Floats | None:
        found = [figure(run) for run in runs]
        if any(one is None or (by_ratio and one <= 0) for one in found):
            return None
        values = np.array(found, dtype=np.float64)
        return np.log(values) if by_ratio else values

    return of


def _sd(value: float) -> str:
    return f"a standard deviation of {100 * value:.2g} %"
