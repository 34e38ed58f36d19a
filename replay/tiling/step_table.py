"""StepTable: what each kernel costs for every step composition - the seam between the mapping half and the queueing half.

A step is described by a few counts (`StepShape`). Kernels fall on four axes:

=================== ======================================== =========================================================
axis                row of the table                         what one call costs
=================== ======================================== =========================================================
tokens              (phase, tokens)                          the row's terms
sequences           sequences                                the row's terms (LM head, sampling)
decode_attention    (decode sequences, context)              terms interpolated linearly in the mean context length
prefill_attention   (prefill tokens, keys)                   terms interpolated linearly in the tokens and in the mean keys
                                                             of a query = (query, key) pairs / tokens
=================== ======================================== =========================================================

Products that only one form of latent attention has lie on the axis of its phase.

The terms of a call are *pure*: `launch_s` (device floor), `compute_s`, `memory_s` and `sync_s` (collectives, combines). They
join by one rule, with the kernel's `overlap_exponent` p (infinity = the larger of the two)::

    time = ((launch + compute)^p + (launch + memory)^p)^(1/p) + sync

so clock steps, error factors and recorded routing can scale a term at replay without recompiling. The time of a step's
device work is the sum over kernels of calls x time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TERMS = ("compute_s", "memory_s", "launch_s", "sync_s", "bytes")

KERNEL_SCHEMA = pa.schema(
    [
        pa.field("kernel", pa.string(), nullable=False),  # id, unique: "qkv", "attention_decode"
        pa.field("layer_type", pa.string(), nullable=False),
        pa.field("axis", pa.string(), nullable=False),  # tokens | sequences | decode_attention | prefill_attention
        pa.field("calls_count", pa.int64(), nullable=False),  # calls per step
        pa.field("overlap_exponent", pa.float64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # calibrated | datasheet, of rows that are not measured
        pa.field("stack", pa.string(), nullable=False),  # software the kernel was timed under; empty without a calibration
        pa.field("calibration", pa.string(), nullable=False),  # label of the calibration behind it; empty without one, or with several
        pa.field("error_ratio", pa.float64(), nullable=False),  # mean relative error to expect of its time
        pa.field("flops_per_token", pa.float64(), nullable=False),  # model FLOPs needed, over all calls and ranks, per token of the axis
        pa.field("flops_per_sequence", pa.float64(), nullable=False),
        pa.field("flops_per_pair", pa.float64(), nullable=False),  # per (query, key) pair
    ]
)
"""One row per kernel. The term tables below have a column ``<kernel>.<term>`` for each of their kernels and TERMS."""

MEASURED_SCHEMA = pa.schema(
    [
        pa.field("kernel", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("last_row", pa.int64(), nullable=False),
    ]
)
"""Ranges of rows of a kernel's term table that timings of the kernel decide: they are `measured`, whatever `source` says of the others."""
STAGE_SCHEMA = pa.schema(
    [
        pa.field("kernel", pa.string(), nullable=False),
        pa.field("stage", pa.int64(), nullable=False),
        pa.field(
            "calls_count", pa.int64(), nullable=False
        ),  # calls of a step in that stage; over the stages they add up to KERNEL_SCHEMA's
    ]
)
"""Calls of each kernel in each pipeline stage that runs it. A hand-over counts where it is sent, its gathering where it is received."""
MEASURED_ERROR_RATIO = 0.02
"""Mean relative error of those: two collections of one kernel on one device model differ by 1 to 3 % in the median (public tables)."""
MEASURED_REPEAT_RATIO = 0.002
"""The same between kernels of one collection: repeats of a multiply spread by 0.8 % in the median on an A100 and 1.1 % on an H100, over
about 20 repeats (public profiles of serving layers), so that their mean is known to about 0.2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """The key-value cache of one replica; bytes are those of the pipeline stage with least room for it."""

    blocks_count: int
    """Blocks that fit beside weights and work space in every stage; 0 where nothing fits."""
    block_tokens: int
    block_bytes: float
    """Bytes of one block on each rank."""
    weights_bytes: float
    """Weights on each rank's device."""
    workspace_bytes: float
    block_swap_s: float = 0.0
    """Time that one block takes over the host link, one way."""
    block_send_s: float = 0.0
    """Time that one block takes from a replica that computes prompts to one that goes on from them; 0 where each does both."""
    send_latency_s: float = 0.0
    """What each request's blocks take on top of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPower:
    """How the devices that run the steps draw power."""

    idle_w: float
    """Of each device, as all further figures."""
    cap_w: float
    """What the moving average of the power must keep."""
    average_s: float
    """Time constant of the moving average."""
    ambient_c: float
    throttle_c: float
    """Temperature that the clock holds the device at or below."""
    thermal_resistance_k_per_w: float
    thermal_s: float
    """Time constant of warming."""
    memory_energy_j_per_byte: float
    full_clock_hz: float
    """Clock that the terms of the table hold at: at another one, compute times are longer in proportion, all others are not."""
    clocks_hz: tuple[float, ...]
    """Clocks that may be chosen, the highest first."""
    ranks_count: int
    """Devices that share each step; they draw alike."""
    flop_energy_j: tuple[float, ...]
    """Energy of a FLOP in each kernel, in the table's order."""

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> StepPower:
        """Return what its JSON form says."""
        tuples = {name: tuple(document[name]) for name in ("clocks_hz", "flop_energy_j")}
        return cls(**{**document, **tuples})


SCHEDULER_NAMES = ("chunked", "prefill_first", "static")
QUEUE_NAMES = ("fcfs", "sjf", "longest_prefix", "hrrn", "priority")
UNFIT_NAMES = ("block", "skip")
PREEMPTION_NAMES = ("recompute", "swap")
WARMUP_NAMES = ("none", "at_start", "before_ready")
ROUTING_NAMES = ("round_robin", "least_loaded", "power_of_two", "prefix_aware")
KV_POLICY_NAMES = ("on_demand", "whole_prompt", "reserve")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Serving limits and rules the replay obeys."""

    max_running: int
    max_batched_tokens: int
    max_context_tokens: int
    attention_window_tokens: int
    """Keys a query sees at most; `max_context_tokens` for full attention."""
    async_scheduling: bool = False
    """Whether a step is composed while the one before it runs."""
    scheduler: str = "chunked"
    """One of SCHEDULER_NAMES; what they do stands in `replay.execution.engine`."""
    max_delay_s: float = 0.0
    """How long a static batch may wait to fill, from the arrival of its oldest request."""
    preferred_sizes: tuple[int, ...] = ()
    """Sizes, ascending, of which a static batch is sent without waiting."""
    queue: str = "fcfs"
    """One of QUEUE_NAMES."""
    unfit: str = "block"
    """One of UNFIT_NAMES: whether a request that does not fit holds up those behind it, or is passed over."""
    preemption: str = "recompute"
    """One of PREEMPTION_NAMES: whether a preempted sequence loses what it has computed, or keeps it in host memory."""
    prefix_cache: bool = False
    """Whether cached blocks are found again by their content."""
    kv_policy: str = "on_demand"
    """One of KV_POLICY_NAMES: which blocks must be free, and which are taken, at admission."""
    kv_watermark_ratio: float = 0.0
    """Share of the pool that admission leaves free."""
    replicas_count: int = 1
    prefill_replicas_count: int = 0
    """Further replicas, which compute prompts and first tokens that the others go on from; 0: each replica does both."""
    routing: str = "round_robin"
    """One of ROUTING_NAMES; what they do stands in `replay.execution.fleet`."""
    host_overlap: bool = True
    """Whether a step takes the longer of device and host time, or both."""
    compile_bins: tuple[int, ...] = ()
    """Token counts up to which each compiled variant serves, ascending."""
    compile_variant_s: float = 0.0
    compile_warmup: str = "none"
    """One of WARMUP_NAMES."""
    compile_max_variants: int | None = None
    pipeline_stages: int = 1
    """Stages that a step passes through one after another; while one is in the second, the first is idle or has the next step."""
    inflight_steps: int = 1
    """Steps (micro-batches) that may be under way at once, without `async_scheduling`; none computes on a token that another one yields."""

    @property
    def all_replicas_count(self) -> int:
        """Replicas of both pools."""
        return self.replicas_count + self.prefill_replicas_count

    @property
    def overlapping_stages(self) -> int:
        """Stages that can hold a step each: all, or one where only one step is under way."""
        return self.pipeline_stages if self.inflight_steps > 1 else 1

    @property
    def compiled_at_start(self) -> int:
        """Variants that exist before the first step: the smallest ones, as many as are kept."""
        if self.compile_warmup == "none":
            return 0
        return min(len(self.compile_bins), self.compile_max_variants or len(self.compile_bins))

    @property
    def ready_s(self) -> float:
        """When the server starts to serve: at the first arrival, or when its variants are compiled."""
        return self.compiled_at_start * self.compile_variant_s if self.compile_warmup == "at_start" else 0.0

    @property
    def attention_window(self) -> float:
        """Keys that a query sees at most; infinite for full attention."""
        return float(self.attention_window_tokens) if self.attention_window_tokens < self.max_context_tokens else np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Cost of every step composition under one mapping of one model on one accelerator (or group of them)."""

    kernels: pa.Table
    """KERNEL_SCHEMA."""
    token_terms: pa.Table
    """Columns `phase` (0 = decode only, 1 = the step has prefill tokens), `tokens` (0..max_batched_tokens), then terms; sorted, both
    phases complete. Row 0 of a phase costs nothing."""
    sequence_terms: pa.Table
    """Columns `sequences` (0..max_running), then terms."""
    decode_terms: pa.Table
    """Columns `sequences` (0..max_running), `context_tokens` (the knots of the mean context, ascending, the same for every
    sequence count), then terms; sorted by both."""
    prefill_terms: pa.Table
    """Columns `tokens` and `keys_tokens` (a grid of knots, both ascending), then terms; sorted by both."""
    capture: pa.Table
    """Columns `phase`, `tokens`, `captured_tokens`: the size of the captured graph that a step replays, 0 where it runs eagerly."""
    host_launch_s: float
    """Host time of one eager launch."""
    host_graph_launch_s: float
    """Host time of a captured step: one graph for each pipeline stage, launched as the step reaches it."""
    launches_count: int
    """Eager launches of a decode-only step."""
    prefill_launches_count: int
    """Further launches of a step with prefill tokens."""
    pool: KvPool
    limits: StepLimits
    reference_flops_per_s: float
    """Peak of the whole group, over ranks and stages, that MFU is measured against."""
    measured: pa.Table = field(default_factory=MEASURED_SCHEMA.empty_table)
    """MEASURED_SCHEMA; empty without measurements."""
    host_calls_s: float = 0.0
    """Host time of an eager decode-only step beside its launches."""
    prefill_host_calls_s: float = 0.0
    """Further such time of a step with prefill tokens."""
    stages: pa.Table = field(default_factory=STAGE_SCHEMA.empty_table)
    """STAGE_SCHEMA; empty where there is one stage. A step's device time is the sum over all stages. The next step can enter a stage that
    the one before it left, so that a full pipeline ends one step in the time of its slowest stage.
    """
    power: StepPower | None = None
    """None where nothing is known of it: steps then run at the full clock."""

    def eager_host_s(self, prefills: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Return the host time of eager steps, by whether they have prefill tokens [steps]."""
        launches = self.launches_count + self.prefill_launches_count * prefills
        return np.asarray(launches * self.host_launch_s + (self.host_calls_s + self.prefill_host_calls_s * prefills))

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free."""
        return int(self.limits.kv_watermark_ratio * self.pool.blocks_count)

    @property
    def context_knots(self) -> npt.NDArray[np.float64]:
        """Mean context lengths at which decode terms are given, ascending."""
        return _knots(self.decode_terms, "context_tokens")

    @property
    def token_knots(self) -> npt.NDArray[np.float64]:
        """Prefill tokens at which prefill terms are given, ascending."""
        return _knots(self.prefill_terms, "tokens")

    @property
    def keys_knots(self) -> npt.NDArray[np.float64]:
        """Mean keys of a query at which prefill terms are given, ascending."""
        return _knots(self.prefill_terms, "keys_tokens")


def _knots(terms: pa.Table, column: str) -> npt.NDArray[np.float64]:
    return np.unique(terms[column].to_numpy().astype(np.float64))
