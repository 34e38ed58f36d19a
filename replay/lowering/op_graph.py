"""OpGraph: the operators of one serving step of a model, before any choice of kernels.

Shapes are those of one tensor-parallel rank. The *rows* of an operator are the step's tokens, or its sequences for what only
the last token of a sequence needs (LM head, sampling).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replay.specs.knobs import Phase

Axis = Literal["tokens", "sequences", "prefill_attention", "decode_attention"]
"""What a step's work is counted in: all its tokens, its sequences, or the queries and keys of one phase."""
ATTENTION_PHASES: dict[str, Phase] = {"prefill_attention": "prefill", "decode_attention": "decode"}
"""Axes of attention -> phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """[rows, depth] x [depth, columns]."""

    columns: int
    depth: int
    groups_count: int = 1
    """Equal groups of columns; each multiplies `depth` inputs of its own (attention heads)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """A mixture of experts: each row runs through `experts_per_row` of `experts_count` gated feed-forward blocks, and is summed up."""

    hidden: int
    width: int
    """Columns of one expert, on this rank."""
    experts_count: int
    experts_per_row: int

    @property
    def expert_weights(self) -> int:
        """Weights of one expert: gate, up and down."""
        return 3 * self.hidden * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseShape:
    """Elements that one row reads and writes; `element_bytes` of each."""

    read_elements: float
    written_elements: float
    element_bytes: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Scaled dot-product attention over keys and values of `kv_heads` heads."""

    query_heads: int
    kv_heads: int
    head_size: int
    """Of a query and a key."""
    value_size: int
    values_in_keys: bool = False
    """The values are the first part of the keys, stored once: a latent."""

    @property
    def stored_size(self) -> int:
        """Values of one key with its value, for one head."""
        return self.head_size + (0 if self.values_in_keys else self.value_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveShape:
    """A message of `elements` 16-bit values per row among `ranks`."""

    elements: int
    ranks: int
    kind: Literal["all_reduce", "all_gather"]


Shape = MatmulShape | ExpertsShape | ElementwiseShape | AttentionShape | CollectiveShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator; `calls_count` is how often a step runs it (once, or once a layer)."""

    name: str
    layer_type: str
    shape: Shape
    axis: Axis
    calls_count: int
    inputs: tuple[str, ...]
    """Names of the operators whose results it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """Operators in execution order; an operator reads only earlier ones, or itself one layer earlier."""

    ops: tuple[Op, ...]
    ranks_count: int

    def op(self, name: str) -> Op:
        """Return the operator of a name."""
        return next(op for op in self.ops if op.name == name)

    @property
    def names(self) -> frozenset[str]:
        """Every operator's name."""
        return frozenset(op.name for op in self.ops)
