"""Claims over time windows: ratios of sums, resampled by whole windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gates.claim import ClaimSpec
from gates.measure.goodput import goodput_windows
from gates.measure.measured import Measured, Problem, divide, draw_units, read_column, usable
from gates.measure.window_drift import drift_figures
from gates.plan import PlannedCell
from gates.policy import SloLimits
from gates.statistics.blocks import BlockDraw, Floats, block_sums
from replay.assembly.layers import ALL_LAYERS
from replay.assembly.run import Run

_STEADY_WINDOWS = 25  # fewer than 25 blocks make the bounds of a block bootstrap too narrow


def measure_windows(
    cell: PlannedCell, wanted: Sequence[tuple[int, ClaimSpec]], baseline: Run, candidate: Run
) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the figures of every wanted claim; an arm that ended earlier is idle in the windows it lacks."""
    windows_count = max(_windows_count(baseline.windows), _windows_count(candidate.windows))
    if windows_count == 0:
        yield from ((index, Measured(problem=("metric_absent", "neither arm ran a step"))) for index, _ in wanted)
        return
    draw = draw_units(cell, windows_count, "bootstrap.windows")
    for index, spec in wanted:
        if spec.of is not None:
            yield index, drift_figures(cell, spec.of, (baseline, candidate))
            continue
        arms = [_sums(run, spec, windows_count, cell.policy.slo) for run in (baseline, candidate)]
        lacking = [name for name, arm in zip(("the baseline", "the candidate"), arms, strict=True) if arm is None]
        if lacking:
            yield index, Measured(n=windows_count, problem=("metric_absent", f"{' and '.join(lacking)} {_absent(spec)}"))
        else:
            yield index, _measure(cell, draw, [arm for arm in arms if arm is not None])


def _measure(cell: PlannedCell, draw: BlockDraw, arms: list[tuple[Floats, Floats]]) -> Measured:
    replicates = [divide(block_sums(draw, above), block_sums(draw, below)) for above, below in arms]
    baseline, candidate = (float(above.sum()) / float(below.sum()) for above, below in arms)
    minimum = cell.policy.minimum_windows
    pair = (replicates[0], replicates[1])
    problem: Problem | None = None
    if draw.n < minimum:
        problem = ("too_few_windows", f"the run has {draw.n} windows and {minimum} are needed")
    elif not usable(pair):
        problem = ("undefined_resamples", "so few windows are busy that some resamples hold none of them")
    steady = draw.n >= _STEADY_WINDOWS or problem is not None
    warnings = () if steady else (f"only {draw.n} windows; from {_STEADY_WINDOWS} on the bounds are steady",)
    return Measured(
        n=draw.n,
        baseline=baseline,
        candidate=candidate,
        replicates=pair if usable(pair) else None,
        warnings=warnings,
        problem=problem,
        n_needed=minimum if draw.n < minimum else None,
    )


def _windows_count(windows: pa.Table) -> int:
    return int(pc.max(windows["window"]).as_py()) + 1 if windows.num_rows else 0


def _absent(spec: ClaimSpec) -> str:
    if spec.definition.numerator == "energy_j":
        return "has no energy: the accelerator's description states no power"
    return "ended no request" if spec.definition.denominator == "run" else f"spent no {spec.layer_type or 'busy'} time"


def _sums(run: Run, spec: ClaimSpec, windows_count: int, slo: SloLimits | None) -> tuple[Floats, Floats] | None:
    """Return numerator and denominator by window [windows], or None where one is missing or the denominator is 0 throughout."""
    definition = spec.definition
    if definition.denominator == "run":
        return goodput_windows(run.requests, slo, run.window_s, windows_count)
    rows = run.windows.filter(pc.equal(run.windows["layer_type"], spec.layer_type or ALL_LAYERS))
    index = rows["window"].to_numpy()
    columns = []
    of_time = {"reference": run.reference_flops_per_s, "busy": 1.0 / run.replicas_count}
    for name in (definition.numerator, definition.denominator):
        values = np.zeros(windows_count)
        column, present = read_column(rows, "time_s" if name in of_time else name)
        if not present.any():
            return None
        np.add.at(values, index, column * of_time.get(name, 1.0))
        columns.append(values)
    return (columns[0], columns[1]) if columns[1].sum() > 0 else None
