"""Run: everything measured about one arm on one trace and one accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from replay.assembly.busy import busy_seconds
from replay.execution.tables import TOKEN_GAPS_SCHEMA

METRICS_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("replica", pa.int64()),
        pa.field("sent_s", pa.float64()),
        pa.field("queue_s", pa.float64()),
        pa.field("ttft_s", pa.float64()),
        pa.field("tpot_s", pa.float64()),  # null with one output token
        pa.field("itl_s", pa.float64()),  # the request's worst gap; null with one output token
        pa.field("e2e_s", pa.float64()),
        pa.field("preemptions_per_request", pa.int64(), nullable=False),
        pa.field("prefix_hit_tokens", pa.int64(), nullable=False),
        pa.field("prefill_replica", pa.int64()),  # this and the next are null without prefill replicas
        pa.field("kv_transfer_s", pa.float64()),
    ]
)
"""`Run.requests`: one row per request of the trace, in the trace's order; definitions in `replay.assembly.metrics`."""

LAYERS_SCHEMA = pa.schema(
    [
        pa.field("layer_type", pa.string(), nullable=False),
        pa.field("time_s", pa.float64(), nullable=False),
        pa.field("compute_s", pa.float64(), nullable=False),  # pure terms; they overlap, so they do not add up to time_s
        pa.field("memory_s", pa.float64(), nullable=False),
        pa.field("launch_s", pa.float64(), nullable=False),
        pa.field("sync_s", pa.float64(), nullable=False),
        pa.field("memory_stall_s", pa.float64(), nullable=False),  # time minus the time with infinite memory bandwidth
        pa.field("memory_stall_ratio", pa.float64(), nullable=False),  # of time_s
        pa.field("flops", pa.float64(), nullable=False),  # model FLOPs; recomputation and padding not counted
        pa.field("bytes", pa.float64(), nullable=False),
    ]
)
"""`Run.layers`: one row per layer type over the whole replay, device time of all pipeline stages, all ranks' FLOPs, one rank's time
and bytes."""

WINDOWS_SCHEMA = pa.schema(
    [
        pa.field("window", pa.int64(), nullable=False),  # index; windows are `Run.window_s` long and start at the first arrival
        pa.field("layer_type", pa.string(), nullable=False),  # "all" = the whole step, host time included
        pa.field("time_s", pa.float64(), nullable=False),  # "all": busy time, steps from start to end, where they overlap once
        pa.field("memory_stall_s", pa.float64(), nullable=False),  # "all": of the busy time, as each step divides
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # prompt tokens computed, each once, plus output tokens
        pa.field("clock_hz", pa.float64()),  # from here on: null but for "all", and where the device has no power
        pa.field("power_w", pa.float64()),  # mean of one device
        pa.field("temperature_c", pa.float64()),  # highest
        pa.field("energy_j", pa.float64()),  # of all ranks, idle time included
        pa.field("joules_per_token", pa.float64()),
        pa.field("joules_per_output_token", pa.float64()),
    ]
)
"""`Run.windows`: one row per window and layer type; a step belongs to the window in which it starts; idle windows are present.
Definitions of the last columns in `replay.assembly.power`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutline:
    """What a run is, without the tables that have a row for each request, step or gap."""

    trace: str
    trace_digest: str
    hardware: str
    model: str
    mapping_digest: str
    seed: int
    layers: pa.Table
    windows: pa.Table
    window_s: float
    reference_flops_per_s: float
    rejected: tuple[tuple[str, int], ...]
    """(reason, requests) for those that can never fit."""
    replicas_count: int = 1
    """Over which the requests were spread, prefill replicas included; each has the reference peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunOutline):
    """One arm replayed on one trace: tables, and what they were computed from."""

    requests: pa.Table
    steps: pa.Table
    token_gaps: pa.Table = field(default_factory=TOKEN_GAPS_SCHEMA.empty_table)
    """TOKEN_GAPS_SCHEMA: the distribution of the times between tokens."""

    @property
    def busy_s(self) -> float:
        """Time during which a step was running, all replicas' added up; steps that overlap in a pipeline count once."""
        return float(busy_seconds(self.steps).sum())
