"""Timings of a decoder layer's operators: one row per model, tensor-parallel ranks and tokens, one column an operator.

Columns: ``model, n_head, n_kv_head, n_embd, n_expanded_embd, vocab_size, use_gated_mlp, num_tokens, tp`` and ``<operator>_ms``; the
deviations ``<operator>_std_ms`` are not used. 16-bit. The device is in the file's name. Norms, rope, activation and residual add
are streams with one block of threads a token; the four projections are dense multiplies, one set together. Operators of a layer ran
back to back, so that weights come from DRAM on every use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, counted, device_and_stack, read_cells, with_rows
from replay.calibration.kinds.gemm import product_set
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
PROJECTION_FORMAT = "bf16"
"""Of 16 bits; both kinds run at one rate."""

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


def _attention_columns(sizes: Sizes) -> Array:
    return np.asarray((sizes["n_head"] + 2 * sizes["n_kv_head"]) * sizes["n_embd"] / sizes["n_head"])


PROJECTIONS: dict[str, Callable[[Sizes], tuple[Array, Array]]] = {
    "attn_pre_proj": lambda sizes: (_attention_columns(sizes) / sizes["tp"], sizes["n_embd"]),
    "attn_post_proj": lambda sizes: (sizes["n_embd"], sizes["n_embd"] / sizes["tp"]),
    "mlp_up_proj": lambda sizes: ((1 + sizes["gates"]) * sizes["n_expanded_embd"] / sizes["tp"], sizes["n_embd"]),
    "mlp_down_proj": lambda sizes: (sizes["n_embd"], sizes["n_expanded_embd"] / sizes["tp"]),
}
"""Projections -> (columns, depth) of one rank's weights."""


@dataclass(frozen=True, slots=True)
class LayersKind:
    """The kind of these tables."""

    name: str = "layer_operators"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether the columns that only these tables have are there."""
        return {"n_expanded_embd", "use_gated_mlp", "num_tokens", "tp"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per streaming operator that was measured, and one of all projections.

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
        return with_rows([*sets, *_projections(sizes, cells, (hardware, stack or PROFILER))], where)


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


def _projections(sizes: Sizes, cells: Cells, place: tuple[str, str]) -> list[MeasuredSet]:
    """Return the set of all measured projections, none where no column times one."""
    parts, times, useless_count = [], [], 0
    for name, rule in PROJECTIONS.items():
        if f"{name}_ms" in cells.table.column_names:
            seconds, usable, useless = cells.seconds(f"{name}_ms")
            whole = [np.ceil(column[usable]).astype(np.int64) for column in (sizes["num_tokens"], *rule(sizes))]
            parts.append(whole)
            times.append(seconds[usable])
            useless_count += int(useless.sum())
    if not parts:
        return []
    three = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    skipped = ((USELESS, useless_count),) if useless_count else ()
    return [product_set((*place, PROJECTION_FORMAT), three, np.concatenate(times), cold=True, skipped=skipped)]


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
