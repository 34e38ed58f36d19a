"""Error rates of the gate for modelled runs: both arms replayed on stitched traffic, under drawn errors of the hardware model.

A trial draws traffic and the error of the model anew. The gate sees modelled arms whose steps are wrong by the error that both share
and, in the candidate, by that of its changed kernel; it draws errors of the same size in each replicate. The truth is the ratio of the
long-run percentiles of a server without error, so that a slowdown is chosen on very long traffic and hidden from the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from rate_table import Rate, rate_of
from synthetic_servers import Counts, Floats, Server, Traffic, draw_traffic, serve, slowdown_for

from gates.resimulation.errors import MEAN_TO_SD, KernelError, draw_errors
from gates.resimulation.stitch import drawn_rows, joined_arrivals
from gates.statistics.blocks import block_length, draw_blocks
from gates.statistics.compare import compare
from replay.assembly.percentile import percentile
from replay.seeds import stream
from replay.tiling.step_table import MEASURED_ERROR_RATIO, MEASURED_REPEAT_RATIO

REQUESTS, PERCENT, MARGIN, ALPHA, BLOCKS, REPLICATES = 20_000, 99.0, 0.03, 0.05, 25, 200
KERNEL_SHARE = 0.2
"""Of the step's time, in the kernel that changed."""
SHARED_SD = 0.05
"""Of a modelled kernel; as in the study that set the targets."""
SHIFTS = {"S 0": 0.0, "S 3": 0.03, "S 5": 0.05}
TITLES: dict[str, str] = {
    "modelled_known": "modelled, kernels with measured times",
    "modelled_error": "modelled, changed kernel's error 0.5 % of step time",
}
RATES = ("false rollback at 0", "false release at the margin", "release at 0", "rollback at +5 %")
TARGETS: dict[str, tuple[float, ...]] = {"modelled_known": (0.01, 0.03, 0.97, 0.97), "modelled_error": (0.03, 0.05, 0.59, 0.85)}
"""At most for the first two, at least for the others."""


def step_error(kernel: str, shared_sd: float, own_sd: float) -> KernelError:
    """Return the error of a whole step's time of which a part changed."""
    return KernelError(kernel=kernel, shared_sd=shared_sd, specific_sd=own_sd, changed=True, estimated=True)


ERRORS: dict[str, KernelError] = {
    "modelled_known": step_error("step", MEAN_TO_SD * MEASURED_ERROR_RATIO, KERNEL_SHARE * MEAN_TO_SD * MEASURED_REPEAT_RATIO),
    "modelled_error": step_error("step", SHARED_SD, 0.005),
}
"""Measured times are wrong by what the product assumes of them."""


class Modelled(Protocol):
    """One draw of traffic."""

    @property
    def n(self) -> int:
        """Requests."""
        ...

    def figures(self, rows: Counts | None, log_factors: Sequence[float]) -> list[tuple[float, ...]]:
        """Return each metric's percentile for each factor on every step time, on the traffic itself or on stitched rows of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Traffic of a synthetic server."""

    traffic: Traffic

    @property
    def n(self) -> int:
        """Requests."""
        return len(self.traffic.arrivals)

    def figures(self, rows: Counts | None, log_factors: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the percentile of the latency."""
        traffic = self.traffic
        if rows is not None:
            arrivals = joined_arrivals(traffic.arrivals, rows)
            traffic = Traffic(server=traffic.server, arrivals=arrivals, works=traffic.works[rows])
        unmoved = np.zeros(self.n)
        return [(percentile(serve(traffic, unmoved, effects=np.array([factor])).latencies, PERCENT),) for factor in log_factors]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the gate says of one metric."""

    verdict: str
    interval: tuple[float, float]
    """Two-sided 95 %, of the ratio."""

    @classmethod
    def of(cls, recorded: tuple[float, float], replicates: tuple[Floats, Floats]) -> Judged:
        """Return the decision on a single claim."""
        found, wide = (
            compare(*recorded, *replicates, lower_is_better=True, by_ratio=True, margin=MARGIN, alpha=alpha) for alpha in (ALPHA, ALPHA / 2)
        )
        verdict = "release" if found.inside_margin else "rollback" if found.beyond_no_change else "inconclusive"
        return cls(verdict=verdict, interval=(wide.lower, wide.upper))


def judge_draw(modelled: Modelled, slowdowns: Sequence[float], error: KernelError, draw: np.random.Generator) -> list[list[Judged]]:
    """Return what the gate says of each slowdown and metric."""
    seed = int(draw.integers(2**31))
    shared, own = draw.standard_normal(2) * (error.shared_sd, error.specific_sd)
    blocks = draw_blocks(
        modelled.n, length=block_length(modelled.n, BLOCKS), replicates=REPLICATES, generator=stream(seed, "resimulation.blocks")
    )
    drawn = draw_errors([error], REPLICATES, seed)

    def arms(rows: Counts | None, shared_log: float, own_log: float) -> list[tuple[float, ...]]:
        return modelled.figures(rows, [shared_log, *(shared_log + own_log + slowdown for slowdown in slowdowns)])

    recorded = np.array(arms(None, shared, own))  # [arms, metrics]
    shared_logs, own_logs = shared + error.shared_sd * drawn.shared[:, 0], own + error.specific_sd * drawn.specific[:, 0]
    replicates = np.array([arms(drawn_rows(blocks, index), shared_logs[index], own_logs[index]) for index in range(REPLICATES)])
    return [
        [
            Judged.of((recorded[0, metric], recorded[arm, metric]), (replicates[:, 0, metric], replicates[:, arm, metric]))
            for metric in range(recorded.shape[1])
        ]
        for arm in range(1, 1 + len(slowdowns))
    ]


Trial = Mapping[str, Judged]
"""By the name of the regression."""


def queue_trial(server: Server, seed: int, slowdowns: Mapping[str, float], number: int) -> dict[str, Trial]:
    """Return both situations of one draw of traffic."""
    draw = stream(seed, f"error rates/modelled/{server}/{number}")
    queue = Queue(traffic=draw_traffic(server, REQUESTS, draw))
    judged = {situation: judge_draw(queue, list(slowdowns.values()), error, draw) for situation, error in ERRORS.items()}
    return {situation: {name: found for name, (found,) in zip(slowdowns, arms, strict=True)} for situation, arms in judged.items()}


def rates_of(situation: str, server: str, trials: Sequence[Trial], targets: Sequence[float | None]) -> list[Rate]:
    """Return the four rates of the target table, and how often the interval holds the truth at the margin."""
    asked = zip(RATES, ("S 0", "S 3", "S 0", "S 5"), ("rollback", "release", "release", "rollback"), targets, strict=True)
    rows = [
        rate_of((trial[name].verdict == wanted for trial in trials), situation, server, "S", rate, target, at_most=place < 2)
        for place, (rate, name, wanted, target) in enumerate(asked)
        if name in trials[0]
    ]
    covered = (trial["S 3"].interval[0] <= 1.0 + MARGIN <= trial["S 3"].interval[1] for trial in trials)
    return [*rows, rate_of(covered, situation, server, "S", "coverage of 95 % intervals", 0.93, at_most=False)]


def measure_modelled(server: Server, trials: int, seed: int, pool: ProcessPoolExecutor) -> list[Rate]:
    """Return the rates of modelled runs on a synthetic server."""
    slowdowns = {name: slowdown_for(server, shift, PERCENT, noisy=False) if shift else 0.0 for name, shift in SHIFTS.items()}
    found = list(pool.map(partial(queue_trial, server, seed, slowdowns), range(trials), chunksize=5))
    return [rate for situation in TITLES for rate in rates_of(situation, server, [one[situation] for one in found], TARGETS[situation])]
