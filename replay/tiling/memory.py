"""Memory placement: what lies on the device, and how many cache blocks are left."""

from __future__ import annotations

from dataclasses import replace

from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel, KernelPlan
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.tiling.step_table import KvPool

RUNTIME_BYTES = 551 * 1024**2
"""Driver context and libraries on the device (public aiconfigurator system file of the A100, `other_mem` as first measured)."""
LOGITS_BYTES = 4.0


def kv_pool(plan: KernelPlan, model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec) -> KvPool:
    """Return the cache pool of one replica: what `kv.memory_ratio` of the memory leaves beside weights and work space.

    Work space = input and output of the widest matrix multiply for a full step, the step's logits in 32 bit, and the runtime.
    A pool that does not fit has 0 blocks. Servers keep the weights of latent attention in both forms, expanding and absorbed.
    A block has a part in every pipeline stage, so the stage with least room decides (vLLM takes the least of its workers). Each moves its
    part over a link of its own when a step comes to it, so that the parts' times add up over the step. To another replica they are sent
    side by side.
    """
    stages = [_stage_pool(plan, model, hardware, mapping, stage) for stage in range(mapping.count("parallelism.pipeline"))]
    return replace(
        min(stages, key=lambda pool: pool.blocks_count),
        block_swap_s=sum(pool.block_swap_s for pool in stages),
        block_send_s=max(pool.block_send_s for pool in stages),
    )


def _stage_pool(plan: KernelPlan, model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec, stage: int) -> KvPool:
    """Return what one pipeline stage has room for; the first has the embedding, the last the LM head and the logits."""
    last = stage == mapping.count("parallelism.pipeline") - 1
    calls = {kernel.id: kernel.stage_calls[stage] if kernel.stage_calls else kernel.calls_count for kernel in plan.kernels}
    products = [kernel for kernel in plan.kernels if kernel.weights_count and calls[kernel.id]]
    weights = sum(kernel.weights_bytes * calls[kernel.id] for kernel in products if not weights_on_host(kernel, mapping))
    if stage == 0 and not (model.tied_embeddings and last):
        weights += model.vocabulary_size * model.hidden_size * FORMAT_BYTES["bf16"] / plan.graph.ranks_count
    widest = max(_row_bytes(kernel) for kernel in products if kernel.axis == "tokens")
    logits = mapping.count("batching.max_running") * model.vocabulary_size * LOGITS_BYTES if last else 0.0
    workspace = mapping.count("batching.max_batched_tokens") * widest + logits + RUNTIME_BYTES
    decode = next(kernel for kernel in plan.kernels if kernel.phase == "decode")  # prompts may attend over keys expanded from the cache
    token_bytes = decode.attention.kv_heads * decode.attention.stored_size * FORMAT_BYTES[decode.kv_format]
    block_tokens = mapping.count("kv.block_tokens")
    block_bytes = block_tokens * token_bytes * calls[decode.id]
    sends, asked = mapping.count("fleet.prefill_replicas") > 0, mapping.value("fleet.kv_link_bytes_per_s")
    send_bytes_per_s = asked if isinstance(asked, int | float) else hardware.link.bytes_per_s
    left = mapping.number("kv.memory_ratio") * hardware.memory_bytes - weights - workspace
    return KvPool(
        blocks_count=max(0, int(left // block_bytes)),
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        weights_bytes=weights,
        workspace_bytes=workspace,
        block_swap_s=block_bytes / hardware.host_link_bytes_per_s,
        block_send_s=block_bytes / send_bytes_per_s if sends else 0.0,
        send_latency_s=hardware.link.latency_s if sends else 0.0,
    )


def weights_on_host(kernel: Kernel, mapping: MappingSpec) -> bool:
    """Return whether the mapping keeps a kernel's weights in host memory."""
    return mapping.value("placement.weights", layer=kernel.layer_type) == "host"


def _row_bytes(kernel: Kernel) -> float:
    """Return the bytes of one row of a product's input and output."""
    if kernel.is_dense:
        return (kernel.matmul.columns + kernel.matmul.depth * kernel.matmul.groups_count) * FORMAT_BYTES["bf16"]
    shape = kernel.experts
    return (2 * shape.width + shape.hidden) * shape.experts_per_row * FORMAT_BYTES["bf16"]
