"""selfcheck(...) -> how often the gate is wrong about changes of one mapping on one trace and accelerator, under one policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from gates.measure import measure_cell
from gates.plan import PlannedCell
from gates.resimulation.stitch import can_stitch
from gates.selfcheck.pool import Bench, Pool
from gates.selfcheck.rates import Row, Trials
from gates.selfcheck.regressions import Regression
from gates.statistics.blocks import Floats
from gates.strata import parse_stratum, prompt_bins
from replay.assembly.layers import HOST_LAYER
from replay.errors import TraceError

if TYPE_CHECKING:
    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec

LEVELS = (0.01, 0.03, 0.05, 0.10)
QUICK_DRAWS, FULL_DRAWS = 300, 1000
_PROBE_SLOWDOWN = 0.01
Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selfcheck:
    """The rates of one cell."""

    rows: tuple[Row, ...]
    margin: float
    """The largest worsening that no blocking latency claim allows: the least of their margins."""
    draws: int
    step_error_ratio: float

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the rates."""
        return {
            "margin": self.margin,
            "draws": self.draws,
            "step_error_ratio": self.step_error_ratio,
            "rows": [row.to_document() for row in self.rows],
        }


def selfcheck(
    cell: PlannedCell, replayer: Replayer, mapping: MappingSpec, *, draws: int, jobs: int, step_error_ratio: float = 0.0, say: Say
) -> Selfcheck:
    """Return the decisions on candidates that are worse by a known amount, each draw of the traffic taken as the recorded trace once.

    Draws are replayed once for each candidate that goes through the queue and shared by all trials. `step_error_ratio` is what is not known
    of a changed kernel, as a share of the step's time: 0 for kernels that were measured.

    Raises:
        TraceError: the trace has sessions, whose blocks cannot change places, or no blocking latency claim to check.
    """
    margin = min((c.spec.margin for c in cell.claims if c.spec.blocking and c.spec.definition.basis == "request_percentile"), default=None)
    if margin is None:
        raise TraceError("the policy", "no blocking claim about a latency", "one, whose worsening can be injected", "add one")
    if not can_stitch(replayer.trace):
        raise TraceError(replayer.trace.name, "sessions, whose turns wait for each other", "requests that blocks can be cut of", "slice it")
    bench = Bench.of(cell, replayer, mapping, draws=draws, jobs=jobs)
    regressions = list(_regressions(bench, margin))
    probe = Regression(kind="service", factors=dict.fromkeys(_kernels(bench), 1.0 + _PROBE_SLOWDOWN))
    pool = bench.pool([*regressions, probe], say)
    run = replayer.run(mapping)
    trials = Trials.of(cell, measure_cell(cell, run, run), draws, amplification=_amplification(pool), step_error_ratio=step_error_ratio)
    rows = tuple(trials.row(regression, pool, place, bench.largest_shift(pool, place)) for place, regression in enumerate(regressions))
    return Selfcheck(rows=rows, margin=margin, draws=draws, step_error_ratio=step_error_ratio)


def _regressions(bench: Bench, margin: float) -> Iterator[Regression]:
    yield Regression(kind="none")
    stratum, layer_kernels = _largest_bin(bench), _slowest_layer(bench)
    for level in sorted({*LEVELS, margin}):
        yield Regression(kind="uniform", level=level)
        yield Regression(kind="tail", level=level)
        yield Regression(kind="stratum", level=level, stratum=stratum)
        yield Regression(kind="layer_type", level=level, factors=bench.slowdown(layer_kernels, level))
        yield Regression(kind="service", level=level, factors=bench.slowdown(_kernels(bench), level))


def _kernels(bench: Bench) -> list[str]:
    return [str(name) for name in bench.replayer.table(bench.mapping).kernels["kernel"].to_pylist()]


def _slowest_layer(bench: Bench) -> list[str]:
    """Return the kernels of the layer type that takes most of the time."""
    layers = bench.replayer.run(bench.mapping).layers
    rows = [row for row in layers.to_pylist() if row["layer_type"] != HOST_LAYER]
    slowest = max(rows, key=lambda row: float(row["time_s"]))["layer_type"]
    kernels = bench.replayer.table(bench.mapping).kernels
    return [str(name) for name in kernels.filter(pc.equal(kernels["layer_type"], slowest))["kernel"].to_pylist()]


def _largest_bin(bench: Bench) -> str:
    """Return the prompt bin with most requests."""
    prompts = bench.replayer.trace.requests["prompt_tokens"].to_numpy()

    def count(stratum: str) -> int:
        one_bin = parse_stratum(stratum)
        return int(((prompts >= one_bin.tokens_from) & (prompts < (one_bin.tokens_to or np.inf))).sum())

    return max((one.stratum for one in prompt_bins(list(bench.cell.policy.prompt_bin_edges_tokens))), key=count)


def _amplification(pool: Pool) -> Floats:
    """Return the mean log change of each figure for a log change of all kernels' times, 0 where it has none [claims]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(pool.candidates[-1] / pool.baseline).mean(axis=0) / np.log1p(_PROBE_SLOWDOWN)
    return np.asarray(np.nan_to_num(logs, nan=0.0, posinf=0.0, neginf=0.0))
