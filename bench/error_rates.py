"""Error rates of the gate's statistics, on two synthetic servers whose truth is known.

    python bench/error_rates.py [--trials 300] [--seed 1] [--parts measured modelled] [--out FOLDER] [--workers 2]

Modelled runs: `modelled_rates.py`, with which the table ends (`--parts modelled`: that alone). Of measured ones:
each trial draws traffic and noise anew; a regression is injected with a known shift of p99. Decision at one-sided 95 %: RELEASE if
the upper bound of the ratio is below 1.03, else ROLLBACK if the lower bound is above 1, else INCONCLUSIVE. Regressions: U all
latencies x (1 + delta); S every step slower, so that the long-run p99 rises by delta; T only the tail; B only the bulk, p99
unchanged. A target is met unless the 95 % Wilson interval of the rate excludes it. Prints a markdown table; `--out` also writes
error-rates.md and error-rates.json. A run's trials depend on the seed and on nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from modelled_rates import TITLES as MODELLED_TITLES
from modelled_rates import measure_modelled
from rate_table import Rate, markdown, rate_of
from synthetic_servers import Floats, Served, Server, Traffic, bulk_only, draw_noise, draw_traffic, serve, slowdown_for, tail_only

from gates.statistics.estimate import Estimate, from_t, with_run_effect
from gates.statistics.noise_fit import Noise, StepTimes
from gates.statistics.noise_swap import NoiseSwap, denoised_log_percentiles, noise_swap
from gates.statistics.pairs import bootstrap_pair
from gates.statistics.runs import fit_prior, pooled, welch
from replay.assembly.percentile import percentile
from replay.seeds import stream

REQUESTS, PERCENT, MARGIN, ALPHA = 20_000, 99.0, 0.03, 0.05
RUNS, RUN_EFFECT_SD, ARCHIVED_SETS = 5, 0.01, 20
FEATURE_SHARES: dict[Server, tuple[float, ...]] = {"mg1": (0.5, 0.8, 0.95), "batch": (0.6, 0.9)}
"""Of steps by modelled time: where the bins of the effects end; 20,000 steps bear four bins, some 3,700 batches three. Chosen among one
to eight bins on trials drawn apart from those of the table."""
CELL_SHARES = (0.25, 0.5, 0.65, 0.8, 0.88, 0.95, 0.98)
WRONG_BIAS, WRONG_SD = 0.05, 0.10
Situation = Literal["pair_steps", "pair_wrong_simulator", "pair_plain", "pair_run_effect", "runs_steps", "runs_plain"]
TITLES: dict[str, str] = {
    "pair_steps": "one pair with step times, no run effect",
    "pair_wrong_simulator": "the same, simulator 5 % biased with 10 % error per request",
    "pair_plain": "one pair without step times",
    "pair_run_effect": "one pair with step times, 1 % run effect, 1 % assumed",
    "runs_steps": "5 runs per arm, 1 % run effect, step times",
    "runs_plain": "5 runs per arm, 1 % run effect, no step times",
    **MODELLED_TITLES,
}
SERVERS: dict[str, str] = {"mg1": "M/G/1", "batch": "batch queue"}
RATES = ("false rollback at 0", "false release at the margin", "release at 0", "rollback at +5 %")
TARGETS: dict[str, dict[Server, tuple[float | None, ...]]] = {
    "pair_steps": {"mg1": (0.03, 0.06, 0.95, 0.98), "batch": (0.03, 0.06, 0.90, 0.95)},
    "pair_wrong_simulator": {"mg1": (0.07, 0.05, None, None), "batch": (0.07, 0.05, None, None)},
    "pair_plain": {"mg1": (0.05, 0.05, 0.35, 0.60), "batch": (0.05, 0.05, 0.50, 0.80)},
    "runs_steps": {"mg1": (0.05, 0.06, 0.50, 0.82), "batch": (0.05, 0.06, 0.80, 0.99)},
    "runs_plain": {"mg1": (0.05, 0.06, 0.30, 0.64), "batch": (0.05, 0.06, 0.68, 0.98)},
}
"""Per situation and server, in the order of RATES: at most for the first two, at least for the others."""
SHIFTS: dict[str, float] = {"U 0": 0.0, "U 3": 0.03, "U 5": 0.05, "S 3": 0.03, "S 5": 0.05, "T 10": 0.10, "B 3": 0.0}
"""Injected regressions and the true shift of p99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What all trials of a server share."""

    server: Server
    seed: int
    slowdowns: dict[str, float]
    """Log factor of every step, by the name of the regression."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One run as the gate sees it."""

    served: Served
    steps: StepTimes
    """With its own names of steps in `requests`: each belongs to its first request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Traffic, the model of its steps, and the replay of both."""

    traffic: Traffic
    edges: Floats
    cell_edges: Floats
    done: dict[tuple[bytes, bytes], Floats] = field(default_factory=dict)
    """Replays by effects and noise: pairs of one trial share many."""
    wrong: Floats | None = None
    """[n] log error of the simulator per request."""

    @classmethod
    def of(cls, traffic: Traffic) -> Bench:
        served = serve(traffic, np.zeros(len(traffic.arrivals)))
        modelled = served.modelled[np.unique(served.heads)]
        return cls(
            traffic=traffic, edges=np.quantile(modelled, FEATURE_SHARES[traffic.server]), cell_edges=np.quantile(modelled, CELL_SHARES)
        )

    def run(self, log_factors: Floats) -> Run:
        """Return a measured run whose steps take modelled time x exp(log factor of their first request)."""
        served = serve(self.traffic, log_factors)
        heads = np.flatnonzero(served.heads == np.arange(len(served.heads)))
        modelled = served.modelled[heads]
        bins = np.searchsorted(self.edges, modelled, side="right")
        steps = StepTimes(
            log_factors=log_factors[heads],
            features=np.eye(len(self.edges) + 1)[bins],
            requests=heads,
            cells=np.searchsorted(self.cell_edges, modelled, side="right"),
        )
        return Run(served=served, steps=steps)

    def replay(self, runs: Mapping[str, Run], effects: Floats, noise: Noise) -> Floats:
        """Return replayed latencies: a step takes the noise of the step that served its first request in the noise's own arm."""
        key = (effects.tobytes(), noise.log_factors.tobytes())
        if key not in self.done:
            self.done[key] = self._replay(runs[noise.arm], effects, noise)
        return self.done[key]

    def _replay(self, run: Run, effects: Floats, noise: Noise) -> Floats:
        log_factors = np.zeros(len(run.served.heads))
        log_factors[run.steps.requests] = noise.log_factors
        log_factors = log_factors[run.served.heads]
        if self.wrong is not None:
            log_factors = log_factors + self.wrong
        return serve(self.traffic, log_factors, edges=self.edges, effects=effects).latencies


Trial = Mapping[str, Estimate]
"""By the name of the regression, at ALPHA; under WIDE the unchanged candidate at ALPHA / 2, whose bounds are a two-sided 95 % interval."""
WIDE = "U 0, 95 %"


def by_swap(bench: Bench, runs: tuple[Run, Run], latencies: tuple[Floats, Floats], seed: int) -> NoiseSwap:
    """Return a pair with step times."""
    replayed = partial(bench.replay, {"baseline": runs[0], "candidate": runs[1]})
    steps = (runs[0].steps, runs[1].steps)
    return noise_swap(latencies, steps, PERCENT, replayed, alpha=ALPHA, generator=stream(seed, "resamples"))


def by_blocks(latencies: tuple[Floats, Floats], seed: int, *, alpha: float = ALPHA, name: str = "resamples") -> Estimate:
    """Return a pair without step times."""
    return bootstrap_pair(*latencies, PERCENT, alpha=alpha, generator=stream(seed, name))


def widened(found: Estimate) -> Estimate:
    """Return a t interval at ALPHA / 2."""
    assert found.degrees is not None
    return from_t(found.method, found.estimate, found.standard_error, found.degrees, ALPHA / 2)


def pair_trial(inputs: Inputs, number: int) -> dict[str, Trial]:
    """Return every single-pair situation of one draw of traffic and noise."""
    draw = stream(inputs.seed, f"error rates/pair/{inputs.server}/{number}")
    bench = Bench.of(draw_traffic(inputs.server, REQUESTS, draw))
    noise = [draw_noise(REQUESTS, draw) for _ in range(2)]
    run_effects = RUN_EFFECT_SD * draw.standard_normal(2)
    wrong = replace(bench, done={}, wrong=math.log1p(WRONG_BIAS) + WRONG_SD * draw.standard_normal(REQUESTS))
    seed = int(draw.integers(2**31))
    baseline = bench.run(noise[0])
    candidates = {"U 0": bench.run(noise[1])} | {name: bench.run(noise[1] + slow) for name, slow in inputs.slowdowns.items()}
    pairs = {name: ((baseline, run), (baseline.served.latencies, run.served.latencies)) for name, run in candidates.items()}
    own = candidates["U 0"]
    for name, changed in (("T 10", tail_only(own.served.latencies, 1.10)), ("B 3", bulk_only(own.served.latencies, 1.03))):
        pairs[name] = ((baseline, own), (baseline.served.latencies, changed))
    swapped = {name: by_swap(bench, runs, latencies, seed).found for name, (runs, latencies) in pairs.items()}
    plain = {name: by_blocks(latencies, seed) for name, (_, latencies) in pairs.items()}
    missed = {name: by_swap(wrong, *pairs[name], seed).found for name in ("U 0", "S 3", "S 5")}
    plain_wide = by_blocks(pairs["U 0"][1], seed, alpha=ALPHA / 2)
    return {
        "pair_steps": swapped | {WIDE: plain_wide if swapped["U 0"].degrees is None else widened(swapped["U 0"])},
        "pair_plain": plain | {WIDE: plain_wide},
        "pair_other_seed": {"U 0": by_blocks(pairs["U 0"][1], seed, name="other resamples")},
        "pair_wrong_simulator": missed | {WIDE: plain_wide if missed["U 0"].degrees is None else widened(missed["U 0"])},
        "pair_run_effect": run_effect_pair(bench, (noise[0] + run_effects[0], noise[1] + run_effects[1]), seed),
    }


def run_effect_pair(bench: Bench, log_factors: tuple[Floats, Floats], seed: int) -> Trial:
    """Return one pair with a run effect in each arm, and an assumed run effect of the true size in its interval."""
    runs = (bench.run(log_factors[0]), bench.run(log_factors[1]))
    swapped = by_swap(bench, runs, (runs[0].served.latencies, runs[1].served.latencies), seed)
    if swapped.amplification is None:
        return {"U 0": swapped.found}
    effect_sd = RUN_EFFECT_SD * swapped.amplification
    return {"U 0": with_run_effect(swapped.found, effect_sd), WIDE: with_run_effect(widened(swapped.found), effect_sd)}


def arm_of_runs(bench: Bench, draw: np.random.Generator) -> tuple[Floats, Floats]:
    """Return [runs] plain and denoised log percentiles of runs with a run effect."""
    runs = [bench.run(draw_noise(REQUESTS, draw) + RUN_EFFECT_SD * draw.standard_normal()) for _ in range(RUNS)]
    recorded = [(run.served.latencies, run.steps, partial(bench.replay, {"baseline": run})) for run in runs]
    quiet, reproductions = denoised_log_percentiles(recorded, PERCENT)
    assert all(reproduction.holds for reproduction in reproductions)
    return np.log([percentile(run.served.latencies, PERCENT) for run in runs]), quiet


def runs_trial(inputs: Inputs, number: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return both arms of one draw."""
    draw = stream(inputs.seed, f"error rates/runs/{inputs.server}/{number}")
    bench = Bench.of(draw_traffic(inputs.server, REQUESTS, draw))
    return arm_of_runs(bench, draw), arm_of_runs(bench, draw)


def judged_runs(inputs: Inputs, arms: list[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]], number: int) -> dict[str, Trial]:
    """Return both situations with several runs per arm; the archive is the baselines of 20 other trials, so that no one archive counts."""
    others = stream(inputs.seed, f"error rates/archive/{inputs.server}/{number}").permutation(np.delete(np.arange(len(arms)), number))
    prior = fit_prior([float(np.var(arms[other][0][1], ddof=1)) for other in others[:ARCHIVED_SETS]], RUNS - 1)
    baseline, candidate = arms[number]
    plain = [welch(baseline[0], candidate[0], alpha=alpha) for alpha in (ALPHA, ALPHA / 2)]
    quiet = [pooled(baseline[1], candidate[1], alpha=alpha, prior=prior) for alpha in (ALPHA, ALPHA / 2)]
    return {"runs_plain": {"U 0": plain[0], WIDE: plain[1]}, "runs_steps": {"U 0": quiet[0], WIDE: quiet[1]}}


def verdict(found: Estimate, shift: float = 0.0) -> str:
    """Return the decision if every latency of the candidate were exp(shift) times as long: an estimate moves with it exactly."""
    if found.upper + shift < math.log1p(MARGIN) and not found.release_vetoed:
        return "release"
    return "rollback" if found.lower + shift > 0 else "inconclusive"


def rates_of(situation: str, server: Server, trials: list[Trial]) -> list[Rate]:
    """Return the four rates of the target table, for U and where simulated for S, then what else the situation shows."""
    targets = TARGETS.get(situation, {}).get(server, (None,) * 4)
    at_zero = [trial["U 0"] for trial in trials]
    asked = zip(RATES, (0.0, 0.03, 0.0, 0.05), ("rollback", "release", "release", "rollback"), targets, strict=True)
    rows = []
    for place, (rate, shift, wanted, target) in enumerate(asked):
        flags = (verdict(found, math.log1p(shift)) == wanted for found in at_zero)
        rows.append(rate_of(flags, situation, server, "U", rate, target, at_most=place < 2))
    if "S 3" in trials[0]:
        released = (verdict(trial["S 3"]) == "release" for trial in trials)
        rolled_back = (verdict(trial["S 5"]) == "rollback" for trial in trials)
        rows.append(rate_of(released, situation, server, "S", RATES[1], targets[1]))
        rows.append(rate_of(rolled_back, situation, server, "S", RATES[3], targets[3], at_most=False))
    if "T 10" in trials[0]:
        swap = situation == "pair_steps"
        detected = (verdict(trial["T 10"]) == "rollback" for trial in trials)
        alarmed = (verdict(trial["B 3"]) == "rollback" for trial in trials)
        rows.append(rate_of(detected, situation, server, "T", "rollback of tail-only +10 %", 0.98 if swap else None, at_most=False))
        rows.append(rate_of(alarmed, situation, server, "B", "rollback of bulk +3 %", 0.04 if swap else None))
    covered = (trial[WIDE].lower <= 0.0 <= trial[WIDE].upper for trial in trials if WIDE in trial)
    rows.append(rate_of(covered, situation, server, "U", "coverage of 95 % intervals", 0.93, at_most=False))
    if situation.startswith("pair_") and situation != "pair_plain":
        rows.append(rate_of((found.fallback is not None for found in at_zero), situation, server, "U", "fallen back to the bootstrap"))
    return rows


def flips_of(server: Server, trials: list[dict[str, Trial]]) -> list[Rate]:
    """Return how often the bootstrap's verdict changes with its seed."""
    found = [(trial["pair_plain"]["U 0"], trial["pair_other_seed"]["U 0"]) for trial in trials]
    rows = []
    for shift, target in ((0.0, 0.01), (0.03, 0.04), (0.05, 0.01)):
        flips = (verdict(one, math.log1p(shift)) != verdict(other, math.log1p(shift)) for one, other in found)
        rows.append(rate_of(flips, "pair_plain", server, "U", f"verdict changes with the seed at {100 * shift:g} %", target))
    return rows


def measure(server: Server, trials: int, seed: int, pool: ProcessPoolExecutor) -> list[Rate]:
    """Return every rate of measured runs on a server."""
    slowdowns = {name: slowdown_for(server, SHIFTS[name], PERCENT) for name in ("S 3", "S 5")}
    inputs = Inputs(server=server, seed=seed, slowdowns=slowdowns)
    pairs = list(pool.map(partial(pair_trial, inputs), range(trials), chunksize=5))
    arms = list(pool.map(partial(runs_trial, inputs), range(trials), chunksize=5))
    runs = [judged_runs(inputs, arms, number) for number in range(trials)]
    rows: list[Rate] = []
    for situation in get_args(Situation):
        source = runs if situation.startswith("runs_") else pairs
        rows += rates_of(situation, server, [trial[situation] for trial in source])
    return rows + flips_of(server, pairs)


PARTS = {"measured": measure, "modelled": measure_modelled}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", nargs="+", default=list(get_args(Server)))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.workers) as pool:
        rows = [row for part in chosen.parts for server in chosen.servers for row in PARTS[part](server, chosen.trials, chosen.seed, pool)]
    command = f"python bench/error_rates.py --trials {chosen.trials} --seed {chosen.seed}"
    text = markdown(rows, command, TITLES, SERVERS)
    print(text)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        document = {
            "command": command, "requests": REQUESTS, "percentile": PERCENT, "margin": MARGIN, "alpha": ALPHA,
            "rates": [asdict(row) | {"verdict": row.word} for row in rows],
        }  # fmt: skip
        (chosen.out / "error-rates.md").write_text(text + "\n")
        (chosen.out / "error-rates.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
