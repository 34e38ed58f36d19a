"""Timings of whole forward and training passes: ``gpu, model, phase, seq, batch, variant, e2e_ms, fw_ms`` (bwall_ms is not used), fp32.

Forward passes are predicted: the sum of the kernels that an eager pass launches one after another, by the calibrations of fp32 kernels.
Per layer: the projections, scores and weighted sums as batched products, softmax, two norms, two residual additions, copies of queries,
keys, values and context into head order, and the element-wise kernels of `architectures`. Then the product of every position with
the vocabulary. Under `fusion` (torch.compile) scaling and mask run inside the softmax, an activation is one kernel, and residual
additions run inside the norms. Host time is not modelled: passes of 20 ms and more keep the device busy.

A time is ``fw_ms`` or, where that is 0 (not recorded), ``e2e_ms``. Left out and counted: training (its backward pass is not lowered)
and models that no public description fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds import classic
from replay.calibration.kinds.architectures import ARCHITECTURES, Architecture
from replay.calibration.kinds.cells import USELESS, Cells, Mask, counted, read_cells, with_left_out
from replay.calibration.kinds.streams import INPUTS
from replay.calibration.parts import Calls, PartPricer, added
from replay.calibration.whole import MeasuredWhole, Prediction
from replay.errors import SpecError, nearest
from replay.specs.hardware import HardwareSpec
from replay.tiling.families import stream_shapes
from replay.tiling.families.arithmetic import FP32
from replay.tiling.families.streams import ELEMENTWISE, NORM, SOFTMAX
from replay.tiling.library import SOURCES, Cost, KernelLibrary
from replay.tiling.terms import Array

EAGER, FUSED = "pytorch", "pytorch_fusion"
STACKS = {"unfused": EAGER, "fusion": FUSED}
PARALLEL = ("tp4", "dp4", "pp4_1")
"""Variants on four accelerators: all of training."""
TRAINING = "training: backward passes are not lowered"
UNDESCRIBED = {
    "switchxl4": "switchxl4: its dimensions and routing are not published",
}
HEAD_ORDER_COPIES, COPY = 4, "relu"
"""Queries, keys, values and context; a copy moves what any element-wise kernel of one input does."""
FEED_FORWARD_RATIO = 4.0
"""Width of the feed-forward block over the model's."""
FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class ModelForwardKind:
    """The kind of these tables."""

    name: str = "model_forward"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of whole passes."""
        return {"gpu", "model", "phase", "seq", "batch", "variant", "e2e_ms"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredWhole, ...]:
        """Return a set per device, of eager and of fused passes.

        Raises:
            SpecError: columns, devices, models, sizes or names that cannot be, or no row that is predicted.
        """
        cells = read_cells(table, ("gpu", "model", "phase", "seq", "batch", "variant", "e2e_ms", "fw_ms"), ("bwall_ms",), where)
        hardware, undescribed = classic.devices(cells)
        models = _named(cells, "model", (*ARCHITECTURES, *UNDESCRIBED))
        trained = _named(cells, "phase", ("inf", "train")) == "train"
        variants = _named(cells, "variant", (*STACKS, *PARALLEL))
        trained |= np.isin(variants, PARALLEL)
        forward_s, recorded, _ = cells.seconds("fw_ms")
        whole_s, usable, _ = cells.seconds("e2e_ms")
        seconds, timed, there = np.where(recorded, forward_s, whole_s), recorded | usable, hardware != ""
        described = there & ~trained & np.isin(models, list(ARCHITECTURES))
        good = described & timed
        reasons = [(TRAINING, there & trained), (USELESS, described & ~timed)]
        reasons += [(reason, there & ~trained & (models == name)) for name, reason in UNDESCRIBED.items()]
        sizes = cells.whole("batch").astype(np.float64), cells.whole("seq").astype(np.float64)
        sets = [
            _whole((device, stack), chosen, models, sizes, seconds, where)
            for device in sorted(set(hardware[good].tolist()))
            for variant, stack in STACKS.items()
            if (chosen := good & (hardware == device) & (variants == variant)).any()
        ]
        return with_left_out(sets, [*counted(reasons), *undescribed], where)


MODEL_FORWARD_KIND = ModelForwardKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One forward pass of `batch` sequences of `tokens`."""

    architecture: Architecture
    batch: float
    tokens: float
    fused: bool

    def kernels(self, pricer: PartPricer) -> Iterator[Calls]:
        """Yield (calls, cost of one) of every kernel."""
        model, layers = self.architecture, float(self.architecture.layers)
        rows, width = self.batch * self.tokens, float(model.width)
        yield from self._products(pricer)
        yield layers, self._softmax(pricer)
        yield 1.0, self._norm(pricer, added_inputs=0)
        yield 2.0 * layers, self._norm(pricer, added_inputs=1 if self.fused else 0)
        streams = [(HEAD_ORDER_COPIES * (COPY,), width), (model.on_queries, width)]
        streams.append(((model.activation,) if self.fused else model.on_feed_forward, FEED_FORWARD_RATIO * width))
        if not self.fused:
            streams.append((2 * ("add",), width))
        for names, columns in streams:
            for name in names:
                yield layers, self._elementwise(pricer, name, rows, columns)
        for name in () if self.fused else model.on_scores:
            yield layers, self._elementwise(pricer, name, rows * model.heads, self.tokens)

    def _products(self, pricer: PartPricer) -> Iterator[Calls]:
        model, layers = self.architecture, float(self.architecture.layers)
        width, inner = float(model.width), FEED_FORWARD_RATIO * model.width
        joined = [(layers, 3.0 * width, width)] if model.joined_qkv else [(3.0 * layers, width, width)]
        linear = [*joined, (layers, width, width), (layers, inner, width), (layers, width, inner), (1.0, float(model.vocabulary), width)]
        if model.head_transform:
            linear.append((1.0, width, width))
        calls, columns, depth = (np.array(column) for column in zip(*linear, strict=True))
        yield calls, pricer.linear_fp32(np.full(len(calls), self.batch * self.tokens), columns=columns, depth=depth)
        tokens, head, count = self.tokens, width / model.heads, self.batch * model.heads
        sizes = {"columns": np.array([tokens, head]), "depth": np.array([head, tokens]), "count": np.full(2, count)}
        yield layers, pricer.batched(FP32, np.full(2, tokens), **sizes)  # scores, and weighted sums

    def _softmax(self, pricer: PartPricer) -> Cost:
        shapes = stream_shapes.softmax(self.batch * self.tokens * self.architecture.heads, self.tokens, element_bytes=FP32_BYTES)
        return pricer.kernel(SOFTMAX, ("fp32-softmax",), shapes)

    def _norm(self, pricer: PartPricer, *, added_inputs: int) -> Cost:
        """Return the cost of a norm; an added input means that the sum is written too, and read again in place of both."""
        once = 1.0 + added_inputs
        shapes = stream_shapes.norm(self.batch * self.tokens, self.architecture.width, element_bytes=once * FP32_BYTES)
        return pricer.kernel(NORM, ("fp32-ln",), {**shapes, "passes": shapes["passes"] / once})

    def _elementwise(self, pricer: PartPricer, name: str, rows: float, columns: float) -> Cost:
        shapes = stream_shapes.elementwise(rows * columns, inputs=INPUTS[name], element_bytes=FP32_BYTES)
        shapes = {**shapes, "rows": np.array([rows]), "columns": np.array([columns])}
        return pricer.kernel(ELEMENTWISE, (f"fp32-{name}",), shapes)


def _whole(
    place: tuple[str, str], rows: Mask, models: npt.NDArray[np.str_], sizes: tuple[Array, Array], seconds: Array, where: str
) -> MeasuredWhole:
    passes = [
        _Pass(architecture=ARCHITECTURES[model], batch=batch, tokens=tokens, fused=place[1] == FUSED)
        for model, batch, tokens in zip(models[rows].tolist(), sizes[0][rows].tolist(), sizes[1][rows].tolist(), strict=True)
    ]
    names = list(ARCHITECTURES)
    return MeasuredWhole(
        hardware=place[0],
        stack=place[1],
        variant="fp32",
        shapes={
            "model": np.array([float(names.index(model)) for model in models[rows].tolist()]),
            "batch": sizes[0][rows],
            "tokens": sizes[1][rows],
        },
        seconds=seconds[rows],
        predict=partial(_predicted, passes),
        where=where,
    )


def _predicted(passes: list[_Pass], device: HardwareSpec) -> Prediction:
    pricer = PartPricer(library=KernelLibrary(device=device), stack=EAGER)
    every = [added(list(one.kernels(pricer))) for one in passes]
    weakest = max((prediction.source for prediction in every), key=SOURCES.index)
    return Prediction(seconds=np.concatenate([prediction.seconds for prediction in every]), source=weakest)


def _named(cells: Cells, column: str, known: tuple[str, ...]) -> npt.NDArray[np.str_]:
    """Return a column of known names [rows].

    Raises:
        SpecError: an unknown name.
    """
    names = cells.text(column)
    for name in dict.fromkeys(names.tolist()):
        if name not in known:
            got = f"unknown name {name!r}{nearest(name, known)}"
            raise SpecError(f"{cells.where}: {column}", got, "one of " + ", ".join(known), "correct the cells")
    return names
