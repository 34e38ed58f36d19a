"""OpGraph: the operators of one serving step of a model, before any choice of kernels.

Shapes are those of one tensor-parallel rank. The *rows* of an operator are the step's tokens, or its sequences for what only
the last token of a sequence needs (LM head, sampling). In graphs of other networks they follow the batch: each item gives a
fixed number of rows (images of a convolution, rows of a product, products of a batched one), or the batch does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from replay.specs.scopes import Phase

Axis = Literal["tokens", "sequences", "prefill_attention", "decode_attention", "batch", "fixed"]
"""What work is counted in. Serving steps: all tokens, sequences, or the queries and keys of one phase. ONNX graphs: items of the
batch, or nothing that varies."""
Collective = Literal["all_reduce", "all_gather", "all_to_all", "send_receive"]
STEP_AXES: tuple[Axis, ...] = ("tokens", "sequences", "prefill_attention", "decode_attention")
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
class LoadGroup:
    """Experts of one rank that are chosen alike."""

    count: float
    """How many there are, on average over the layers."""
    rows_per_token: float
    """Chance that a token chooses one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoads:
    """How the experts of the layers are dealt to ranks, and what that makes of their loads."""

    ranks_count: int
    experts_count: int
    """Experts of the rank that holds most."""
    placement: str
    typical: tuple[LoadGroup, ...]
    """Experts of an average rank."""
    busiest: tuple[LoadGroup, ...]
    """Experts of the rank that gets most rows, layer by layer; empty where all ranks get as many."""
    imbalance_ratios: tuple[float, ...]
    """Rows of the busiest rank over those of the mean one, by layer; one entry where all layers are alike."""
    exchanged: bool = False
    """Whether ranks get only the tokens routed to them (all-to-all); else all ranks see all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """A mixture of experts: each row runs through `experts_per_row` gated feed-forward blocks, and is summed up."""

    hidden: int
    width: int
    """Columns of one expert, on this rank."""
    experts_count: int
    """Experts whose weights the rank holds (the fullest one, where their numbers differ)."""
    experts_per_row: int
    """Of all ranks."""
    loads: RankLoads | None = None
    """None: one group of ranks holds all experts, and they are chosen equally often."""

    @property
    def typical(self) -> tuple[LoadGroup, ...]:
        """Experts of an average rank."""
        even = LoadGroup(count=self.experts_count, rows_per_token=self.experts_per_row / self.experts_count)
        return (even,) if self.loads is None else self.loads.typical

    @property
    def of_busiest(self) -> ExpertsShape:
        """The same on the rank that the others wait for."""
        return self if self.loads is None else replace(self, loads=replace(self.loads, typical=self.loads.busiest or self.loads.typical))

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
    kind: Collective
    across_nodes: bool = False
    """Whether every rank is in a node of its own; else they fill nodes one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitShape:
    """Ranks that wait for the one with most rows of experts: as long as its experts take longer than those of an average one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionShape:
    """A convolution of one image over its last one or two axes, given as (rows, columns); one axis is a row of columns.

    A transposed convolution has the shape of the convolution that it is the gradient of: same products, `out_size` is what it reads.
    """

    in_channels: int
    out_channels: int
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    """Above, left, below, right."""
    in_size: tuple[int, int]
    out_size: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedMatmulShape:
    """`count` products [rows, depth] x [depth, columns] of two activations; an operator's row is one such set."""

    count: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """A pass over rows of `columns` elements; how many bytes each has is in the operator's traffic."""

    kind: Literal["elementwise", "norm", "softmax", "embedding", "transform", "quantise"]
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownShape:
    """An operator that no kernel model is known for: all that is known is what it reads and writes."""

    reason: str


Shape = (
    MatmulShape
    | ExpertsShape
    | ElementwiseShape
    | AttentionShape
    | CollectiveShape
    | WaitShape
    | ConvolutionShape
    | BatchedMatmulShape
    | StreamShape
    | UnknownShape
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that an operator must move, each value once."""

    read_bytes: float
    """Of one row."""
    written_bytes: float
    """Of one row."""
    shared_bytes: float = 0.0
    """Once a call, however many rows: weights, and whatever else does not grow with the batch."""

    def total_bytes(self, rows: float) -> float:
        """Return the bytes of one call."""
        return rows * (self.read_bytes + self.written_bytes) + self.shared_bytes


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
    rows_count: int = 1
    """Rows that one item of the batch gives (axis `batch`), or that there are (axis `fixed`)."""
    weights_format: str | None = None
    """None: the mapping chooses, or there are no weights."""
    activations_format: str | None = None
    """None: the mapping chooses."""
    traffic: Traffic | None = None
    """None: follows from the shape and the formats that the mapping chooses."""
    members: tuple[str, ...] = ()
    """Operators of the source graph that it stands for, where they are several."""
    stage_calls: tuple[int, ...] = ()
    """Calls in each pipeline stage; empty where there is one stage."""

    def rows(self, batch: int) -> int:
        """Return the rows of a call for a batch of that many items."""
        return self.rows_count * (batch if self.axis == "batch" else 1)

    def flops(self, batch: int) -> float:
        """Return the multiplications and additions of all calls: those of products and convolutions by their definition."""
        return float(self.calls_count) * self.rows(batch) * _flops_per_row(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """Operators in execution order; an operator reads only earlier ones, or itself one layer earlier."""

    ops: tuple[Op, ...]
    ranks_count: int
    """Tensor-parallel ranks."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each pipeline stage; empty where there is one stage."""
    batch_axis: str | None = None
    """Name of the axis that operators of axis `batch` follow."""

    def op(self, name: str) -> Op:
        """Return the operator of a name."""
        return next(op for op in self.ops if op.name == name)

    @property
    def names(self) -> frozenset[str]:
        """Every operator's name."""
        return frozenset(op.name for op in self.ops)


def _flops_per_row(shape: Shape) -> float:
    if isinstance(shape, MatmulShape):
        return 2.0 * shape.columns * shape.depth
    if isinstance(shape, BatchedMatmulShape):
        return 2.0 * shape.count * shape.rows * shape.columns * shape.depth
    if isinstance(shape, ConvolutionShape):
        per_result = shape.in_channels / shape.groups * prod(shape.kernel)
        return 2.0 * prod(shape.out_size) * shape.out_channels * per_result
    return 0.0
