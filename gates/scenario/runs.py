"""Measured runs made for a scenario: a mapping replayed on a trace, as a server with noise of its own would have recorded it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replay.ingress.trace import TRACE_SCHEMA, Trace, build_trace
from replay.seeds import stream

LATENCIES = ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")
EARLIER, PAUSE_S = "earlier ", 60.0
"""Prefix of the names of requests served before, and the pause after the last of their arrivals."""
COLUMNS = ("request_id", "arrival_s", "sent_s", "prompt_tokens", "output_tokens", "prefix_hit_tokens", *LATENCIES)


def make_run(name: str, recipe: dict[str, Any], path_of: Callable[[str], str], folder: Path) -> Path:
    """Write a folder with a run's requests and its mapping, and return it.

    The server is empty at the start, or has served the trace `after`.
    Latencies of the replay are multiplied by `time_ratio`, by one log-normal draw for the run (`run_sd`) and by one for each request
    (`request_sd`).

    Raises:
        InputError: what the recipe names cannot be read or replayed.
    """
    from replay.catalog.hardware import read_hardware
    from replay.ingress.model_config import read_model
    from replay.ingress.reader import read_trace
    from replay.pipeline import run
    from replay.specs.mapping import parse_mapping

    text = Path(path_of(recipe["mapping"])).read_text(encoding="utf-8")
    trace = read_trace(Path(path_of(recipe["trace"])))
    earlier = read_trace(Path(path_of(recipe["after"]))) if "after" in recipe else None
    model, hardware = read_model(path_of(recipe["model"])), read_hardware(path_of(recipe["hardware"]))
    served = trace if earlier is None else _one_after_the_other(earlier, trace)
    done = run(served, model, hardware, parse_mapping(text, recipe["mapping"]), seed=recipe.get("seed", 0))
    requests = done.requests.select(COLUMNS)
    if earlier is not None:
        requests = _second(requests)
    place = folder / name
    place.mkdir()
    pq.write_table(_noisy(requests, recipe), place / "requests.parquet")
    (place / "mapping.toml").write_text(text, encoding="utf-8")
    return place


def _one_after_the_other(earlier: Trace, trace: Trace) -> Trace:
    """Return a trace whose requests come after those of another: names of these begin with EARLIER."""
    before = earlier.requests.set_column(0, "request_id", pc.binary_join_element_wise(EARLIER, earlier.requests["request_id"], ""))
    later = pc.add(trace.requests["arrival_s"], earlier.span_s + PAUSE_S)
    after = trace.requests.set_column(1, "arrival_s", later)
    rows = pa.concat_tables([before.cast(TRACE_SCHEMA), after.cast(TRACE_SCHEMA)])
    return build_trace(name=trace.name, requests=rows, provenance=trace.provenance)


def _second(requests: pa.Table) -> pa.Table:
    """Return the requests of the second trace, their times from its first arrival."""
    own = requests.filter(pc.invert(pc.starts_with(requests["request_id"], EARLIER)))
    start_s = pc.min(own["arrival_s"])
    for name in ("arrival_s", "sent_s"):
        own = own.set_column(own.column_names.index(name), name, pc.subtract(own[name], start_s))
    return own


def _noisy(requests: pa.Table, recipe: dict[str, Any]) -> pa.Table:
    draws = stream(recipe.get("seed", 0), "scenario/noise")
    level = recipe.get("time_ratio", 1.0) * np.exp(recipe.get("run_sd", 0.0) * draws.standard_normal())
    factor = level * np.exp(recipe.get("request_sd", 0.0) * draws.standard_normal(requests.num_rows))
    for name in LATENCIES:
        place = requests.column_names.index(name)
        values = requests[name].to_numpy(zero_copy_only=False) * factor
        requests = requests.set_column(place, name, pa.array(values, from_pandas=True))
    return requests
