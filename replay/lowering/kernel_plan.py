"""KernelPlan: which kernels run the operators - fused how, in which formats, on which units, and what was asked for instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replay.lowering.op_graph import (
    ATTENTION_PHASES,
    AttentionShape,
    Axis,
    CollectiveShape,
    ElementwiseShape,
    ExpertsShape,
    MatmulShape,
    OpGraph,
    Shape,
    WaitShape,
)
from replay.specs.knobs import Stage
from replay.specs.scopes import Phase

FORMAT_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.0 / 128.0,
    "nvfp4": 0.5 + 1.0 / 16.0,
}
"""Bytes of one value of a number format, its share of scales included (int4: 16 bit for 128 values; nvfp4: 8 bit for 16)."""
MATRIX_RATES = {"fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "nvfp4": "fp4"}
"""Formats that both operands of a product may have -> the matrix rate it then runs at; all others are widened to 16 bit."""

UNFUSED_KERNELS = 3
"""Unfused attention: scores, softmax and weighted sum are kernels of their own."""
EXPERT_KERNELS = 5
"""A mixture of experts: sorting rows by expert, two grouped products, the activation between them, the weighted sum (vLLM's fused_moe)."""

SPARSE_KEPT_RATIO = 0.5
SPARSE_INDEX_BYTES = 0.25
"""2:4 sparsity: two of four values are kept, each with two bits for its place (NVIDIA Ampere architecture white paper)."""

Backend = Literal["matrix", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a knob asked for and what runs; `reason` says why the two differ, None where they agree."""

    knob: str
    requested: str
    effective: str
    reason: str | None
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendBin:
    """The units a matrix multiply runs on over a range of rows."""

    phase: int
    """0 = decode steps, 1 = steps with prefill tokens."""
    first_row: int
    last_row: int
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel: the operators it fuses, its shape and formats."""

    id: str
    layer_type: str
    ops: tuple[str, ...]
    shape: Shape
    axis: Axis
    calls_count: int
    stage_calls: tuple[int, ...] = ()
    """Calls in each pipeline stage; empty where there is one stage."""
    weights_format: str = "bf16"
    activations_format: str = "bf16"
    sparse: bool = False
    """Whether two in every four weights are zero and not stored."""
    backends: tuple[BackendBin, ...] = ()
    """For matrix multiplies and experts: covers every (phase, row) once."""
    kv_format: str = "bf16"
    attention_backend: Literal["flash", "unfused"] = "flash"

    @property
    def weights_count(self) -> int:
        """Weights that one call may read, all experts included; 0 where there are none."""
        if isinstance(self.shape, MatmulShape):
            return self.shape.columns * self.shape.depth
        return self.shape.experts_count * self.shape.expert_weights if isinstance(self.shape, ExpertsShape) else 0

    @property
    def weights_bytes(self) -> float:
        """Bytes of `weights_count` as they are stored."""
        return self.weights_count * self.weight_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight, on average where they are sparse: the kept half, and the places of its values."""
        dense = FORMAT_BYTES[self.weights_format]
        return SPARSE_KEPT_RATIO * (dense + SPARSE_INDEX_BYTES) if self.sparse else dense

    @property
    def launches_count(self) -> int:
        """Kernel launches of a step's calls."""
        return self.calls_count * self._launches_of_a_call

    @property
    def _launches_of_a_call(self) -> int:
        if self.phase is not None:
            return UNFUSED_KERNELS if self.attention_backend == "unfused" else 1
        if isinstance(self.shape, ExpertsShape):
            return EXPERT_KERNELS
        if isinstance(self.shape, WaitShape):
            return 0
        return 2 if self.activations_format in MATRIX_RATES else 1  # the kernel that narrows activations, and the product

    @property
    def is_dense(self) -> bool:
        """Whether it is one matrix multiply."""
        return isinstance(self.shape, MatmulShape)

    @property
    def phase(self) -> Phase | None:
        """The phase of an attention kernel; None for every other one."""
        return ATTENTION_PHASES[self.axis] if isinstance(self.shape, AttentionShape) else None

    @property
    def step_phases(self) -> tuple[int, ...]:
        """Phases of steps that it has settings for: 0 = decode, 1 = prefill. What runs by sequences has those of decode."""
        return {"tokens": (0, 1), "prefill_attention": (1,)}.get(self.axis, (0,))

    @property
    def matmul(self) -> MatmulShape:
        """The shape of a matrix multiply."""
        assert isinstance(self.shape, MatmulShape)
        return self.shape

    @property
    def experts(self) -> ExpertsShape:
        """The shape of a mixture of experts."""
        assert isinstance(self.shape, ExpertsShape)
        return self.shape

    @property
    def elementwise(self) -> ElementwiseShape:
        """The shape of an element-wise kernel."""
        assert isinstance(self.shape, ElementwiseShape)
        return self.shape

    @property
    def attention(self) -> AttentionShape:
        """The shape of an attention kernel."""
        assert isinstance(self.shape, AttentionShape)
        return self.shape

    @property
    def collective(self) -> CollectiveShape:
        """The shape of a collective."""
        assert isinstance(self.shape, CollectiveShape)
        return self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """The kernels of one step in execution order, and every decision that was taken on the way."""

    graph: OpGraph
    kernels: tuple[Kernel, ...]
    decisions: tuple[Decision, ...]
