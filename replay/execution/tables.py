"""The tables a replay produces."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

COMPLETED = "completed"
NEVER_FITS = "never_fits"

REQUESTS_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64(), nullable=False),  # from here on it waits (see `replay.execution.fleet`): as scheduled
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),  # completed | never_fits; the times of the latter are null
        pa.field("replica", pa.int64()),  # that ends it
        pa.field("sent_s", pa.float64()),  # when a replica got it: at its arrival, or when a client was free
        pa.field("first_scheduled_s", pa.float64()),
        pa.field("first_token_s", pa.float64()),
        pa.field("finish_s", pa.float64()),
        pa.field("worst_itl_s", pa.float64()),  # longest gap between consecutive tokens; null with one output token
        pa.field("preemptions", pa.int64(), nullable=False),
        pa.field("prefix_hit_tokens", pa.int64(), nullable=False),  # never computed: found in the cache (not: found again)
        pa.field("prefill_replica", pa.int64()),  # this and the next are null without prefill replicas (see `replay.execution.pools`)
        pa.field("kv_transfer_s", pa.float64()),  # first token to cache received, waiting for links included; null with one output token
    ]
)
"""One row per request of the trace, in the trace's order."""

STEPS_SCHEMA = pa.schema(
    [
        pa.field("scheduled_s", pa.float64(), nullable=False),  # when it was composed: at its start, or an earlier step's end
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),  # start + compile + max(device, host) or sum, or later behind others in a pipeline
        pa.field("compile_s", pa.float64(), nullable=False),  # wait for a variant of the kernels that no step needed before
        pa.field("device_s", pa.float64(), nullable=False),
        pa.field("host_s", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # new tokens computed: decode sequences + prefill tokens
        pa.field("sequences", pa.int64(), nullable=False),
        pa.field("decode_sequences", pa.int64(), nullable=False),
        pa.field("decode_context_tokens", pa.int64(), nullable=False),  # sum over decode sequences of keys attended
        pa.field("prefill_tokens", pa.int64(), nullable=False),
        pa.field("prefill_pairs", pa.int64(), nullable=False),  # sum over chunks of causal (query, key) pairs
        pa.field("recomputed_tokens", pa.int64(), nullable=False),  # of prefill_tokens, those lost to a preemption before
        pa.field("prefix_hit_tokens", pa.int64(), nullable=False),  # of the requests admitted, as in REQUESTS_SCHEMA
        pa.field("output_tokens", pa.int64(), nullable=False),  # tokens emitted at the step's end
        pa.field("captured_tokens", pa.int64(), nullable=False),  # size of the replayed graph, 0 = eager
        pa.field("running", pa.int64(), nullable=False),  # sequences holding cache at the step
        pa.field("waiting", pa.int64(), nullable=False),  # arrived and not running when the step was composed
        pa.field("kv_blocks", pa.int64(), nullable=False),  # blocks in use during the step
        pa.field("preemptions", pa.int64(), nullable=False),  # since the step before was composed
        pa.field("swapped_blocks", pa.int64(), nullable=False),  # moved to host memory since then, and back from it for this step
        pa.field("replica", pa.int64(), nullable=False),
        pa.field("clock_hz", pa.float64()),  # this and the next two are null where the device has no power
        pa.field("energy_j", pa.float64()),  # of all ranks, idle power during the step included
        pa.field("temperature_c", pa.float64()),  # at the step's end
    ]
)
"""One row per step, in the order of their starts."""

TOKEN_GAPS_SCHEMA = pa.schema(
    [
        pa.field("gap_s", pa.float64(), nullable=False),  # time between two consecutive output tokens of a request
        pa.field("tokens", pa.int64(), nullable=False),  # output tokens that came so long after the one before
    ]
)
"""Every gap between tokens of all requests, in the order in which they ended; equal gaps that end together share a row."""

SHAPE_COLUMNS = (
    "tokens", "sequences", "decode_sequences", "decode_context_tokens",
    "prefill_tokens", "prefill_pairs",
)  # fmt: skip
"""The columns of STEPS_SCHEMA that decide what a step costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What would have happened: every request's times and every step."""

    requests: pa.Table
    """REQUESTS_SCHEMA."""
    steps: pa.Table
    """STEPS_SCHEMA."""
    token_gaps: pa.Table
    """TOKEN_GAPS_SCHEMA."""
