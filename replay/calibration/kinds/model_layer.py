"""Timings of the operators of one decoder layer on several accelerators: ``op, ms``, one row an operator.

The layer is that of GPT-3 175B (Brown et al. 2020, table 2.1: 96 heads of 128, width 12288) in fp16, while 8 prompts of 2048 tokens
are read, as LLMCompass measured it (Zhang et al. 2024, figure 5): heads and feed-forward columns are split over the ranks as in
Megatron-LM, scores and weighted sums are products of their own, all-reduces follow attention and feed-forward block. The file's name
ends in device and ranks: ``..._a100x4.csv``.

Nothing is fitted: each operator is priced by its kernel family, the layer is their sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

import numpy as np
import pyarrow as pa

from replay.calibration.kinds.cells import device_name, read_cells
from replay.calibration.parts import PartPricer, added
from replay.calibration.whole import MeasuredWhole, Prediction
from replay.errors import SpecError, nearest
from replay.specs.hardware import HardwareSpec
from replay.tiling.families import stream_shapes
from replay.tiling.families.arithmetic import FP16_MATRIX
from replay.tiling.families.streams import ELEMENTWISE, NORM, SOFTMAX
from replay.tiling.library import Cost, KernelLibrary
from replay.tiling.terms import Array

FRAMEWORK = "pytorch"
WIDTH, HEADS, HEAD_SIZE, FEED_FORWARD = 12288, 96, 128, 4 * 12288
PROMPTS, PROMPT_TOKENS = 8, 2048
HALF_BYTES = 2.0
_ROWS: Array = np.array([float(PROMPTS * PROMPT_TOKENS)])
_KEYS: Array = np.array([float(PROMPT_TOKENS)])
_HEAD: Array = np.array([float(HEAD_SIZE)])

Operator = Callable[[PartPricer, int], Cost]
"""(pricer, ranks) -> cost of one call [1]."""


def _linear(columns: int, depth: int, *, splits_columns: bool) -> Operator:
    def price(pricer: PartPricer, ranks: int) -> Cost:
        split = (columns // ranks, depth) if splits_columns else (columns, depth // ranks)
        return pricer.linear(_ROWS, columns=np.array([float(split[0])]), depth=np.array([float(split[1])]))

    return price


def _scores(pricer: PartPricer, ranks: int) -> Cost:
    count = np.array([float(PROMPTS * HEADS // ranks)])
    return pricer.batched(FP16_MATRIX, _KEYS, columns=_KEYS, depth=_HEAD, count=count)


def _weighted_sums(pricer: PartPricer, ranks: int) -> Cost:
    count = np.array([float(PROMPTS * HEADS // ranks)])
    return pricer.batched(FP16_MATRIX, _KEYS, columns=_HEAD, depth=_KEYS, count=count)


def _softmax(pricer: PartPricer, ranks: int) -> Cost:
    rows = PROMPTS * PROMPT_TOKENS * HEADS // ranks
    shapes = stream_shapes.softmax(rows, PROMPT_TOKENS, element_bytes=HALF_BYTES)
    return pricer.kernel(SOFTMAX, ("fp16-softmax", "fp32-softmax"), shapes)


def _norm(pricer: PartPricer, ranks: int) -> Cost:
    shapes = stream_shapes.norm(_ROWS, WIDTH, element_bytes=HALF_BYTES)
    return pricer.kernel(NORM, ("fp16-layernorm", "fp32-ln"), shapes)


def _gelu(pricer: PartPricer, ranks: int) -> Cost:
    shapes = stream_shapes.elementwise(_ROWS * (FEED_FORWARD // ranks), inputs=1, element_bytes=HALF_BYTES)
    return pricer.kernel(ELEMENTWISE, ("fp16-gelu", "fp32-gelu"), shapes)


def _all_reduce(pricer: PartPricer, ranks: int) -> Cost:
    return pricer.all_reduce(_ROWS, elements=WIDTH, ranks=ranks)


OPERATORS: dict[str, Operator] = {
    "qkv_proj": _linear(3 * WIDTH, WIDTH, splits_columns=True),
    "q_mul_k": _scores,
    "a_mul_v": _weighted_sums,
    "o_proj": _linear(WIDTH, WIDTH, splits_columns=False),
    "ffn1": _linear(FEED_FORWARD, WIDTH, splits_columns=True),
    "ffn2": _linear(WIDTH, FEED_FORWARD, splits_columns=False),
    "softmax": _softmax,
    "layernorm_mha": _norm,
    "layernorm_ffn": _norm,
    "gelu": _gelu,
    "allreduce_mha": _all_reduce,
    "allreduce_ffn": _all_reduce,
}


@dataclass(frozen=True, slots=True)
class ModelLayerKind:
    """The kind of these tables."""

    name: str = "model_layer"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are the columns of a layer's operators."""
        return columns == {"op", "ms"}

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredWhole, ...]:
        """Return the operators one by one, and the layer that they make.

        Raises:
            SpecError: an unknown or repeated operator, a time that is not above zero, or no device and ranks in the file's name.
        """
        cells = read_cells(table, ("op", "ms"), (), where)
        names = cells.text("op").tolist()
        seconds, usable, _ = cells.seconds("ms")
        hardware, ranks = _device_and_ranks(where)
        for row, name in enumerate(names):
            if name not in OPERATORS or name in names[:row]:
                got = f"{'a second' if name in OPERATORS else 'unknown'} operator {name!r}{nearest(name, OPERATORS)}"
                raise SpecError(f"{where}: op, row {row + 2}", got, "each once of " + ", ".join(OPERATORS), "correct the row")
            if not usable[row]:
                raise SpecError(f"{where}: ms, row {row + 2}", "no time above zero", "milliseconds", "measure it, or drop the row")
        case = {"ranks": np.full(len(names), float(ranks)), "operator": np.array([float(list(OPERATORS).index(name)) for name in names])}
        return (
            MeasuredWhole(
                hardware=hardware,
                stack=FRAMEWORK,
                variant="fp16-operators",
                shapes=case,
                seconds=seconds,
                predict=partial(_each, names, ranks),
                where=where,
            ),
            MeasuredWhole(
                hardware=hardware,
                stack=FRAMEWORK,
                variant="fp16-layer",
                shapes={"ranks": np.array([float(ranks)])},
                seconds=seconds.sum(keepdims=True),
                predict=partial(_sum, names, ranks),
                where=where,
            ),
        )


MODEL_LAYER_KIND = ModelLayerKind()


def _each(names: list[str], ranks: int, device: HardwareSpec) -> Prediction:
    costs = _costs(names, ranks, device)
    return Prediction(seconds=np.concatenate([cost.time_s for cost in costs]), source=added([(1.0, cost) for cost in costs]).source)


def _sum(names: list[str], ranks: int, device: HardwareSpec) -> Prediction:
    return added([(1.0, cost) for cost in _costs(names, ranks, device)])


def _costs(names: list[str], ranks: int, device: HardwareSpec) -> list[Cost]:
    pricer = PartPricer(library=KernelLibrary(device=device), stack=FRAMEWORK)
    return [OPERATORS[name](pricer, ranks) for name in names]


def _device_and_ranks(where: str) -> tuple[str, int]:
    """Return (catalog name, ranks) of a file name that ends in them.

    Raises:
        SpecError: it does not, or the ranks cannot share the layer.
    """
    stem = re.sub(r"\.csv$", "", PurePath(where).name)
    found = re.fullmatch(r"(?:.*_)?([a-z0-9.-]+)x(\d{1,3})", stem)
    if found is None:
        raise SpecError(where, f"no device and ranks at the end of the name {stem!r}", "a name such as layer_a100x4.csv", "put them there")
    ranks = int(found[2])
    if ranks < 2 or HEADS % ranks:
        raise SpecError(where, f"{ranks} ranks", f"at least two that divide {HEADS} heads", "correct the name")
    return device_name(found[1], where), ranks
