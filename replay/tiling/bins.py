"""Where a kernel's tile settings hold: ranges of rows with one tile, split and backend, and the tile that really runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.lowering.kernel_plan import FORMAT_BYTES, MATRIX_RATES, Decision, Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import Value
from replay.specs.mapping import MappingSpec
from replay.specs.scopes import PHASES
from replay.specs.tile_table import TableEntry, TileTable
from replay.tiling.families.gemm_formats import GemmFormat, gemm_format
from replay.tiling.families.gemm_tiles import (
    ACCUMULATOR_BYTES,
    ACCUMULATOR_SHARE_RATIO,
    LEAST_SPLIT_STEPS,
    Tile,
    most_split,
    taken_split,
    tile_problem,
    tile_resources,
)
from replay.tiling.families.tile_resources import TileResources
from replay.tiling.tuned_tables import entry_problem, kernel_table

STEP_PHASES = ((0, PHASES[1]), (1, PHASES[0]))
"""Phase of a step: 0 = decode only, 1 = it has prefill tokens (token-wise kernels then take the prefill settings)."""
AUTO = "auto"
AttentionTile = tuple[int, int]
"""Query rows and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTile:
    """Where a tile was looked up."""

    table: TileTable
    batch: int
    entry: TableEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductBin:
    """One range of rows of a matrix multiply or of experts with its units, tile and split."""

    phase: int
    first_row: int
    last_row: int
    backend: str
    tile: Tile | None
    """The pinned tile; None for any."""
    split: int | None
    """The pinned split; None for any."""
    requested: Value
    problem: str | None
    """Why the requested tile cannot run."""
    spill: str | None
    """How it outgrows the registers, where it runs nevertheless."""
    table: TunedTile | None = None
    """The entry of a tuned table, where one is looked up; `tile` is its tile, or None where that cannot run."""

    @property
    def called_split(self) -> int | None:
        """The split that the kernel is called with: the pinned one; tuned kernels do not split; None where it is chosen."""
        return 1 if self.split is None and self.table is not None and self.tile is not None else self.split


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBin:
    """One range of rows (prefill tokens or decode sequences) of an attention kernel with its tile and key split."""

    first_row: int
    last_row: int
    tile: AttentionTile | None
    """The pinned tile; None for the kernel's own."""
    split: int | None
    requested: Value
    problem: str | None
    spill: str | None


def product_format(kernel: Kernel) -> GemmFormat:
    """Return the format of the dense multiply that a kernel is."""
    weights, activations = kernel.weights_format, kernel.activations_format
    if activations in MATRIX_RATES:
        return gemm_format("int8_smooth" if activations == "int8" else activations)
    if FORMAT_BYTES[weights] >= FORMAT_BYTES["bf16"]:
        return gemm_format("bf16")
    return gemm_format("int8_weights" if FORMAT_BYTES[weights] == FORMAT_BYTES["int8"] else "int4_weights")


def product_bins(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[ProductBin]:
    """Yield the bins of a matrix multiply or of experts for the phases of its steps, in row order."""
    table = kernel_table(kernel, hardware, mapping)
    looked_up = list(_looked_up(table, rows_to)) if table is not None else []
    for phase, name in STEP_PHASES:
        if phase not in kernel.step_phases:
            continue
        where = {"layer": kernel.layer_type, "phase": name}
        backends = [bin_ for bin_ in kernel.backends if bin_.phase == phase]
        edges = {bin_.first_row for bin_ in backends} | {first for first, _ in looked_up}
        for knob in ("gemm.tile", "gemm.split_k"):
            edges |= {first for first, _, _ in mapping.row_bins(knob, **where, rows_to=rows_to)}
        firsts = sorted(edge for edge in edges if edge <= rows_to)
        for first, after in zip(firsts, [*firsts[1:], rows_to + 1], strict=True):
            asked = mapping.value("gemm.tile", **where, rows=first)
            split = mapping.value("gemm.split_k", **where, rows=first)
            backend = next(bin_.backend for bin_ in backends if bin_.first_row <= first <= bin_.last_row)
            tuned = [found for start, found in looked_up if start <= first] if backend == "matrix" and asked == AUTO else []
            yield ProductBin(
                phase=phase,
                first_row=first,
                last_row=after - 1,
                backend=backend,
                split=split if isinstance(split, int) else None,
                requested=asked,
                **_tile(asked, tuned[-1] if tuned else None, kernel, hardware),
            )


def _looked_up(table: TileTable, rows_to: int) -> Iterator[tuple[int, TunedTile]]:
    """Yield the first row of each range of a table, and its entry."""
    for found in table.ranges(rows_to):
        yield found.first_row, TunedTile(table=table, batch=found.batch, entry=found.entry)


def _tile(asked: Value, tuned: TunedTile | None, kernel: Kernel, hardware: HardwareSpec) -> dict[str, Any]:
    """Return the fields of a bin that its tile decides: the pinned one, else that of a tuned table, else none."""
    format_ = product_format(kernel)
    if tuned is not None:
        problem = ON_ARRAYS if hardware.spatial else entry_problem(tuned.table, tuned.entry, format_, hardware)
        return {"tile": None if problem else tuned.entry.tile, "problem": problem, "spill": None, "table": tuned}
    pinned = (asked[0], asked[1], asked[2]) if isinstance(asked, tuple) else None
    if pinned is None:
        return {"tile": None, "problem": None, "spill": None}
    problem = ON_ARRAYS if hardware.spatial else tile_problem(pinned, format_, hardware)
    spill = None if problem else tile_resources(pinned, format_, hardware).spill_problem
    return {"tile": None if problem else pinned, "problem": problem, "spill": spill}


def attention_bins(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[AttentionBin]:
    """Yield the bins of an attention kernel, in row order; the first one includes 0 rows."""
    where = {"layer": "attention", "phase": kernel.phase}
    edges = {first for knob in ("attention.tile", "attention.kv_split") for first, _, _ in mapping.row_bins(knob, **where, rows_to=rows_to)}
    firsts = sorted(edges)
    for first, after in zip(firsts, [*firsts[1:], rows_to + 1], strict=True):
        asked = mapping.value("attention.tile", **where, rows=first)
        pinned = (asked[0], asked[1]) if isinstance(asked, tuple) else None
        problem = (ON_ARRAYS if hardware.spatial else attention_tile_problem(pinned, kernel, hardware)) if pinned else None
        runs = attention_resources(pinned, kernel, hardware) if pinned and not problem else None
        split = mapping.value("attention.kv_split", **where, rows=first)
        yield AttentionBin(
            first_row=0 if first == 1 else first,
            last_row=after - 1,
            tile=None if problem else pinned,
            split=split if isinstance(split, int) else None,
            requested=asked,
            problem=problem,
            spill=runs.spill_problem if runs else None,
        )


def attention_tile_problem(tile: AttentionTile, kernel: Kernel, hardware: HardwareSpec) -> str | None:
    """Return why a tile cannot run on one unit, or None."""
    problem = attention_resources(tile, kernel, hardware).launch_problem
    return f"tile {tile[0]}x{tile[1]} {problem} on {hardware.name}" if problem else None


def attention_resources(tile: AttentionTile, kernel: Kernel, hardware: HardwareSpec) -> TileResources:
    """Return what a tile takes of a unit: queries and keys and values; scores and outputs in 32 bit."""
    (rows, keys), shape = tile, kernel.attention
    return TileResources(
        operand_bytes=rows * FORMAT_BYTES["bf16"] * shape.head_size + keys * FORMAT_BYTES[kernel.kv_format] * shape.stored_size,
        accumulator_bytes=rows * (keys + shape.value_size) * ACCUMULATOR_BYTES,
        operand_budget_bytes=hardware.unit_memory_bytes,
        accumulator_budget_bytes=ACCUMULATOR_SHARE_RATIO * hardware.unit_registers_bytes,
    )


ON_ARRAYS = "on systolic arrays the mapper chooses tiles, and nothing is split"


def tile_decisions(kernels: tuple[Kernel, ...], hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> tuple[Decision, ...]:
    """Return a decision for every pinned tile and split: what is asked for, what runs, and why they differ.

    Of several kernels at one place the first that does not get what is asked for stands.
    """
    found: dict[str, Decision] = {}
    for kernel in kernels:
        for decision in _kernel_decisions(kernel, hardware, mapping, rows_to):
            before = found.get(decision.knob)
            if before is None or before.reason is None:
                found[decision.knob] = decision
    return tuple(found.values())


def _kernel_decisions(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[Decision]:
    if kernel.phase is not None:
        for bin_ in attention_bins(kernel, hardware, mapping, rows_to):
            yield from _tile_decision("attention.tile", kernel.phase, bin_, rows_to)
    elif kernel.backends:
        for product_bin in product_bins(kernel, hardware, mapping, rows_to):
            phase = dict(STEP_PHASES)[product_bin.phase]
            place = f"{kernel.layer_type}.{phase}"
            yield from _tile_decision("gemm.tile", place, product_bin, rows_to)
            yield from _split_decision(kernel, place, product_bin, rows_to, hardware)


def _tile_decision(knob: str, place: str, bin_: ProductBin | AttentionBin, rows_to: int) -> Iterator[Decision]:
    if isinstance(bin_.requested, tuple):
        asked = "x".join(map(str, bin_.requested))
        effective = "the default tile" if bin_.problem else f"{asked}, spilling" if bin_.spill else asked
        where = f"{knob}@{place}{_rows(bin_, rows_to)}"
        yield Decision(knob=where, requested=asked, effective=effective, reason=bin_.problem or bin_.spill, stage="tiling")


def _split_decision(kernel: Kernel, place: str, bin_: ProductBin, rows_to: int, hardware: HardwareSpec) -> Iterator[Decision]:
    if bin_.split is None:
        return
    effective, reason = effective_split(kernel, bin_.split, hardware)
    where = f"gemm.split_k@{place}{_rows(bin_, rows_to)}"
    yield Decision(knob=where, requested=str(bin_.split), effective=str(effective), reason=reason, stage="tiling")


def effective_split(kernel: Kernel, split: int, hardware: HardwareSpec) -> tuple[int, str | None]:
    """Return the parts that a reduction is really split into, and why it is not `split`."""
    if hardware.spatial is not None:
        return 1, ON_ARRAYS if split > 1 else None
    if not kernel.is_dense:
        return 1, "grouped products do not split their depth" if split > 1 else None
    step, depth = product_format(kernel).step_elements, kernel.matmul.depth
    effective = int(taken_split(np.minimum(split, most_split(np.array([float(depth)]), step)))[0])
    reason = None if effective == split else f"splits are powers of two whose parts keep at least {LEAST_SPLIT_STEPS * step} of {depth}"
    return effective, reason


def _rows(bin_: ProductBin | AttentionBin, rows_to: int) -> str:
    whole = bin_.first_row <= 1 and bin_.last_row == rows_to
    return "" if whole else f"[rows {bin_.first_row}-{bin_.last_row}]"
