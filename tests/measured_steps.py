"""Measured runs made by the replay engine with noise of step times, exported with their steps: the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy.signal import lfilter

from gates.measure.step_replay import latency_of
from replay.execution.engine import replay as replay_trace
from replay.execution.replica import StepNoise
from replay.ingress.measured.measured_run import MEASURED_SCHEMA, METRICS, STEPS_SCHEMA, MeasuredFacts, MeasuredRun
from replay.ingress.trace import Trace
from tests.measured import FACTS
from tests.step_tables import linear_table, make_limits, make_trace

LIMITS = make_limits(max_running=96, max_batched_tokens=1024)
COSTS = {"step_s": 0.010, "per_token_s": 60e-6, "per_sequence_s": 60e-6, "per_context_token_s": 1e-7}
"""Those of the continuous-batching server of the design study of the statistics."""
GRID_S = 0.01
JITTER, DRIFT, DRIFT_S = 0.03, 0.01, 30.0


def load(n: int, seed: int, gap_s: float = 0.1) -> Trace:
    """Return n requests with log-normal lengths and Poisson arrivals."""
    generator = np.random.default_rng([seed, 3])
    arrivals = np.cumsum(generator.exponential(gap_s, n))
    prompts = np.clip(generator.lognormal(5.5, 1.0, n), 10, 4000).astype(int)
    outputs = np.clip(generator.lognormal(3.0, 0.8, n), 2, 300).astype(int)
    return make_trace((arrivals - arrivals[0]).tolist(), prompts.tolist(), outputs.tolist())


def measured(trace: Trace, seed: int, *, slower: float = 1.0, stalls: int = 0) -> MeasuredRun:
    """Return the run of a server whose steps take `slower` times as long, with jitter and drift, and some steps ten times as long."""
    generator = np.random.default_rng([seed, 4])
    count = int(float(trace.requests["arrival_s"].to_numpy()[-1] + 60.0) / GRID_S)
    keeps = np.exp(-GRID_S / DRIFT_S)
    drift = lfilter([1.0], [1.0, -keeps], generator.standard_normal(count) * np.sqrt(1 - keeps**2))
    factors = slower * np.exp(JITTER * generator.standard_normal(count) + DRIFT * drift)
    factors[generator.integers(0, count, stalls)] *= 10.0
    noise = StepNoise(until_s=np.append(np.arange(1, count) * GRID_S, np.inf), factors=factors)
    found = replay_trace(trace, linear_table(limits=LIMITS, **COSTS), noise=noise)
    rows = found.requests
    columns = {name: rows[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "prefix_hit_tokens")}
    columns |= {"sent_s": rows["arrival_s"], "status": rows["status"], "preemptions_per_request": rows["preemptions"]}
    columns |= {name: pa.array(latency_of(rows, name), from_pandas=True) for name in METRICS}
    steps = {name: found.steps[name] for name in ("start_s", "end_s", "tokens", "sequences")}
    steps["kv_tokens"] = found.steps["decode_context_tokens"]
    return MeasuredRun(
        requests=pa.table(columns).select(MEASURED_SCHEMA.names).cast(MEASURED_SCHEMA),
        facts=MeasuredFacts(**{**FACTS, "digest": f"sha256:{seed:064x}"}),
        steps=pa.table(steps).cast(STEPS_SCHEMA),
    )


def without_steps(run: MeasuredRun) -> MeasuredRun:
    """Return a run that does not bring its steps."""
    return replace(run, steps=None)
