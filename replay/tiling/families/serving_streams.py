"""Streams of a serving step: which calibrated kernel stands for each, and the shapes that its family needs.

A serving step's stream is known by its operators and by the elements a row reads and writes (`ElementwiseShape`). Calibrations are
of kernels that were timed by themselves; `serving_stream` names those that do the same work, the likest first: the layer operators
of a serving profiler, then eager 16-bit and 32-bit operators, then an element-wise kernel of as many tensors. Each is given shapes
as its own timings were (threads a row, passes), so that its parameters mean what they were fitted to mean.

What stands for what, and is not quite it: a lookup and a layout change are priced as a copy, a weighted sum of experts as an
addition, top-k as the softmax before it, a norm over heads as one over all heads of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.lowering.op_graph import ElementwiseShape
from replay.tiling.families import stream_shapes
from replay.tiling.families.family import Shapes
from replay.tiling.families.streams import (
    ACTIVATION,
    ELEMENTWISE,
    NORM,
    QUANTISE,
    RESIDUAL_ADD,
    ROPE,
    SOFTMAX,
    ElementwiseFamily,
    RowwiseFamily,
)
from replay.tiling.terms import Array

LAYER_THREADS, EAGER_NORM_THREADS, QUANTISE_THREADS = 1024, 128, 256
"""Threads a row as the measurement kinds shape layer operators, PyTorch's layer norm and quantisation."""

Columns = Callable[[ElementwiseShape], float]


def _read(shape: ElementwiseShape) -> float:
    return shape.read_elements


def _half_read(shape: ElementwiseShape) -> float:
    return shape.read_elements / 2.0


def _written(shape: ElementwiseShape) -> float:
    return shape.written_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A calibration (family, variant) that can stand for a stream."""

    family: ElementwiseFamily | RowwiseFamily
    variant: str
    columns: Columns
    """Length of a row that the kernel walks, by the stream's shape."""
    row_threads: int = 0
    """Threads a row of a row-wise kernel; 0 where the family needs none or the row's length decides (softmax)."""


def serving_stream(op_names: tuple[str, ...], layer_type: str) -> tuple[StandIn, ...]:
    """Return what stands for the stream that runs these operators of a layer type, in order of preference.

    The first one's family is the stream's own: its start values are the guess where nothing is calibrated.
    """
    if layer_type == "norm":
        return _norms(_half_read if len(op_names) > 1 else _read)
    if layer_type == "rope":
        return _COPIED_ROWS if op_names in (("kv_write",), ("latent_write",)) else _ROPES
    if layer_type == "transform":
        return _QUANTISED if op_names[0].startswith("quantise:") else _COPIES
    if layer_type in _BY_LAYER:
        return _BY_LAYER[layer_type]
    return _BY_OPERATORS[tuple(name.removeprefix("shared_") for name in op_names)]


def stream_rows(stand_in: StandIn, shape: ElementwiseShape, rows: npt.NDArray[np.int64]) -> Shapes:
    """Return the shapes [rows] of a stream for each row count, 0 included, as the family of `stand_in` needs them.

    All bytes of a row are spread over the columns the kernel walks. A further pass reads one element a column, whatever else the
    first one read: a norm that adds before it normalises reads the sum again, not both addends.
    """
    columns = stand_in.columns(shape)
    counts: Array = rows.astype(np.float64)
    base = {
        **stream_shapes.softmax(counts, columns, element_bytes=shape.element_bytes),
        "read_bytes": np.full(len(counts), shape.read_elements / columns * shape.element_bytes),
        "written_bytes": np.full(len(counts), shape.written_elements / columns * shape.element_bytes),
    }
    if not stand_in.row_threads:
        return {**base, "passes": base["passes"] * columns / shape.read_elements}
    again = columns / shape.read_elements if stand_in.family == NORM else 0.0
    return {
        **base,
        "work_columns": base["columns"],
        "passes": np.full(len(counts), again),
        "rows_per_unit": np.full(len(counts), stream_shapes.UNIT_THREADS / stand_in.row_threads),
    }


def _stand_ins(family: ElementwiseFamily | RowwiseFamily, columns: Columns, row_threads: int, *variants: str) -> tuple[StandIn, ...]:
    return tuple(StandIn(family=family, variant=variant, columns=columns, row_threads=row_threads) for variant in variants)


def _norms(columns: Columns) -> tuple[StandIn, ...]:
    layers = _stand_ins(NORM, columns, LAYER_THREADS, "post_attention_layernorm", "input_layernorm")
    return (*layers, *_stand_ins(NORM, columns, EAGER_NORM_THREADS, "fp16-layernorm", "fp32-ln"))


_COPIES = _stand_ins(ELEMENTWISE, _written, 0, "fp32-relu", "fp16-gelu")
_ADDED_ROWS = _stand_ins(RESIDUAL_ADD, _written, LAYER_THREADS, "add")
_COPIED_ROWS = (*_ADDED_ROWS, *_COPIES)
_ADDED = (*_ADDED_ROWS, *_stand_ins(ELEMENTWISE, _written, 0, "fp32-add"))
_MULTIPLIED = (*_ADDED_ROWS, *_stand_ins(ELEMENTWISE, _written, 0, "fp32-mul"))
_ROPES = (*_stand_ins(ROPE, _read, LAYER_THREADS, "attn_rope"), *_stand_ins(ELEMENTWISE, _read, 0, "fp32-mul"))
_ACTIVATED = (
    *_stand_ins(ACTIVATION, _written, LAYER_THREADS, "mlp_act"),
    *_stand_ins(ELEMENTWISE, _written, 0, "fp16-gelu", "fp32-gelu"),
)
_ROUTED = _stand_ins(SOFTMAX, _read, 0, "fp32-softmax", "fp16-softmax")
_SAMPLED = _stand_ins(SOFTMAX, _written, 0, "fp32-softmax", "fp16-softmax")
_QUANTISED = (*_stand_ins(QUANTISE, _written, QUANTISE_THREADS, "fp8", "int8"), *_COPIES)
_BY_LAYER = {"embedding": _COPIES, "residual": _ADDED, "sampling": _SAMPLED}
_BY_OPERATORS: dict[tuple[str, ...], tuple[StandIn, ...]] = {
    ("activation",): _ACTIVATED,
    ("gate_product",): _MULTIPLIED,
    ("activation", "gate_product"): _ACTIVATED,
    ("route",): _ROUTED,
    ("combine",): _ADDED,
}
"""Streams of feed-forward blocks (layer types mlp and moe)."""
