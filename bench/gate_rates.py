"""Error rates of the whole gate on measured runs: plan, pairing, checks, archive, estimators and verdict, not the estimators alone.

    python bench/gate_rates.py [--trials 40] [--seed 4] [--servers mg1 azure] [--workers 2] [--out FOLDER]

Runs are made by the product's engine with noise of step times, as a server that logs its steps would have made them. mg1: a step
serves one request, 20,000 Poisson arrivals, lognormal service, utilisation 0.7 (`synthetic_servers.py`). azure: the conversation
trace at 0.65 of its speed, lengths rotated against arrivals in each trial, on the server of `azure_modelled.py`; 3 % jitter and 1 %
drift over 30 s (needs the trace in ../shared beside the checkout). Each trial gates runs at 3 % margin with an archive of 4 sets of 5
runs of the unchanged server. Regressions: S, every step slower by what raises the long-run p99 so much, by their verdicts; U, all latencies
longer, by the bounds of the unchanged candidate's claim, which move with it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from azure_modelled import CONVERSATION, Rotated, linear_table, recorded
from error_rates import MARGIN, PERCENT, RATES, REQUESTS, RUN_EFFECT_SD, RUNS, TARGETS
from rate_table import Rate, markdown, rate_of
from synthetic_servers import DRIFT_REQUESTS, DRIFT_SD, JITTER_SD, UTILISATION, draw_traffic, drift, slowdown_for

from gates.claim import Claim
from gates.measure.step_replay import latency_of
from gates.measured_gate import gate_measured
from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import MeasuredArm, MeasuredRequest, RunArchive
from gates.verdict import CellVerdict
from replay.execution.engine import StepNoise, replay
from replay.ingress.measured.measured_run import MEASURED_SCHEMA, METRICS, STEPS_SCHEMA, MeasuredFacts, MeasuredRun
from replay.ingress.trace import Trace, build_trace
from replay.provenance import TraceProvenance
from replay.seeds import stream
from replay.tiling.step_table import StepTable

TOKENS_PER_WORK = 20
"""Of the M/G/1 server, whose mean service takes 1 s."""
ARCHIVED_SETS, ARCHIVED_RUNS = 4, 5
SITUATIONS: dict[str, str] = {
    "pair_steps": "one pair with step times, archive without run effect",
    "pair_plain": "one pair without step times, the same archive",
    "pair_alone": "one pair without step times and archive: 1 % run effect assumed",
    "runs_steps": "5 runs per arm, 1 % run effect, step times",
    "runs_plain": "5 runs per arm, 1 % run effect, no step times, no archive",
}
SERVERS: dict[str, str] = {"mg1/e2e_s": "M/G/1", "azure/ttft_s": "Azure TTFT", "azure/tpot_s": "Azure TPOT"}
GOALS: dict[str, dict[str, tuple[float | None, ...]]] = {
    "mg1/e2e_s": {situation: targets["mg1"] for situation, targets in TARGETS.items() if "mg1" in targets},
    "azure/ttft_s": {"pair_steps": (None, 0.05, 0.93, None)},
    "azure/tpot_s": {"pair_steps": (None, 0.05, 0.98, None)},
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """What all runs of a trial are offered, by whom they are served, and how its steps' times vary."""

    trace: Trace
    table: StepTable
    metrics: tuple[str, ...]
    grid_s: float
    """Steps that start within so much of each other share their jitter: shorter than nearly all steps."""
    jitter_sd: float
    drift_s: float

    def run(self, draw: np.random.Generator, log_factor: float = 0.0) -> MeasuredRun:
        """Return a run whose steps take exp(log factor) times as long."""
        count = int((float(self.trace.requests["arrival_s"].to_numpy()[-1]) + 600 * self.grid_s) / self.grid_s)
        slow = np.empty(count)
        drift(draw.standard_normal(count), math.exp(-self.grid_s / self.drift_s), slow)
        factors = np.exp(log_factor + self.jitter_sd * draw.standard_normal(count) + DRIFT_SD * slow)
        found = replay(
            self.trace, self.table, noise=StepNoise(until_s=np.append(np.arange(1, count) * self.grid_s, np.inf), factors=factors)
        )
        rows = found.requests
        columns = {name: rows[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "prefix_hit_tokens")}
        columns |= {"sent_s": rows["arrival_s"], "status": rows["status"], "preemptions_per_request": rows["preemptions"]}
        columns |= {name: pa.array(latency_of(rows, name), from_pandas=True) for name in METRICS}
        steps = {name: found.steps[name] for name in ("start_s", "end_s", "tokens", "sequences")}
        return MeasuredRun(
            requests=pa.table(columns).select(MEASURED_SCHEMA.names).cast(MEASURED_SCHEMA),
            facts=MeasuredFacts(
                format="table", file_name="run.jsonl", digest=f"sha256:{int(draw.integers(2**62)):064x}", tool="table", units="seconds",
                arrivals="scheduled", identity="ids", model="m", hardware="h", is_synthetic=False,
            ),
            steps=pa.table({**steps, "kv_tokens": found.steps["decode_context_tokens"]}).cast(STEPS_SCHEMA),
        )  # fmt: skip

    def gate(self, baseline: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun], archive: RunArchive | None) -> CellVerdict:
        """Return the gate's verdict, with the shipped policy for measured runs but for its claims."""
        arms = [MeasuredArm(label=name, runs=tuple((name, run) for run in runs)) for name, runs in (("b", baseline), ("c", candidate))]
        claims = "".join(f'{name} = {{ p{PERCENT:g} = "{100 * MARGIN:g} %" }}\n' for name in self.metrics)
        asked = MeasuredRequest(
            baseline=arms[0],
            read_candidate=lambda: arms[1],
            policy=parse_policy(f"replicates = 9999\n[blocking]\n{claims}", "policy"),
            policy_name="policy",
            owners=Owners(),
            owners_name=None,
            owners_digest=None,
            seed=1,
            archive=archive,
        )
        return gate_measured(asked, lambda _: None).verdict.worst


def without_steps(run: MeasuredRun) -> MeasuredRun:
    """Return the run of a server that logs no steps."""
    return MeasuredRun(requests=run.requests, facts=run.facts)


def archive_of(load: Load, draw: np.random.Generator, effect_sd: float) -> RunArchive:
    """Return runs of the unchanged server, each with its own run effect."""
    runs = [[load.run(draw, effect_sd * draw.standard_normal()) for _ in range(ARCHIVED_RUNS)] for _ in range(ARCHIVED_SETS)]
    return RunArchive(label="archive", sets=tuple(tuple(("run", run) for run in one) for one in runs))


def draw_load(server: str, draw: np.random.Generator) -> Load:
    """Return the traffic of one trial."""
    if server == "azure":
        rotated = Rotated.of(int(draw.integers(recorded()[0].requests.num_rows)))
        return Load(
            trace=rotated.trace, table=rotated.table, metrics=("ttft_s", "tpot_s"), grid_s=0.01, jitter_sd=0.03, drift_s=30.0
        )  # fmt: skip
    traffic = draw_traffic("mg1", REQUESTS, draw)
    tokens = np.maximum(1, np.rint(TOKENS_PER_WORK * traffic.works)).astype(np.int64)
    rows = {"request_id": [f"r{place}" for place in range(REQUESTS)], "arrival_s": traffic.arrivals - traffic.arrivals[0]}
    trace = build_trace(
        name="mg1",
        requests=pa.table({**rows, "prompt_tokens": tokens, "output_tokens": np.ones(REQUESTS, dtype=np.int64)}),
        provenance=TraceProvenance(kind="recorded", origin="", source_digest="", rows_read=REQUESTS, rows_kept=REQUESTS),
    )
    table = linear_table(int(tokens.max()), 1, step_s=0.0, token_s=1.0 / TOKENS_PER_WORK)
    drift_s = DRIFT_REQUESTS / UTILISATION
    return Load(trace=trace, table=table, metrics=("e2e_s",), grid_s=0.05, jitter_sd=JITTER_SD, drift_s=drift_s)


Trial = Mapping[tuple[str, str], CellVerdict]
"""By situation and regression."""


def gate_trial(server: str, seed: int, slowdowns: Mapping[str, float], number: int) -> Trial:
    """Return the verdicts of one draw of traffic and noise."""
    draw = stream(seed, f"gate rates/{server}/{number}")
    load = draw_load(server, draw)
    archive = archive_of(load, draw, 0.0)
    baseline = load.run(draw)
    candidates = {"U 0": load.run(draw)} | {name: load.run(draw, slow) for name, slow in slowdowns.items()}
    found: dict[tuple[str, str], CellVerdict] = {}
    for name, run in candidates.items():
        plain = [without_steps(baseline)], [without_steps(run)]
        found["pair_steps", name] = load.gate([baseline], [run], archive)
        found["pair_plain", name] = load.gate(*plain, archive)
        found["pair_alone", name] = load.gate(*plain, None)
    if server == "mg1":
        arms = [[load.run(draw, RUN_EFFECT_SD * draw.standard_normal()) for _ in range(RUNS)] for _ in range(2)]
        found["runs_steps", "U 0"] = load.gate(arms[0], arms[1], archive_of(load, draw, RUN_EFFECT_SD))
        found["runs_plain", "U 0"] = load.gate([*map(without_steps, arms[0])], [*map(without_steps, arms[1])], None)
    return found


def outcome(claim: Claim, shift: float = 0.0) -> str:
    """Return what the claim's bounds say if all latencies were 1 + shift times as long."""
    assert claim.interval is not None
    if claim.interval.upper * (1.0 + shift) <= 1.0 + MARGIN and "stalled steps" not in " ".join(claim.warnings):
        return "release"
    return "rollback" if claim.interval.lower * (1.0 + shift) > 1.0 else "inconclusive"


def rates_of(server: str, trials: Sequence[Trial]) -> list[Rate]:
    """Return the rates of every situation of a server, by claim."""
    rows: list[Rate] = []
    for column in (name for name in SERVERS if name.startswith(server)):
        for situation in dict.fromkeys(situation for situation, _ in trials[0]):
            rows += rates_of_claim(column, situation, trials)
    return rows


def rates_of_claim(column: str, situation: str, trials: Sequence[Trial]) -> list[Rate]:
    """Return the rates of a server's metric (`column`) in one situation."""
    metric, rows = column.partition("/")[2], []
    claims = [next(one for one in trial[situation, "U 0"].claims if one.metric == metric) for trial in trials]
    targets = GOALS[column].get(situation, (None,) * 4)

    def tell(flags: list[bool], regression: str, rate: str, target: float | None = None, *, at_most: bool = True) -> None:
        rows.append(rate_of(flags, situation, column, regression, rate, target, at_most=at_most))

    for place, (shift, wanted) in enumerate(((0.0, "rollback"), (MARGIN, "release"), (0.0, "release"), (0.05, "rollback"))):
        tell([outcome(claim, shift) == wanted for claim in claims], "U", RATES[place], targets[place], at_most=place < 2)
    for place, name, basis in ((1, "S 3", "proven_safe"), (3, "S 5", "regression")):
        if (situation, name) in trials[0]:
            tell([trial[situation, name].basis == basis for trial in trials], "S", RATES[place], targets[place], at_most=place < 2)
    for method in sorted({claim.method for claim in claims}):
        tell([claim.method == method for claim in claims], "U", f"judged by {method}")
    if column == "mg1/e2e_s":  # with one claim the verdict is the claim's, but for findings about the evidence
        tell([trial[situation, "U 0"].basis == "invalid_evidence" for trial in trials], "U", "evidence found invalid")
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--servers", nargs="+", choices=("mg1", "azure"), default=["mg1", "azure"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    servers = [name for name in chosen.servers if name != "azure" or CONVERSATION.is_file()]
    rows: list[Rate] = []
    with ProcessPoolExecutor(chosen.workers) as pool:
        for server in servers:
            slowdowns = {f"S {100 * shift:g}": slowdown_for("mg1", shift, PERCENT) for shift in (MARGIN, 0.05)} if server == "mg1" else {}
            rows += rates_of(server, list(pool.map(partial(gate_trial, server, chosen.seed, slowdowns), range(chosen.trials))))
    text = markdown(rows, f"python bench/gate_rates.py --trials {chosen.trials} --seed {chosen.seed}", SITUATIONS, SERVERS)
    print(text)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "gate-rates.md").write_text(text + "\n")
        (chosen.out / "gate-rates.json").write_text(json.dumps([asdict(row) | {"verdict": row.word} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
