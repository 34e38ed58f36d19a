"""One replica that serves a trace in an open loop, and what every replay is made of: checks, drained records, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import InvariantError, SpecError, TraceError
from replay.execution.admission import FITS, rejections
from replay.execution.cache_arrays import new_cache
from replay.execution.cost_arrays import CostArrays, flatten
from replay.execution.loop_arrays import SEQUENCE, STEP, LoopArrays, StepColumns, drain_gaps, new_arrays, new_sequences
from replay.execution.power_arrays import PowerArrays, PoweredColumns, new_power
from replay.execution.step_costs import Counts, Floats, Records
from replay.execution.tables import COMPLETED, NEVER_FITS, REQUESTS_SCHEMA, STEPS_SCHEMA, TOKEN_GAPS_SCHEMA
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

if TYPE_CHECKING:
    from replay.execution.step_sums import StepSums

RECORD_STEPS = 1024
"""Steps recorded between two drains: about 150 kilobytes, which stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNoise:
    """What device times of steps are multiplied by, as it changes in time: by the clock, so that replays whose steps differ keep step."""

    until_s: Floats
    """Until which start of a step each factor holds, ascending [factors]; the last one holds to the end."""
    factors: Floats
    """[factors]"""


def serve_alone(
    trace: Trace,
    table: StepTable,
    kernel_factors: Mapping[str, float] | None,
    steps: StepColumns | StepSums,
    gaps: TokenGaps | None,
    noise: StepNoise | None = None,
) -> tuple[pa.Table, PoweredColumns]:
    """Run the loop; return REQUESTS_SCHEMA and what the steps drew, and hand the steps and gaps to what takes them."""
    check_arrivals(trace)
    costs = flatten(table, kernel_factors)
    if noise is not None:
        costs = costs._replace(noise_until_s=noise.until_s, noise_factors=noise.factors)
    requests = trace.requests
    fits = rejections(requests, table) == FITS
    arrival_s, prompt, output = (requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    priority = requests["priority"].fill_null(0).to_numpy()
    order = np.argsort(arrival_s, kind="stable")
    order = order[fits[order]]
    sequences = new_sequences(order, arrival_s[order], prompt[order], output[order], priority[order])
    cache = new_cache(trace, sequences["total_tokens"], table)
    power = new_power(table, kernel_factors, RECORD_STEPS)
    powered = _run(sequences, costs, new_arrays(len(sequences), table, cache), power, steps, gaps)
    served = sequences
    if not np.array_equal(order, np.arange(requests.num_rows)):
        served = np.zeros(requests.num_rows, dtype=SEQUENCE)
        served[order] = sequences
    return requests_table(requests, fits, served, replica=np.zeros(len(fits), dtype=np.int64)), powered


def check_arrivals(trace: Trace) -> None:
    """Raise TraceError where a trace cannot be replayed in time."""
    if trace.requests.num_rows == 0:
        raise TraceError(trace.name, "the trace has no requests", "at least one", "check how it was imported or sliced")
    load = trace.provenance.load
    if not trace.has_arrivals and (load is None or load.concurrency is None):
        raise TraceError(trace.name, "its requests have no arrival times", "arrival_s in every row", "import with --rate")


def check_noise(trace: Trace, table: StepTable, noise: StepNoise) -> None:
    """Raise SpecError where noise has no meaning, or is none."""
    limits = table.limits
    if limits.prefill_replicas_count or limits.replicas_count > 1 or trace.provenance.load is not None or table.power is not None:
        raise SpecError("noise", "several replicas, a closed loop or a device with power", "one open-loop replica without", "leave it out")
    usable = np.isfinite(noise.factors).all() and bool((noise.factors >= 0).all())
    if len(noise.factors) == 0 or len(noise.until_s) != len(noise.factors) or not usable or bool((np.diff(noise.until_s) < 0).any()):
        raise SpecError("noise", "its factors or times", "as many ascending times as finite factors >= 0, at least one", "correct it")


def _run(
    sequences: Records,
    costs: CostArrays,
    arrays: LoopArrays,
    power: PowerArrays | None,
    steps: StepColumns | StepSums,
    gaps: TokenGaps | None,
) -> PoweredColumns:
    """Run the loop to its end on `sequences`, which it fills in."""
    from replay.execution import loop

    record, powered = np.zeros(RECORD_STEPS, dtype=STEP), PoweredColumns(power and power.record)
    outcome = loop.RECORD_FULL
    while outcome == loop.RECORD_FULL:
        outcome = loop.run_steps(sequences, *arrays, tuple(costs), record, power and tuple(power), np.inf)
        powered.drain(arrays.state)
        steps.drain(record, arrays.state, len(sequences))
        if gaps is None:
            arrays.state["token_gaps"] = 0
        else:
            gaps.add(drain_gaps(arrays))
    if outcome == loop.STUCK:
        raise InvariantError(f"the replay stopped at {arrays.state['clock_s'][0]} s with requests waiting and nothing that can run")
    return powered


class TokenGaps:
    """Recorded gaps between tokens."""

    def __init__(self) -> None:
        self._recorded: list[Records] = []

    def add(self, recorded: Records) -> None:
        """Take gaps [TOKEN_GAP]."""
        self._recorded.append(recorded)

    def table(self) -> pa.Table:
        """Return TOKEN_GAPS_SCHEMA."""
        joined = np.concatenate(self._recorded)
        columns = {name: np.ascontiguousarray(joined[name]) for name in TOKEN_GAPS_SCHEMA.names}
        return pa.table(columns, schema=TOKEN_GAPS_SCHEMA)


def steps_table(columns: dict[str, Counts | Floats]) -> pa.Table:
    """Return STEPS_SCHEMA; the columns of power, where they are not given, are null."""
    steps = len(columns["start_s"])
    return pa.table(
        {field.name: columns[field.name] if field.name in columns else pa.nulls(steps, field.type) for field in STEPS_SCHEMA},
        schema=STEPS_SCHEMA,
    )


def requests_table(
    requests: pa.Table, fits: npt.NDArray[np.bool_], served: Records, *, replica: Counts, arrival_s: Floats | None = None
) -> pa.Table:
    """Return REQUESTS_SCHEMA of a trace's requests, their sequences and replicas; those that can never fit were not served.

    `arrival_s` [requests]: from when latencies count, where that is not the trace's arrival.
    """
    never_fits = ~fits

    def column(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        return pa.array(values, mask=never_fits if missing is None else missing)

    columns = {
        **{name: requests[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens")},
        "status": pc.if_else(pa.array(fits), COMPLETED, NEVER_FITS),
        "replica": column(replica),
        "sent_s": column(served["arrival_s"]),
        "first_scheduled_s": column(served["first_scheduled_s"]),
        "first_token_s": column(served["first_token_s"]),
        "finish_s": column(served["last_token_s"]),
        "worst_itl_s": column(served["worst_itl_s"], never_fits | (requests["output_tokens"].to_numpy() == 1)),
        "preemptions": pa.array(served["preemptions"]),
        "prefix_hit_tokens": pa.array(served["prefix_hit_tokens"]),
        **{name: pa.nulls(len(fits), REQUESTS_SCHEMA.field(name).type) for name in ("prefill_replica", "kv_transfer_s")},
    }
    if arrival_s is not None:
        columns["arrival_s"] = pa.array(arrival_s)
    return pa.table(columns, schema=REQUESTS_SCHEMA)
