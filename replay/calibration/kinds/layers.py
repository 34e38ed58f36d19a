"""Timings of a decoder layer's operators: one row per model, tensor-parallel ranks and tokens, one column an operator.

Columns: ``model, n_head, n_kv_head, n_embd, n_expanded_embd, vocab_size, use_gated_mlp, num_tokens, tp`` and ``<operator>_ms``; the
deviations ``<operator>_std_ms`` are not used. 16-bit. The device is in the file's name. Norms, rope, activation and residual add
are streams with one block of threads a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, counted, device_and_stack, read_cells, with_rows
from replay.calibration.measured import MeasuredSet
from replay.errors import SpecError
from replay.tiling.families import stream_shapes
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.families.streams import ACTIVATION, NORM, RESIDUAL_ADD, ROPE
from replay.tiling.terms import Array

PROFILER = "vidur"
"""Stack of files that name none: the layers of Vidur's profiler."""
SIZES = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "num_tokens", "tp")
HALF_BYTES = 2.0
BLOCK = 1024
PROJECTION = "a projection: the GEMM family is not joined to this kind"

Sizes = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    family: KernelFamily
    shapes: Callable[[Sizes], Shapes]


def _norm(sizes: Sizes) -> Shapes:
    return stream_shapes.norm(sizes["num_tokens"], sizes["n_embd"], element_bytes=HALF_BYTES, row_threads=BLOCK)


def _rope(sizes: Sizes) -> Shapes:
    heads = (sizes["n_head"] + sizes["n_kv_head"]) / sizes["tp"]
    return stream_shapes.rope(sizes["num_tokens"], heads, sizes["n_embd"] / sizes["n_head"], element_bytes=HALF_BYTES, row_threads=BLOCK)


def _activation(sizes: Sizes) -> Shapes:
    columns = sizes["n_expanded_embd"] / sizes["tp"]
    return stream_shapes.gated_activation(sizes["num_tokens"], columns, gates=sizes["gates"], element_bytes=HALF_BYTES, row_threads=BLOCK)


def _add(sizes: Sizes) -> Shapes:
    return stream_shapes.residual_add(sizes["num_tokens"], sizes["n_embd"], element_bytes=HALF_BYTES, row_threads=BLOCK)


OPERATORS = {
    "input_layernorm": _Operator(family=NORM, shapes=_norm),
    "post_attention_layernorm": _Operator(family=NORM, shapes=_norm),
    "attn_rope": _Operator(family=ROPE, shapes=_rope),
    "mlp_act": _Operator(family=ACTIVATION, shapes=_activation),
    "add": _Operator(family=RESIDUAL_ADD, shapes=_add),
}
PROJECTIONS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


@dataclass(frozen=True, slots=True)
class LayersKind:
    """The kind of these tables."""

    name: str = "layer_operators"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether the columns that only these tables have are there."""
        return {"n_expanded_embd", "use_gated_mlp", "num_tokens", "tp"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per operator column that was measured.

        Raises:
            SpecError: columns or sizes that cannot be, no usable time, or no device in the file's name.
        """
        columns = [f"{name}_ms" for name in (*OPERATORS, *PROJECTIONS)]
        deviations = [f"{name}_std_ms" for name in (*OPERATORS, *PROJECTIONS)]
        cells = read_cells(table, (*SIZES, "use_gated_mlp"), ("model", *columns, *deviations), where)
        hardware, stack = device_and_stack(where)
        whole = {name: cells.whole(name) for name in SIZES}
        sizes = {name: column.astype(np.float64) for name, column in whole.items()}
        sizes["gates"] = _gates(cells)
        sets = [
            _measured(name, operator, sizes, whole["num_tokens"], cells, (hardware, stack or PROFILER))
            for name, operator in OPERATORS.items()
            if f"{name}_ms" in table.column_names
        ]
        left = counted((PROJECTION, cells.seconds(f"{name}_ms")[1]) for name in PROJECTIONS if f"{name}_ms" in table.column_names)
        found = with_rows(sets, where)
        return (replace(found[0], skipped=(*found[0].skipped, *left)), *found[1:])


LAYERS_KIND = LayersKind()


def _measured(
    name: str, operator: _Operator, sizes: Sizes, tokens: npt.NDArray[np.int64], cells: Cells, place: tuple[str, str]
) -> MeasuredSet:
    seconds, usable, useless = cells.seconds(f"{name}_ms")
    return MeasuredSet(
        family=operator.family,
        hardware=place[0],
        stack=place[1],
        variant=name,
        shapes=operator.shapes({key: column[usable] for key, column in sizes.items()}),
        seconds=seconds[usable],
        group_key=(tokens[usable],),
        skipped=counted([(USELESS, useless)]),
    )


def _gates(cells: Cells) -> Array:
    """Return 1 for gated and 0 for plain activations [rows].

    Raises:
        SpecError: a cell is neither true nor false.
    """
    texts = [text.lower() for text in cells.text("use_gated_mlp").tolist()]
    for row, text in enumerate(texts):
        if text not in ("true", "false"):
            raise SpecError(f"{cells.where}: use_gated_mlp, row {row + 2}", repr(text), "True or False", "correct the cell")
    return np.array([float(text == "true") for text in texts])
