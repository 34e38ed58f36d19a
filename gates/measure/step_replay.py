"""Replays of measured runs with their recorded step times: what prices the noise of a run's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gates.statistics.blocks import Floats
from gates.statistics.noise_fit import Noise, StepTimes
from replay.calibration.runs.server import BLOCK_TOKENS, Server
from replay.calibration.runs.step_model import StepTables
from replay.execution.engine import replay
from replay.execution.replica import StepNoise
from replay.ingress.measured.measured_run import COMPLETED
from replay.ingress.trace import Trace, build_trace
from replay.provenance import TraceProvenance
from replay.specs.run_calibration import StepParameters
from replay.tiling.step_table import StepLimits, StepTable

if TYPE_CHECKING:
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.specs.mapping import MappingSpec

PARTS = ("base_s", "per_token_s", "per_sequence_s", "per_context_token_s")
"""What a step's time is the sum of: 1, tokens, sequences and kv_tokens times these; each part of it is one effect."""
CELL_SHARES = (0.25, 0.5, 0.65, 0.8, 0.88, 0.95, 0.98)
"""Of steps by modelled time: where the classes end in which the arms' residuals are compared; those of bench/error_rates.py."""
SCHEDULING = ("batching.scheduler", "batching.queue", "batching.unfit", "batching.async_scheduling")
INFERRED = (
    "how its steps were composed is not known: vLLM's defaults, with a token budget of {budget} and {seats} seats, the most its steps had"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepReplay:
    """Replays of the requests of one or two runs under one model of their steps."""

    trace: Trace
    tables: StepTables
    parts_s: Floats
    """[parts] of PARTS, as fitted on all the runs' steps; 0 for parts that explain nothing."""
    runs: tuple[pa.Table, ...]
    """STEPS_SCHEMA of each run."""
    note: str | None
    done: dict[tuple[bytes, bytes], pa.Table] = field(default_factory=dict)
    """Finished replays by effects and noise: the claims of a cell share them."""

    @property
    def median_step_s(self) -> float:
        """Median duration of the runs' steps."""
        return float(np.median(np.concatenate([_seconds(one) for one in self.runs])))

    def steps_of(self, run: int, rows: Floats) -> StepTimes:
        """Return a run's step times, for requests that arrived at `rows` [n], ascending."""
        steps = self.runs[run]
        costs = _shapes(steps) * self.parts_s
        modelled = costs.sum(axis=1)
        edges = np.quantile(np.concatenate([(_shapes(one) * self.parts_s).sum(axis=1) for one in self.runs]), CELL_SHARES)
        places = np.searchsorted(rows, steps["start_s"].to_numpy(), side="right") - 1
        return StepTimes(
            log_factors=np.log(_seconds(steps) / modelled),
            features=(costs / modelled[:, None])[:, self.parts_s > 0],
            requests=np.clip(places, 0, len(rows) - 1),
            cells=np.searchsorted(edges, modelled, side="right"),
        )

    def latencies(self, metric: str, effects: Floats, noise: Noise) -> Floats:
        """Return a latency [requests] (NaN where a request has none) of a replay whose parts take exp(effects) times as long.

        A step takes the noise of the recorded step that started nearest in time.
        """
        key = (effects.tobytes(), noise.log_factors.tobytes())
        if key not in self.done:
            starts = self.runs[0 if noise.arm == "baseline" else 1]["start_s"].to_numpy()
            until = np.append((starts[1:] + starts[:-1]) / 2.0, np.inf)
            parts = self.parts_s.copy()
            parts[parts > 0] *= np.exp(effects)
            factors = StepNoise(until_s=until, factors=np.exp(noise.log_factors))
            self.done[key] = replay(self.trace, _table(self.tables, parts), noise=factors).requests
        return latency_of(self.done[key], metric)


def step_replay(runs: Sequence[MeasuredRun], requests: pa.Table, mappings: Sequence[MappingSpec | None]) -> StepReplay | str:
    """Return the replay of runs (one, or baseline and candidate) that served `requests` in the order of arrival, or why there is none."""
    steps = [run.steps.sort_by("start_s") for run in runs if run.steps is not None]
    if len(steps) < len(runs):
        return "not every run brings its steps"
    needed = ("arrival_s", "prompt_tokens", "output_tokens")
    if any(requests[name].null_count for name in needed) or requests["status"].to_pylist().count(COMPLETED) < requests.num_rows:
        return "not every request has an arrival, lengths and an end"
    if bool((np.diff(requests["arrival_s"].to_numpy()) < 0).any()):
        return "its requests are not in the order of their arrival"
    if any((run.requests["prefix_hit_tokens"].fill_null(0).to_numpy() > 0).any() for run in runs):
        return "tokens were found in the prefix cache, and which is not recorded"
    if any(one.num_rows < 2 * len(PARTS) or not (_seconds(one) > 0).all() for one in steps):
        return "the steps are too few, or one took no time"
    rules = [None if mapping is None else [mapping.value(name) for name in SCHEDULING] for mapping in mappings]
    if any(one != rules[0] for one in rules):
        return "the arms compose their steps by different rules"
    parts = _fit(np.concatenate([_shapes(one) for one in steps]), np.concatenate([_seconds(one) for one in steps]))
    most = [max(int(one[name].to_numpy().max()) for one in steps) for name in ("tokens", "sequences")]
    mapping = mappings[0] if mappings else None
    if mapping is not None:
        most = [max(most[0], mapping.count("batching.max_batched_tokens")), max(most[1], mapping.count("batching.max_running"))]
    return StepReplay(
        trace=_trace(requests),
        tables=StepTables(_server(requests, most[0], most[1], mapping)),
        parts_s=parts,
        runs=tuple(steps),
        note=INFERRED.format(budget=most[0], seats=most[1]) if mapping is None else None,
    )


def _shapes(steps: pa.Table) -> Floats:
    """Return [steps, parts] what the parts are multiplied by."""
    columns = [steps[name].to_numpy().astype(np.float64) for name in ("tokens", "sequences", "kv_tokens")]
    return np.stack([np.ones(steps.num_rows), *columns], axis=1)


def _seconds(steps: pa.Table) -> Floats:
    seconds: Floats = steps["end_s"].to_numpy() - steps["start_s"].to_numpy()
    return seconds


def _fit(shapes: Floats, seconds: Floats) -> Floats:
    """Return [parts] by least squares of relative errors; parts that would be negative, or that nothing tells apart, are 0."""
    relative = shapes / seconds[:, None]
    kept = np.ptp(shapes, axis=0) > 0
    kept[0] = True
    while True:
        scale = relative[:, kept].max(axis=0)
        found = np.linalg.lstsq(relative[:, kept] / scale, np.ones(len(seconds)), rcond=None)[0] / scale
        if (found > 0).all():
            break
        kept[np.flatnonzero(kept)[int(np.argmin(found * scale))]] = False
    parts = np.zeros(shapes.shape[1])
    parts[kept] = found
    return parts


def _server(requests: pa.Table, budget: int, seats: int, mapping: MappingSpec | None) -> Server:
    longest = int((requests["prompt_tokens"].to_numpy() + requests["output_tokens"].to_numpy()).max())
    rules = {name.partition(".")[2]: mapping.value(name) for name in SCHEDULING} if mapping is not None else {}
    limits = StepLimits(
        max_running=seats,
        max_batched_tokens=budget,
        max_context_tokens=longest,
        attention_window_tokens=longest,
        **rules,  # type: ignore[arg-type]
    )
    blocks = seats * (-(-longest // BLOCK_TOKENS) + 1)  # never runs short: what was short shows as a tail that is not reproduced
    return Server(
        model="measured",
        software="measured",
        hardware=None,
        limits=limits,
        blocks_count=blocks,
        block_tokens=BLOCK_TOKENS,
        captured_sizes=(),
    )


def _table(tables: StepTables, parts_s: Floats) -> StepTable:
    """Return the step table in which the parts add up."""
    from dataclasses import replace

    base_s, per_token_s, per_sequence_s, per_context_token_s = parts_s.tolist()
    others = dict.fromkeys(("base_s", "per_prefill_token_s", "per_pair_s", "per_mixed_step_s", "startup_s"), 0.0)
    found = tables.build(
        StepParameters(per_token_s=per_token_s, per_sequence_s=per_sequence_s, per_context_token_s=per_context_token_s, **others)
    )
    busy = np.minimum(found.token_terms["tokens"].to_numpy(), 1)
    place = found.token_terms.column_names.index("products.sync_s")
    return replace(found, token_terms=found.token_terms.set_column(place, "products.sync_s", pa.array(base_s * busy)))


def _trace(requests: pa.Table) -> Trace:
    count = requests.num_rows
    provenance = TraceProvenance(kind="recorded", origin="a measured run", source_digest="", rows_read=count, rows_kept=count)
    return build_trace(
        name="measured", requests=requests.select(["request_id", "arrival_s", "prompt_tokens", "output_tokens"]), provenance=provenance
    )


def latency_of(requests: pa.Table, metric: str) -> Floats:
    """Return a latency [requests] of a replay's requests; NaN where one has none."""
    arrival, first, finish = (requests[name].to_numpy() for name in ("arrival_s", "first_token_s", "finish_s"))
    gaps = requests["output_tokens"].to_numpy() - 1
    match metric:
        case "queue_s":
            found = requests["first_scheduled_s"].to_numpy() - arrival
        case "ttft_s":
            found = first - arrival
        case "tpot_s":
            found = np.divide(finish - first, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
        case "itl_s":
            found = requests["worst_itl_s"].cast(pa.float64()).fill_null(float("nan")).to_numpy()
        case _:
            found = finish - arrival
    latencies: Floats = found
    return latencies
