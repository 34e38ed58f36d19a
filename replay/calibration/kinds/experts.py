"""Timings of one rank's fused experts: columns ``moe_dtype, num_tokens, hidden_size, inter_size, topk, num_experts, ..., ms``.

The device and the stack are in the file's name. Path rules of the stacks that were timed:

- SGLang runs the tokens with a choice on the rank, and multiplies all of their choices: those of other ranks go to the rank's
  last expert. vLLM passes over all tokens, and multiplies only the rank's choices;
- 16-bit weights take Triton tiles (SGLang: tuned files for some widths), 4-bit ones Marlin's;
- the two models without a gate are told by their widths, and only vLLM runs them without one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, Mask, chosen, counted, device_and_stack, read_cells, with_rows
from replay.calibration.kinds.expert_routing import RankLoad, RoutingCase, load_exponent, rank_load
from replay.calibration.measured import MeasuredSet
from replay.errors import SpecError, nearest
from replay.tiling.families.expert_tiles import ExpertTiles, marlin_tiles, row_tiles, sglang_tiles, vllm_block_tiles, vllm_tiles
from replay.tiling.families.experts import EXPERTS
from replay.tiling.families.family import Shapes
from replay.tiling.terms import Array

SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
GROUP = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
COLUMNS = ("moe_dtype", *SIZES, "distribution", "ms")
FOUR_BIT_BYTES = 0.53
"""4-bit weights with a 16-bit scale for each group of 64."""
FORMATS = {
    "bfloat16": ("bf16", 2.0, 2.0),
    "float16": ("fp16", 2.0, 2.0),
    "fp8": ("fp8", 1.0, 1.0),
    "fp8_block": ("fp8_block", 1.0, 1.0),
    "int4_wo": ("int4", FOUR_BIT_BYTES, 2.0),
    "w4a16_mxfp4": ("mxfp4", FOUR_BIT_BYTES, 2.0),
}
"""Format as the tables name it -> variant, bytes of a weight, bytes of an activation."""
TUNED = {("sglang", "a100-sxm-80gb"): ((1, 1792), (1, 7168), (8, 2048), (16, 1344))}
"""(stack, device) -> (experts, width) pairs that tuned tile files exist for."""
UNGATED = ((2688, 1856), (2048, 5120))
"""(hidden, whole inter) of models whose experts have no gate."""
UNALIGNED = "8-bit rows whose width is no multiple of 16: another kernel, many times slower"


@dataclass(frozen=True, slots=True)
class ExpertsKind:
    """The kind of these tables."""

    name: str = "moe"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether the columns that only these tables have are there."""
        return {"moe_dtype", "num_experts", "moe_ep_size"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per format.

        Raises:
            SpecError: columns, formats, loads or sizes cannot be, or the file's name has no device of the catalog.
        """
        cells = read_cells(table, COLUMNS, (), where)
        hardware, stack = device_and_stack(where)
        sizes = {name: cells.whole(name) for name in SIZES}
        _check_division(sizes, where)
        formats, seconds = cells.text("moe_dtype"), cells.seconds("ms")
        loads = _loads(cells, sizes)
        names = sorted(set(formats.tolist()))
        return with_rows((_measured(name, formats == name, sizes, loads, seconds, hardware, stack, where) for name in names), where)


def _measured(
    name: str,
    of_format: Mask,
    sizes: dict[str, npt.NDArray[np.int64]],
    loads: list[RankLoad],
    seconds: tuple[Array, Mask, Mask],
    hardware: str,
    stack: str,
    where: str,
) -> MeasuredSet:
    if name not in FORMATS:
        raise SpecError(
            f"{where}: moe_dtype", f"{name!r}{nearest(name, FORMATS)}", "one of " + ", ".join(FORMATS), "name one of these formats"
        )
    variant, _, activation_bytes = FORMATS[name]
    found, usable, useless = seconds
    width = sizes["inter_size"] // sizes["moe_tp_size"]
    unaligned = (width % 16 != 0) & (activation_bytes < 2.0)
    rows = of_format & usable & ~unaligned
    kept = [loads[index] for index in np.flatnonzero(rows)]
    return MeasuredSet(
        family=EXPERTS,
        hardware=hardware,
        stack=stack,
        variant=variant,
        shapes=_shapes(name, {key: column[rows] for key, column in sizes.items()}, kept, hardware, stack),
        seconds=found[rows],
        group_key=chosen([sizes[key] for key in GROUP], rows),
        skipped=counted([(USELESS, of_format & useless), (UNALIGNED, of_format & usable & unaligned)]),
    )


def _shapes(name: str, sizes: dict[str, npt.NDArray[np.int64]], loads: list[RankLoad], hardware: str, stack: str) -> Shapes:
    framework = stack.partition("_")[0]
    variant, weight_bytes, activation_bytes = FORMATS[name]
    choices, hidden = sizes["topk"].astype(np.float64), sizes["hidden_size"].astype(np.float64)
    inter, experts = (
        (sizes["inter_size"] // sizes["moe_tp_size"]).astype(np.float64),
        (sizes["num_experts"] // sizes["moe_ep_size"]).astype(np.float64),
    )
    tokens = sizes["num_tokens"].astype(np.float64)
    rows = [load.rows for load in loads]
    if framework == "sglang":
        tokens = np.rint([load.tokens for load in loads])
        rows = [_folded(load.rows, count * k) for load, count, k in zip(loads, tokens, choices, strict=True)]
    tiles = _tiles(variant, framework, hardware, tokens, choices, experts, inter)
    ungated = np.zeros(len(tokens), dtype=np.bool_)
    if framework == "vllm" and variant in ("bf16", "fp8"):
        for widths in UNGATED:
            ungated |= (sizes["hidden_size"] == widths[0]) & (sizes["inter_size"] == widths[1])
    ones = np.ones(len(tokens))
    return {
        "tokens": tokens,
        "choices": choices,
        "hidden": hidden,
        "inter": inter,
        "matrices": np.where(ungated, 2.0, 3.0),
        "experts": experts,
        "rows": np.array([part.sum(axis=1).mean() for part in rows]),
        "active_experts": np.array([(part > 0).sum(axis=1).mean() for part in rows]),
        "row_tiles": np.array([row_tiles(part, height) for part, height in zip(rows, tiles.rows, strict=True)]),
        "tile_rows": tiles.rows,
        "tile_columns": tiles.columns,
        "tile_depth": tiles.depth,
        "tile_group": tiles.group,
        "tuned": tiles.tuned,
        "weight_bytes": weight_bytes * ones,
        "activation_bytes": activation_bytes * ones,
    }


def _tiles(variant: str, framework: str, hardware: str, tokens: Array, choices: Array, experts: Array, inter: Array) -> ExpertTiles:
    """Return the tiles that the stack takes; a stack without a rule of its own is taken to tile as vLLM does."""
    if variant in ("int4", "mxfp4"):
        return marlin_tiles(tokens, choices, experts)
    if framework == "sglang" and variant in ("bf16", "fp16"):
        files = TUNED.get((framework, hardware), ())
        tuned = np.array([(int(count), int(width)) in files for count, width in zip(experts, inter, strict=True)], dtype=np.bool_)
        return sglang_tiles(tokens, experts, tuned)
    if variant == "fp8_block":
        return vllm_block_tiles(tokens)
    return vllm_tiles(tokens, choices, experts, eight_bit=variant == "fp8")


def _folded(rows: Array, total: float) -> Array:
    """Return rows [draws, experts] with the choices of other ranks, up to `total`, given to the last expert."""
    elsewhere = np.maximum(total - rows.sum(axis=1), 0.0)
    return np.concatenate([rows[:, :-1], (rows[:, -1] + elsewhere)[:, None]], axis=1)


def _loads(cells: Cells, sizes: dict[str, npt.NDArray[np.int64]]) -> list[RankLoad]:
    """Return the load of each row of the table; equal cases are worked out once."""
    distributions = cells.text("distribution")
    exponents = {name: load_exponent(name, cells.where) for name in sorted(set(distributions.tolist()))}
    keys = zip(
        *(sizes[name].tolist() for name in ("num_tokens", "topk", "num_experts", "moe_ep_size")), distributions.tolist(), strict=True
    )
    known: dict[RoutingCase, RankLoad] = {}
    loads = []
    for tokens, choices, experts, ranks, distribution in keys:
        case = RoutingCase(tokens=tokens, choices=choices, experts=experts, ranks=ranks, exponent=exponents[distribution])
        if case not in known:
            known[case] = rank_load(case)
        loads.append(known[case])
    return loads


def _check_division(sizes: dict[str, npt.NDArray[np.int64]], where: str) -> None:
    for whole, parts in (("inter_size", "moe_tp_size"), ("num_experts", "moe_ep_size")):
        bad = np.flatnonzero(sizes[parts] > sizes[whole])
        if len(bad):
            got = f"{whole} {sizes[whole][bad[0]]} over {parts} {sizes[parts][bad[0]]}"
            raise SpecError(f"{where}: {parts}, row {bad[0] + 2}", got, f"at most one part per {whole}", "correct the cell")
    bad = np.flatnonzero((sizes["num_experts"] % sizes["moe_ep_size"] != 0) | (sizes["topk"] > sizes["num_experts"]))
    if len(bad):
        row = bad[0]
        got = f"{sizes['num_experts'][row]} experts, {sizes['topk'][row]} choices, {sizes['moe_ep_size'][row]} ranks"
        raise SpecError(
            f"{where}: num_experts, row {row + 2}",
            got,
            "experts dealt evenly to ranks, and no more choices than experts",
            "correct the cells",
        )


EXPERTS_KIND = ExpertsKind()
