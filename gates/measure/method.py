"""Which statistics a cell of measured runs gets: the one place that chooses, from what the runs are and never from their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gates.measure.pairing import Pairing

if TYPE_CHECKING:
    from replay.ingress.measured.measured_run import MeasuredRun

MeasuredMethod = Literal["block_bootstrap", "unpaired_bootstrap", "welch_t", "reported_figures_without_interval"]
FEWEST_RUNS = 2
"""Runs per arm from which the spread between runs is measured instead of assumed."""

MEASURED_RULES: dict[str, str] = {
    "method": "summaries: reported figures without an interval; two or more runs in both arms: t over the log of each run's figure "
    "(over the figure itself where claims are by difference), Welch's, or with one variance moderated by an archive if given; one "
    "run per arm: circular block bootstrap, paired where both runs hold the same requests, else each arm resampled alone; batch means as "
    "its cross-check; where the runs bring their steps: noise swap of a pair whose archive shows no run effect beyond the policy's, and "
    "the log percentiles of repeated runs without the noise of their steps, if the replays reproduce the runs' own tails",
    "interval": "one-sided bounds at alpha: expanded percentiles of the resamples, with degrees of freedom by the number of blocks, or t",
    "pairing": "by the load's own request ids, else by equal prompt lengths in the same order; one draw of blocks for both arms",
    "block_rule": "the longest of the automatic length on the influence of the log ratio, sqrt(n) and the mean busy period, at least 25 "
    "blocks, circular; throughput: ceil(n / blocks) time windows; unpaired: each arm alone",
    "missing_data_rule": "a declared metric or stratum that either arm lacks is undecided; requests that one arm did not serve are left "
    "out of its percentiles and judged as a finding",
    "run_effect": "one run per arm: a normal effect on the log of every latency and rate with the policy's run_effect_sd x sqrt(2) widens "
    "the interval, or what the archive's 95 % bound leaves where that is less and the runs are paired, or what it shows if more; "
    "repeated runs: their own spread",
    "minimum_detectable_effect": "(t of alpha + z of 80 % power) x standard error, of the log ratio or of the difference",
}
"""Rules of measured runs that differ from those of replays; part of the plan's digest."""


def choose_method(baseline: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun], pairing: Pairing) -> MeasuredMethod:
    """Return the method for all claims of a cell whose arms hold these runs; `pairing` is that of the first run of each."""
    if not baseline or not candidate or pairing.kind == "none":
        return "reported_figures_without_interval"
    if min(len(baseline), len(candidate)) >= FEWEST_RUNS:
        return "welch_t"
    return "unpaired_bootstrap" if pairing.kind == "unpaired" else "block_bootstrap"
