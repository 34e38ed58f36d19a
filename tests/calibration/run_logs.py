"""Request logs of made-up servers: what a replay under known step parameters would have written down."""

import json
from dataclasses import replace

import numpy as np

from replay.calibration.runs.predict import warm_trace
from replay.calibration.runs.server import read_server
from replay.calibration.runs.step_model import StepTables
from replay.execution.engine import replay
from replay.specs.run_calibration import StepParameters
from tests.step_tables import make_trace

META = {
    "model": "acme/tiny",
    "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 4096},
    "kv_cache": {"num_gpu_blocks": 1001, "block_size": 16},
}
PARAMETERS = StepParameters(
    base_s=10e-3,
    per_token_s=60e-6,
    per_sequence_s=20e-6,
    per_context_token_s=0.4e-6,
    per_prefill_token_s=10e-6,
    per_pair_s=5e-9,
    per_mixed_step_s=2e-3,
    startup_s=60e-3,
)
EPOCH_NS, ENGINE_NS = 1_787_267_980_082_740_300, 27_536_660_701_067


def random_trace(seed=0, count=60, load=1.0):
    """Requests that arrive faster than the server of META takes them for a while."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(0.05 / load, count)) * (np.arange(count) > 0)
    prompts, outputs = draw.integers(20, 700, count), draw.integers(1, 120, count)
    return make_trace(np.round(np.maximum.accumulate(arrivals), 9), prompts, outputs)


def served(folder, trace, parameters=PARAMETERS, meta=META):
    """Write `run.jsonl` and its meta file; return the log's path and the replay it was made from, on the log's clock."""
    (folder / "meta.json").write_text(json.dumps(meta))
    server = read_server(folder / "meta.json", longest_request_tokens=4096)
    done = replay(warm_trace(trace, parameters.startup_s), StepTables(server).build(parameters))
    table = done.requests
    for name in ("first_token_s", "finish_s"):
        table = table.set_column(table.schema.get_field_index(name), name, [table[name].to_numpy() + parameters.startup_s])
    table = table.set_column(table.schema.get_field_index("arrival_s"), "arrival_s", [trace.requests["arrival_s"].to_numpy()])
    (folder / "run.jsonl").write_text("".join(line(row) + "\n" for row in table.to_pylist()))
    return folder / "run.jsonl", replace(done, requests=table)


def line(row, **changes):
    """Return a line of a log; None takes a key away."""
    record = {
        "request_id": row["request_id"],
        "input_toks": row["prompt_tokens"],
        "output_toks": row["output_tokens"],
        "arrival_time": stamp(EPOCH_NS, row["arrival_s"]),
        "queued_ts": stamp(ENGINE_NS, row["arrival_s"]),
        "first_token_ts": stamp(ENGINE_NS, row["first_token_s"]),
        "last_token_ts": stamp(ENGINE_NS, row["finish_s"]),
    } | changes
    return "{" + ", ".join(f'"{key}": {_text(value)}' for key, value in record.items() if value is not None) + "}"


def stamp(zero_ns, seconds):
    """Return seconds on a clock, as text with all nine decimals."""
    whole, part = divmod(zero_ns + round(seconds * 1e9), 10**9)
    return Number(f"{whole}.{part:09d}")


class Number(str):
    """Digits that stand in JSON as they are: a float would lose the last ones."""


def _text(value):
    return str(value) if isinstance(value, Number) else json.dumps(value)
