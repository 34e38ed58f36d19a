"""Judge a pair of mappings in a cell by replaying both on resampled traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gates.claim import Claim
from gates.finding import Finding
from gates.judge import judge, judge_measured
from gates.measure import measure_cell
from gates.plan import PlannedCell
from gates.resimulation.doubt import doubtful_kernels, settled, with_resimulated
from gates.resimulation.errors import KernelError
from gates.resimulation.measure_next import Row, measure_next
from gates.resimulation.replicates import can_resimulate, resimulate

if TYPE_CHECKING:
    from gates.measure.measured import Measured
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Claims with their outcomes, and what was not known of the kernels behind them."""

    claims: tuple[Claim, ...]
    errors: tuple[KernelError, ...] = ()
    measure_next: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Shapes to time, by kind of measurement file, where the model's error alone forbids a decision."""

    def findings(self) -> Iterator[Finding]:
        """Yield what should be said of the kernels' errors: changed ones whose ratio no pairs of timings say anything about."""
        unknown = [error for error in self.errors if error.changed and not error.estimated]
        if unknown:
            named = [f"{error.kernel} ({100 * error.specific_sd:.2g} %)" for error in sorted(unknown, key=lambda one: -one.specific_sd)]
            more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            message = (
                f"no pairs of timings say how far the ratio of the changed kernels to the baseline's is off, so their full error counts: "
                f"{', '.join(named[:_SHOWN])}{more}"
            )
            yield Finding(code="model_error_unestimated", message=message, effect="informs", stage="tiling")
        rows = sum(map(len, self.measure_next.values()))
        if rows:
            message = (
                f"{rows} kernel shapes to time are in evidence/measure-next*.csv: fill in the times and give the files as --measurements"
            )
            yield Finding(code="measure_next", message=message, effect="informs", stage="tiling")


def judge_by_replays(
    cell: PlannedCell, replayer: Replayer, arms: tuple[MappingSpec, MappingSpec], jobs: int, quality: Sequence[Measured] = ()
) -> Judged:
    """Return the judged claims of (baseline, candidate) in `arms`; `quality` are the figures of those about it.

    Where the trace cannot be cut into blocks that follow one another, the replicates are resamples of the two runs, without the model's
    error.
    """
    baseline, candidate = (replayer.run(mapping) for mapping in arms)
    replayed = cell.replayed
    if not can_resimulate(replayed, replayer):
        return Judged(claims=judge(cell, baseline, candidate, quality))
    measured = measure_cell(replayed, baseline, candidate)
    found = resimulate(replayed, replayer, arms, jobs=jobs, settled=lambda replicates: settled(replayed, measured, replicates))
    doubtful = doubtful_kernels(replayed, measured, found)
    resimulated = [with_resimulated(replayed, index, one, found) for index, one in enumerate(measured)]
    return Judged(
        claims=judge_measured(cell, [*resimulated, *quality]),
        errors=found.errors,
        measure_next=measure_next(replayer, arms, doubtful) if doubtful else {},
    )
