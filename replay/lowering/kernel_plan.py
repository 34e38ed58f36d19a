"""KernelPlan: which kernels run the operators - fused how, in which formats, on which units, and what was asked for instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replay.lowering.op_graph import AttentionShape, Axis, CollectiveShape, ElementwiseShape, MatmulShape, OpGraph, Shape
from replay.specs.knobs import Stage

FORMAT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of one value of a number format."""

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
    weights_format: str = "bf16"
    activations_format: str = "bf16"
    compute_format: str = "bf16"
    """Format whose matrix rate applies."""
    backends: tuple[BackendBin, ...] = ()
    """For matrix multiplies: covers every (phase, row) once."""
    kv_format: str = "bf16"
    attention_backend: Literal["flash", "unfused"] = "flash"

    @property
    def matmul(self) -> MatmulShape:
        """The shape of a matrix multiply."""
        assert isinstance(self.shape, MatmulShape)
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
