"""Which statistics a cell of measured runs gets: the one place that chooses, from what the runs are and never from their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gates.measure.pairing import Pairing

if TYPE_CHECKING:
    from replay.ingress.measured.measured_run import MeasuredRun

MeasuredMethod = Literal[
    "paired_circular_block_bootstrap", "unpaired_circular_block_bootstrap", "welch_t_over_runs", "reported_figures_without_interval"
]
FEWEST_RUNS = 2
"""Runs per arm from which the spread between runs is measured instead of assumed."""

MEASURED_RULES: dict[str, str] = {
    "method": "summaries: reported figures without an interval; two or more runs in both arms: Welch's t on the log of the figure of each "
    "run (on the figure itself where claims are by difference); one run per arm: paired circular block bootstrap where both runs hold the "
    "same requests, else each arm resampled alone",
    "pairing": "by the load's own request ids, else by equal prompt lengths in the same order; one draw of blocks for both arms",
    "block_rule": "ceil(n / blocks) consecutive requests by arrival (time windows for throughput), circular; unpaired: each arm alone",
    "missing_data_rule": "a declared metric or stratum that either arm lacks is undecided; requests that one arm did not serve are left "
    "out of its percentiles and judged as a finding",
    "run_effect": "one run per arm: a normal effect on the log of every latency and rate with the policy's run_effect_sd x sqrt(2) is "
    "added to each replicate; repeated runs: their own spread",
}
"""Rules of measured runs that differ from those of replays; part of the plan's digest."""


def choose_method(baseline: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun], pairing: Pairing) -> MeasuredMethod:
    """Return the method for all claims of a cell whose arms hold these runs; `pairing` is that of the first run of each."""
    if not baseline or not candidate or pairing.kind == "none":
        return "reported_figures_without_interval"
    if min(len(baseline), len(candidate)) >= FEWEST_RUNS:
        return "welch_t_over_runs"
    return "unpaired_circular_block_bootstrap" if pairing.kind == "unpaired" else "paired_circular_block_bootstrap"
