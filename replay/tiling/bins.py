"""Where a kernel's tile settings hold: ranges of rows with one tile, split and backend, and the tile that really runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from replay.lowering.kernel_plan import FORMAT_BYTES, Decision, Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import PHASES, Value
from replay.specs.mapping import MappingSpec
from replay.tiling import attention, gemm

STEP_PHASES = ((0, PHASES[1]), (1, PHASES[0]))
"""Phase of a step: 0 = decode only, 1 = it has prefill tokens (token-wise kernels then take the prefill settings)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmBin:
    """One range of rows of a matrix multiply with its units, tiles to choose among and split."""

    phase: int
    first_row: int
    last_row: int
    backend: str
    tiles: tuple[gemm.Tile, ...]
    split: Value
    requested: Value
    problem: str | None
    """Why the requested tile cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBin:
    """One range of rows (prefill tokens or decode sequences) of an attention kernel with its tile and key split."""

    first_row: int
    last_row: int
    tile: attention.Tile
    split: Value
    requested: Value
    problem: str | None


def gemm_bins(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[GemmBin]:
    """Yield the bins of a matrix multiply for both phases, in row order."""
    element_bytes = max(FORMAT_BYTES[kernel.activations_format], FORMAT_BYTES[kernel.weights_format])
    for phase, name in STEP_PHASES:
        where = {"layer": kernel.layer_type, "phase": name}
        backends = [bin_ for bin_ in kernel.backends if bin_.phase == phase]
        edges = {bin_.first_row for bin_ in backends}
        for knob in ("gemm.tile", "gemm.split_k"):
            edges |= {first for first, _, _ in mapping.row_bins(knob, **where, rows_to=rows_to)}
        firsts = sorted(edge for edge in edges if edge <= rows_to)
        for first, after in zip(firsts, [*firsts[1:], rows_to + 1], strict=True):
            asked = mapping.value("gemm.tile", **where, rows=first)
            tiles, problem = gemm.candidate_tiles(asked, element_bytes, hardware)
            yield GemmBin(
                phase=phase,
                first_row=first,
                last_row=after - 1,
                backend=next(bin_.backend for bin_ in backends if bin_.first_row <= first <= bin_.last_row),
                tiles=tiles,
                split=mapping.value("gemm.split_k", **where, rows=first),
                requested=asked,
                problem=problem,
            )


def attention_bins(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[AttentionBin]:
    """Yield the bins of an attention kernel, in row order; the first one includes 0 rows."""
    phase = kernel.id.removeprefix("attention_")
    where = {"layer": "attention", "phase": phase}
    edges = {first for knob in ("attention.tile", "attention.kv_split") for first, _, _ in mapping.row_bins(knob, **where, rows_to=rows_to)}
    firsts = sorted(edges)
    for first, after in zip(firsts, [*firsts[1:], rows_to + 1], strict=True):
        asked = mapping.value("attention.tile", **where, rows=first)
        tile = attention.PREFILL_TILE if phase == "prefill" else attention.DECODE_TILE
        problem = None
        if isinstance(asked, tuple):
            pinned = (asked[0], asked[1])
            problem = attention.tile_problem(pinned, kernel, hardware)
            tile = tile if problem else pinned
        yield AttentionBin(
            first_row=0 if first == 1 else first,
            last_row=after - 1,
            tile=tile,
            split=mapping.value("attention.kv_split", **where, rows=first),
            requested=asked,
            problem=problem,
        )


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
    if kernel.axis == "attention":
        phase = kernel.id.removeprefix("attention_")
        for bin_ in attention_bins(kernel, hardware, mapping, rows_to):
            yield from _tile_decision("attention.tile", phase, bin_, rows_to)
    elif kernel.backends:
        for gemm_bin in gemm_bins(kernel, hardware, mapping, rows_to):
            phase = dict(STEP_PHASES)[gemm_bin.phase]
            if kernel.axis == "sequences" and phase == "prefill":
                continue  # runs on the last token of each sequence, with the settings of decode
            yield from _tile_decision("gemm.tile", f"{kernel.layer_type}.{phase}", gemm_bin, rows_to)
            yield from _split_decision(kernel.matmul.depth, f"{kernel.layer_type}.{phase}", gemm_bin, rows_to)


def _tile_decision(knob: str, place: str, bin_: GemmBin | AttentionBin, rows_to: int) -> Iterator[Decision]:
    if isinstance(bin_.requested, tuple):
        asked = "x".join(map(str, bin_.requested))
        effective = "the default tile" if bin_.problem else asked
        where = f"{knob}@{place}{_rows(bin_, rows_to)}"
        yield Decision(knob=where, requested=asked, effective=effective, reason=bin_.problem, stage="tiling")


def _split_decision(depth: int, place: str, bin_: GemmBin, rows_to: int) -> Iterator[Decision]:
    if isinstance(bin_.split, int):
        effective = gemm.effective_split(bin_.split, depth)
        reason = None if effective == bin_.split else f"each part keeps at least {gemm.LEAST_SPLIT_DEPTH} of a depth of {depth}"
        where = f"gemm.split_k@{place}{_rows(bin_, rows_to)}"
        yield Decision(knob=where, requested=str(bin_.split), effective=str(effective), reason=reason, stage="tiling")


def _rows(bin_: GemmBin | AttentionBin, rows_to: int) -> str:
    whole = bin_.first_row <= 1 and bin_.last_row == rows_to
    return "" if whole else f"[rows {bin_.first_row}-{bin_.last_row}]"
