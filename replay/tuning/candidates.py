"""What a tiling knob may be set to, and what each candidate would cost on the shape mix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from replay.lowering.kernel_plan import Kernel, KernelPlan
from replay.specs.knobs import Value
from replay.tiling.bins import STEP_PHASES, AttentionBin, ProductBin, attention_bins, attention_tile_problem, product_bins, product_format
from replay.tiling.families.gemm_tiles import SPLITS, TILE_COLUMNS, TILE_ROWS, tile_problem
from replay.tiling.pricing import Pricer
from replay.tiling.step_table import StepLimits
from replay.tuning.mix import Counts, Floats, RowMix, ShapeMix
from replay.tuning.settings import Place, without

AUTO = "auto"
EXPERT_DEPTHS = (64, 128, 256)
"""Depths that vLLM's tuning script of fused experts tries (`benchmark_moe.py`); rows and columns are those of dense tiles."""
ATTENTION_ROWS, ATTENTION_KEYS = (16, 32, 64, 128, 256), (32, 64, 128, 256)
"""Powers of two, as streaming attention kernels are written for (FlashAttention-2, Dao 2023, section 4: 64 and 128)."""
DECODE_ROWS = 16
"""Query rows of a decode tile: the smallest of matrix units, which the query heads of a key-value head fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The values of a knob at a place, and their cost in all of the traffic's steps; the first value is the default, `auto`."""

    values: tuple[Value, ...]
    rows: Counts
    """Rows of the traffic, ascending."""
    seconds: Floats
    """[values, rows], all steps of the mix with that many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Prices candidates on a mix; `mapping` gives everything but the knob that is tried."""

    plan: KernelPlan
    pricer: Pricer
    limits: StepLimits
    mix: ShapeMix

    def candidates(self, knob: str, place: Place) -> Candidates | None:
        """Return a knob's candidates at a place, or None where the traffic has no such rows."""
        mapping = self.pricer.mapping
        given = tuple(dict.fromkeys(setting.value for setting in mapping.settings if setting.name == knob and setting.value != AUTO))
        free = replace(self, pricer=replace(self.pricer, mapping=without(mapping, knob)))
        return free._of_products(knob, place, given) if knob.startswith("gemm.") else free._of_attention(knob, place, given)

    def _of_products(self, knob: str, place: Place, given: tuple[Value, ...]) -> Candidates | None:
        kernels = [kernel for kernel in self.plan.kernels if kernel.backends and kernel.layer_type == place.layer]
        mixes = {kernel.id: self.rows_of(kernel, place) for kernel in kernels}
        mix = next(iter(mixes.values()))  # a layer type's products run on the same rows
        if not len(mix.rows):
            return None
        tried = SPLITS if knob == "gemm.split_k" else _product_tiles(kernels)
        values = tuple(value for value in dict.fromkeys((AUTO, *given, *tried)) if self._is_legal(knob, value, kernels))
        seconds = [sum(self._product_s(kernel, place, mix, knob, value) for kernel in kernels) for value in values]
        return Candidates(values=values, rows=mix.rows, seconds=np.array(seconds))

    def rows_of(self, kernel: Kernel, place: Place) -> RowMix:
        """Return how often a product runs on how many rows."""
        return self.mix.sequences if kernel.axis == "sequences" else self.mix.tokens[0 if place.phase == "decode" else 1]

    def _is_legal(self, knob: str, value: Value, kernels: list[Kernel]) -> bool:
        if knob == "gemm.split_k" or not isinstance(value, tuple):
            return knob != "gemm.split_k" or value == AUTO or any(kernel.is_dense for kernel in kernels)
        tile = (value[0], value[1], value[2])
        return all(tile_problem(tile, product_format(kernel), self.pricer.library.device) is None for kernel in kernels)

    def _product_s(self, kernel: Kernel, place: Place, mix: RowMix, knob: str, value: Value) -> Floats:
        """Return the time of all calls of a product with a value of the knob [rows]."""
        phase = 0 if kernel.axis == "sequences" else next(index for index, name in STEP_PHASES if name == place.phase)
        seconds = np.zeros(len(mix.rows))
        for bin_ in product_bins(kernel, self.pricer.library.device, self.pricer.mapping, int(mix.rows[-1])):
            here = (mix.rows >= bin_.first_row) & (mix.rows <= bin_.last_row)
            if bin_.phase == phase and here.any():
                choice = self.pricer.product(kernel, mix.rows[here].astype(np.float64), _with_product_value(bin_, knob, value))
                seconds[here] = choice.cost.time_s
        return np.asarray(seconds * kernel.calls_count * mix.steps_count)

    def _of_attention(self, knob: str, place: Place, given: tuple[Value, ...]) -> Candidates | None:
        kernel = next(kernel for kernel in self.plan.kernels if kernel.phase == place.phase)
        mix = self.mix.decode if place.phase == "decode" else self.mix.prefill
        if not len(mix.rows):
            return None
        tried: tuple[Value, ...] = SPLITS
        if knob == "attention.tile":
            rows = (DECODE_ROWS,) if place.phase == "decode" else ATTENTION_ROWS
            pairs = (*(value for value in given if isinstance(value, tuple)), *product(rows, ATTENTION_KEYS))
            device = self.pricer.library.device
            tried, given = tuple(pair for pair in pairs if attention_tile_problem((pair[0], pair[1]), kernel, device) is None), ()
        values = tuple(dict.fromkeys((AUTO, *given, *tried)))
        seconds = [self._attention_s(kernel, knob, value) for value in values]
        return Candidates(values=values, rows=mix.rows.astype(np.int64), seconds=np.array(seconds))

    def _attention_s(self, kernel: Kernel, knob: str, value: Value) -> Floats:
        """Return the time of all calls of attention with a value of the knob [rows]."""
        mix = self.mix.decode if kernel.phase == "decode" else self.mix.prefill
        seconds = np.zeros(len(mix.rows))
        for bin_ in attention_bins(kernel, self.pricer.library.device, self.pricer.mapping, int(mix.rows[-1])):
            here = (mix.rows >= bin_.first_row) & (mix.rows <= bin_.last_row)
            if here.any():
                priced = self.pricer.attention(kernel, _with_attention_value(bin_, value), self.limits.attention_window)
                points = np.repeat(mix.rows[here], len(mix.keys)), np.tile(mix.keys, int(here.sum()))
                cost = priced.decode(*points) if kernel.phase == "decode" else priced.prefill(*points)
                seconds[here] = (cost.time_s.reshape(-1, len(mix.keys)) * mix.steps_count[here]).sum(axis=1)
        return np.asarray(seconds * kernel.calls_count)


def _product_tiles(kernels: list[Kernel]) -> Iterator[tuple[int, int, int]]:
    """Yield the tiles to try for a layer type: depths are one step of the format, and those of grouped kernels."""
    depths: dict[int, None] = {}
    for kernel in kernels:
        depths |= dict.fromkeys((product_format(kernel).step_elements,) if kernel.is_dense else EXPERT_DEPTHS)
    yield from product(TILE_ROWS, TILE_COLUMNS, depths)


def _with_product_value(bin_: ProductBin, knob: str, value: Value) -> ProductBin:
    if isinstance(value, tuple):
        return replace(bin_, tile=(value[0], value[1], value[2]), table=None)
    return replace(bin_, split=value) if knob == "gemm.split_k" and isinstance(value, int) else bin_


def _with_attention_value(bin_: AttentionBin, value: Value) -> AttentionBin:
    if isinstance(value, tuple):
        return replace(bin_, tile=(value[0], value[1]))
    return replace(bin_, split=value) if isinstance(value, int) else bin_
