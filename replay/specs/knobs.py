"""Every knob a mapping can set: its name, stage, values, default and what it costs to revert.

A knob's *id* is its name, or ``name@scope`` where it is set for part of the work only. The table below is the one list of
knobs; ``schemas/mapping.v1.schema.json`` repeats it for editors and a test holds the two together.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from replay.specs.scopes import LAYER_TYPES
from replay.specs.tile_table import TileTables

Value = bool | int | float | str | tuple[int, ...] | TileTables
Stage = Literal["ingress", "lowering", "tiling", "execution", "quality_sla", "release_decision"]
RevertCost = Literal["hot", "restart", "rebuild", "requantise"]

STAGES: tuple[Stage, ...] = ("ingress", "lowering", "tiling", "execution", "quality_sla", "release_decision")
REVERT_COSTS: tuple[RevertCost, ...] = ("hot", "restart", "rebuild", "requantise")
"""From cheapest to dearest."""
GEMM_LAYERS = ("qkv", "output_proj", "mlp", "moe", "lm_head")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDefinition:
    """One knob of the mapping file."""

    name: str
    stage: Stage
    """The stage that owns the knob: the one whose invariant it can break."""
    values: str
    """`bool`, `int:1..8`, `int:1..8|auto` and `number:0..0.5` (bounds), `number:1..9|device`, `ratio`, `tile2|auto`, `tile3|auto`, `int|auto`, `sizes`, `int|model`, `name|auto`, `tables|none` or `a|b|c`."""
    default: Value
    revert_cost: RevertCost
    layers: tuple[str, ...] = ()
    """Layer types a scope may name; empty where the knob holds for the whole model."""
    phases: bool = False
    """Whether a scope may name a phase."""
    rows: bool = False
    """Whether a scope may bound the rows (tokens) of a step."""
    reported_as: str = ""
    """The spelling used in public regression reports, for searching."""
    meaning: str = ""
    priced: bool = True
    """Whether it changes what a step costs; the others change numbers alone."""

    def problem(self, value: object) -> str | None:
        """Return what is wanted where `value` cannot be set, else None."""
        ok, want = _accepts(self.values, value)
        return None if ok else want


TABLES = "tables|none"
"""`KnobDefinition.values` of a knob that names files whose content counts."""


_FORMATS = "model|bf16|fp16|fp8|fp8_block|int8|nvfp4"
_GEMM = {"layers": GEMM_LAYERS, "phases": True, "rows": True}


def _knob(name: str, stage: Stage, values: str, default: Value, revert_cost: RevertCost, **more: object) -> KnobDefinition:
    return KnobDefinition(name=name, stage=stage, values=values, default=default, revert_cost=revert_cost, **more)  # type: ignore[arg-type]


KNOBS: dict[str, KnobDefinition] = {
    knob.name: knob
    for knob in (
        _knob("formats.weights", "lowering", _FORMATS + "|int4", "model", "requantise", layers=GEMM_LAYERS, reported_as="weight_format, quantization",
              meaning="number format of the weights; `model` = as in the checkpoint"),
        _knob("formats.activations", "lowering", _FORMATS, "model", "restart", layers=GEMM_LAYERS, reported_as="activation_format",
              meaning="number format of a matrix multiply's other operand; `model` = 16 bit, or that of an 8-bit checkpoint where the device can"),
        _knob("formats.kv", "lowering", "model|bf16|fp16|fp8", "model", "restart", reported_as="kv_cache_dtype", meaning="number format of the key-value cache"),
        _knob("formats.sparsity", "lowering", "none|2:4", "none", "requantise", layers=GEMM_LAYERS, reported_as="weight_sparsity",
              meaning="weights of which two in every four are zero and not stored, for sparse matrix units"),
        _knob("formats.weight_scales", "lowering", "format|tensor|channel|group16|group32|group64|group128|block128|mx32", "format", "requantise", layers=GEMM_LAYERS,
              reported_as="group_size, weight_block_size, strategy",
              meaning="weights that share a scale, where not as usual for their format; `mx32` = 32 with a power of two; judged by `replay quality`, not priced", priced=False),
        _knob("formats.accumulation", "lowering", "fp32|fp22|bf16|fp16", "fp32", "rebuild", layers=GEMM_LAYERS, reported_as="accumulator, use_fast_accum, allow_fp16_accumulation",
              meaning="width of a product's sums (`fp22` = 13 bits of fraction, of Hopper's fp8 units); judged by `replay quality`, not priced", priced=False),
        _knob("formats.accumulation_interval", "lowering", "int|auto", "auto", "rebuild", layers=GEMM_LAYERS, reported_as="promotion interval, two-level accumulation",
              meaning="depth after which narrow sums are added to fp32 ones; `auto` = at the end; judged by `replay quality`, not priced", priced=False),
        _knob("gemm.backend", "lowering", "matrix|vector", "matrix", "restart", **_GEMM, reported_as="gemm_backend, moe_backend",
              meaning="matrix units, or the vector units that need no alignment"),
        _knob("attention.backend", "lowering", "flash|unfused", "flash", "restart", phases=True, reported_as="attention_backend",
              meaning="one streaming kernel, or separate kernels that write the scores to memory"),
        _knob("kernels.stack", "lowering", "name|auto", "auto", "rebuild", layers=LAYER_TYPES, reported_as="kernel library, backend version",
              meaning="software stack whose timed kernels run (`vllm_0.24.0`); `auto` = the newest that the device is calibrated for"),
        _knob("fusion.qkv", "lowering", "bool", True, "rebuild", reported_as="fusion_boundaries", meaning="one matrix multiply for queries, keys and values"),
        _knob("fusion.gate_up", "lowering", "bool", True, "rebuild", reported_as="fusion_boundaries", meaning="one matrix multiply for the gate and up projections"),
        _knob("fusion.gated_activation", "lowering", "bool", True, "rebuild", reported_as="fusion_boundaries", meaning="activation and product in one kernel"),
        _knob("fusion.residual_norm", "lowering", "bool", True, "rebuild", reported_as="fusion_boundaries", meaning="residual addition inside the norm that follows"),
        _knob("fusion.rope_kv_write", "lowering", "bool", True, "rebuild", reported_as="fusion_boundaries", meaning="rotary embedding and cache write in one kernel"),
        _knob("layout.activations", "lowering", "row_major|column_major", "row_major", "rebuild", layers=GEMM_LAYERS, reported_as="layout_transforms",
              meaning="layout in which activations reach matrix multiplies; column_major adds a transform before each"),
        _knob("gemm.tile", "tiling", "tile3|auto", "auto", "hot", **_GEMM, reported_as="gemm_tile, BLOCK_M/N/K", meaning="rows, columns and depth of an output tile"),
        _knob("gemm.split_k", "tiling", "int|auto", "auto", "hot", **_GEMM, reported_as="split_k", meaning="parts of the reduction that run side by side"),
        _knob("gemm.tile_table", "tiling", TABLES, "none", "restart", layers=GEMM_LAYERS, reported_as="fused_moe configs, block fp8 configs",
              meaning="tuned tables of vLLM or SGLang that tiles are looked up in by batch, where `gemm.tile` is `auto`; paths relative to the mapping file"),
        _knob("attention.tile", "tiling", "tile2|auto", "auto", "hot", phases=True, rows=True, reported_as="BLOCK_M, attention tile",
              meaning="query rows and keys of an attention tile"),
        _knob("attention.kv_split", "tiling", "int:1..256|auto", "auto", "hot", rows=True, reported_as="kv_split",
              meaning="parts of a sequence's keys that decode side by side; FlashAttention 3 combines 256 at most"),
        _knob("placement.weights", "tiling", "device|host", "device", "restart", layers=GEMM_LAYERS, reported_as="memory_placement, offload",
              meaning="where a layer type's weights live; host weights cross the host link every step"),
        _knob("placement.experts", "execution", "linear|round_robin|balanced", "linear", "restart", reported_as="expert_placement_strategy, enable_eplb, expert_placement",
              meaning="which expert-parallel rank holds which expert: consecutive ones, every n-th, or by recorded load so that the ranks' loads are alike"),
        _knob("placement.copy_overlap", "tiling", "bool", True, "restart", layers=GEMM_LAYERS, reported_as="offload overlap, uva, prefetch",
              meaning="host weights are read over the link while the product runs; else copied before it, and their time adds"),
        _knob("kv.block_tokens", "tiling", "int:1..4096", 16, "restart", reported_as="block_size", meaning="tokens of one cache block"),
        _knob("kv.memory_ratio", "tiling", "ratio", 0.9, "restart", reported_as="gpu_memory_utilization", meaning="share of device memory for weights, work space and cache"),
        _knob("kv.policy", "tiling", "on_demand|whole_prompt|reserve", "on_demand", "restart",
              reported_as="capacity_scheduler_policy, max_utilization, guaranteed_no_evict, scheduler_reserve_full_isl",
              meaning="cache blocks at admission: taken as chunks need them; as well, but the whole prompt's must be free; or taken for prompt and output together"),
        _knob("kv.watermark_ratio", "tiling", "number:0..0.5", 0.0, "restart", reported_as="watermark",
              meaning="share of the cache blocks that admission leaves free for running sequences"),
        _knob("kv.prefix_cache_formats", "lowering", "any|16bit", "any", "rebuild", reported_as="prefix caching support of the KV cache format",
              meaning="formats of the key-value cache with which the server can find blocks again; with others the prefix cache stays off"),
        _knob("kv.prefix_cache", "execution", "bool", False, "restart", reported_as="enable_prefix_caching, radix cache",
              meaning="find full cache blocks of equal beginnings again; the trace's prefix blocks say which begin alike"),
        _knob("kv.preemption", "execution", "recompute|swap", "recompute", "restart", reported_as="preemption_mode, swap_space",
              meaning="whether a preempted sequence computes everything again, or its cache blocks wait in host memory"),
        _knob("parallelism.tensor", "execution", "int:1..1024", 1, "restart", reported_as="tensor_parallel_size", meaning="accelerators that share each layer"),
        _knob("parallelism.expert", "execution", "int:1..1024", 1, "restart", reported_as="enable_expert_parallel, ep_size, moe_expert_parallel_size, moe_parallelism",
              meaning="ranks of the tensor-parallel group that the experts are divided among, whole; what is left of the group splits each of them by columns"),
        _knob("parallelism.expert_exchange", "execution", "all_reduce|all_to_all", "all_reduce", "restart", reported_as="all2all_backend, moe_a2a_backend",
              meaning="how expert-parallel ranks get tokens and join results: all ranks see all tokens and add up; or tokens are dispatched and combined, then gathered"),
        _knob("parallelism.pipeline", "execution", "int:1..256", 1, "restart", reported_as="pipeline_parallel_size",
              meaning="stages that the layers are split into, each on a tensor-parallel group of its own"),
        _knob("batching.inflight_microbatches", "execution", "int:1..64|auto", "auto", "restart", reported_as="max_concurrent_batches, num_micro_batches, virtual engines",
              meaning="steps that may be in a pipeline at once, each of other sequences or later chunks; `auto` = one for each stage"),
        _knob("all_reduce.one_shot_max_bytes", "execution", "int:0..1099511627776", 524288, "restart", reported_as="allreduce.threshold_bytes",
              meaning="largest message reduced in one step by every rank; larger ones use a ring"),
        _knob("graph.mode", "execution", "none|decode|full", "full", "restart", reported_as="cuda_graph, enforce_eager",
              meaning="which steps replay a captured graph: none, pure decode steps, or all that a size covers"),
        _knob("graph.sizes", "execution", "sizes", (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)), "restart",
              reported_as="cuda_graph_sizes, max capture size", meaning="token counts with a captured graph; a step is padded to the next one"),
        _knob("power.cap_w", "execution", "number:1..100000|device", "device", "hot", reported_as="power limit, nvidia-smi -pl",
              meaning="most watts that the moving average of each accelerator's power may reach; `device` = its board limit"),
        _knob("power.max_clock_hz", "execution", "number:1e6..1e11|device", "device", "hot", reported_as="clock lock, nvidia-smi -lgc",
              meaning="highest clock; `device` = the one that its peaks are stated at"),
        _knob("batching.max_running", "execution", "int:1..8192", 256, "restart", reported_as="max_running, max_num_seqs", meaning="sequences that run at once"),
        _knob("batching.max_batched_tokens", "execution", "int:1..131072", 2048, "restart", reported_as="max_num_batched_tokens, chunk_tokens",
              meaning="token budget of one step; prompts are cut into chunks that fit"),
        _knob("batching.max_context_tokens", "execution", "int|model", "model", "restart", reported_as="max_model_len",
              meaning="longest prompt plus output that is accepted; `model` = the model's own limit"),
        _knob("batching.scheduler", "execution", "chunked|prefill_first|static", "chunked", "restart", reported_as="enable_chunked_prefill, scheduler, static batching",
              meaning="what a step holds: decodes and prompt chunks; whole prompts before any decode; or one batch that runs until all of it is done"),
        _knob("batching.max_delay_s", "execution", "number:0..3600", 0.0, "restart", reported_as="max_queue_delay_microseconds",
              meaning="how long a static batch waits to fill, from the arrival of its oldest request"),
        _knob("batching.preferred_sizes", "execution", "sizes", (), "restart", reported_as="preferred_batch_size",
              meaning="sizes of which a static batch is sent without waiting for `batching.max_delay_s`"),
        _knob("batching.queue", "execution", "fcfs|sjf|longest_prefix|hrrn|priority", "fcfs", "restart", reported_as="schedule_policy, scheduling_policy",
              meaning="who is admitted next: first come, shortest prompt, longest cached prefix, highest response ratio, or smallest `priority` in the trace, which also decides who is preempted"),
        _knob("batching.unfit", "execution", "block|skip", "block", "restart", reported_as="head-of-line blocking",
              meaning="whether a waiting request without room holds up those behind it, or is passed over until it has some"),
        _knob("host.call_s", "lowering", "number:0..1", 0.0, "restart", layers=LAYER_TYPES, reported_as="moe backend, host time per call",
              meaning="host time of an eager call of a kernel beside its launch: looking up tactics, making workspaces, checking arguments"),
        _knob("host.overlap", "execution", "bool", True, "restart", reported_as="stage placement, process isolation",
              meaning="host and device work of a step run side by side; else one after the other, as two processes do that take turns on a device"),
        _knob("compile.bins", "execution", "sizes", (), "rebuild", reported_as="compile_sizes, JIT shape buckets",
              meaning="token counts up to which one compiled variant of the kernels serves; a step of more than the last needs none. Empty: nothing is compiled"),
        _knob("compile.variant_s", "execution", "number:0..3600", 0.0, "rebuild", reported_as="JIT compile time",
              meaning="how long the first step that needs a variant waits for it"),
        _knob("compile.warmup", "execution", "none|at_start|before_ready", "none", "restart", reported_as="warmup, compile at start",
              meaning="whether variants are compiled under traffic, while the first requests wait, or before the server takes any"),
        _knob("compile.max_variants", "execution", "int:1..1048576|unlimited", "unlimited", "restart", reported_as="recompile_limit, cache_size_limit",
              meaning="variants that a server keeps; steps that need another one run eagerly from then on"),
        _knob("fleet.replicas", "execution", "int:1..1024", 1, "restart", reported_as="data_parallel_size, replicas",
              meaning="copies of the server, each with its own accelerators, whole model and cache, that share the requests: data parallelism of the whole model (not of attention alone)"),
        _knob("fleet.routing", "execution", "round_robin|least_loaded|power_of_two|prefix_aware", "round_robin", "hot", reported_as="router policy",
              meaning="which replica gets a request: each in turn; that with the fewest under way; the better of two drawn ones; or that with most of its prompt cached"),
        _knob("fleet.prefill_replicas", "execution", "int:0..1024", 0, "restart", reported_as="prefill/decode disaggregation, kv_role, xPyD",
              meaning="further replicas that only compute prompts and first tokens, and send their cache to the `fleet.replicas`, which go on; 0 = each replica does both"),
        _knob("fleet.kv_link_bytes_per_s", "execution", "number:1e6..1e13|link", "link", "restart", reported_as="kv_connector, NIXL, UCX, network adapter",
              meaning="rate at which each accelerator of a prefill replica sends cache; `link` = that between accelerators of one node, 5e10 = an adapter of 400 Gbit/s each"),
        _knob("batching.async_scheduling", "execution", "bool", False, "restart", reported_as="async_scheduling, overlap schedule",
              meaning="compose each step while the one before it runs, so that the device never waits for the scheduler and arrivals wait a step longer"),
    )
}  # fmt: skip


def _accepts(values: str, value: object) -> tuple[bool, str]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if values == "bool":
        return isinstance(value, bool), "true or false"
    if values == "ratio":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1, "a number above 0 and at most 1"
    if values.startswith(("number:", "int:")):
        kind, _, rest = values.partition(":")
        bounds, _, word = rest.partition("|")
        least, most = bounds.split("..")
        real = whole or (kind == "number" and isinstance(value, float))
        inside = real and float(least) <= value <= float(most)  # type: ignore[operator]
        wanted = f"a {'whole ' if kind == 'int' else ''}number from {least} to {most}" + (f' or "{word}"' if word else "")
        return inside or (bool(word) and value == word), wanted
    if values in ("int|auto", "int|model"):
        word = values[4:]
        return (whole and value >= 1) or value == word, f'a whole number >= 1 or "{word}"'  # type: ignore[operator]
    if values == "sizes":
        return _ascending(value), "an ascending list of whole numbers >= 1"
    if values == "name|auto":
        return isinstance(value, str) and bool(re.fullmatch(r"[a-z0-9][a-z0-9_.]*", value)), 'a name such as "vllm_0.24.0", or "auto"'
    if values == TABLES:
        return value == "none" or isinstance(value, TileTables), 'a path, a list of paths, or "none"'
    if values.startswith("tile"):
        length = int(values[4])
        return value == "auto" or _tile(value, length), f'a list of {length} whole numbers >= 1 that are multiples of 8, or "auto"'
    choices = values.split("|")
    return value in choices, "one of " + ", ".join(f'"{choice}"' for choice in choices)


def _ascending(value: object) -> bool:
    if not isinstance(value, tuple) or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in value):
        return False
    return all(low < high for low, high in itertools.pairwise(value))


def _tile(value: object, length: int) -> bool:
    sizes = value if isinstance(value, tuple) else ()
    return len(sizes) == length and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 8 and size % 8 == 0 for size in sizes
    )
