"""Scopes: the part of the work that a setting holds for, written after ``@``: layer type, phase, range of rows, accelerator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]

PHASES: tuple[Phase, ...] = ("prefill", "decode")
LAYER_TYPES = (
    "embedding", "norm", "qkv", "rope", "attention", "output_proj", "mlp", "moe", "residual",
    "lm_head", "sampling", "all_reduce", "transform",
)  # fmt: skip
UNBOUNDED_ROWS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where a setting applies; every part that is None or empty does not restrict."""

    layer: str | None = None
    phase: Phase | None = None
    rows_from: int = 0
    """Smallest number of rows, inclusive."""
    rows_to: int | None = None
    """Largest number of rows, inclusive."""
    chip: str | None = None

    def __str__(self) -> str:
        parts = [part for part in (self.layer, self.phase) if part]
        bounds = []
        if self.rows_from:
            bounds.append(f"rows>={self.rows_from}")
        if self.rows_to is not None:
            bounds.append(f"rows<={self.rows_to}")
        if self.chip:
            bounds.append(f"chip={self.chip}")
        return ".".join(parts) + (f"[{','.join(bounds)}]" if bounds else "")

    @property
    def narrowness(self) -> tuple[int, bool, bool, bool, bool, int, int]:
        """How narrow the scope is; of the settings that cover a place the greatest wins, wherever it stands in the file.

        First by the number of parts that restrict, then chip before rows before phase before layer, then the smaller range
        of rows, then the one that starts later.
        """
        bounded = self.rows_from > 0 or self.rows_to is not None
        parts = (self.chip is not None, bounded, self.phase is not None, self.layer is not None)
        width = (UNBOUNDED_ROWS if self.rows_to is None else self.rows_to) - self.rows_from
        return (sum(parts), *parts, -width, self.rows_from)

    def covers(self, *, layer: str | None, phase: str | None, rows: int | None, chip: str | None) -> bool:
        """Return whether the scope includes the place asked for (None = the caller has no such coordinate)."""
        inside_rows = True
        if self.rows_from or self.rows_to is not None:
            inside_rows = rows is not None and rows >= self.rows_from and (self.rows_to is None or rows <= self.rows_to)
        return (self.layer in (None, layer)) and (self.phase in (None, phase)) and (self.chip in (None, chip)) and inside_rows


EVERYWHERE = Scope()


def parse_scope(text: str) -> Scope:
    """Return the scope written after ``@``: ``mlp.decode[rows<=16,chip=h100-sxm]``.

    Raises:
        ValueError: with what is wrong, for the caller to place.
    """
    match = re.fullmatch(r"([a-z_.]*)(?:\[([^\]]+)\])?", text)
    if not match or not text:
        raise ValueError(f"the scope {text!r} is not of the form layer.phase[rows<=N,chip=NAME]")
    fields: dict[str, object] = {}
    for part in filter(None, match.group(1).split(".")):
        key = "phase" if part in PHASES else "layer" if part in LAYER_TYPES else None
        if key is None:
            raise ValueError(f"the scope names {part!r}, which is neither a phase nor a layer type")
        if key in fields:
            raise ValueError(f"the scope names two of the kind {key}")
        fields[key] = part
    for bound in filter(None, (match.group(2) or "").split(",")):
        _read_bound(bound.strip(), fields)
    scope = Scope(**fields)  # type: ignore[arg-type]
    if scope.rows_to is not None and scope.rows_to < max(1, scope.rows_from):
        raise ValueError("the scope's row bounds exclude every row")
    return scope


def _read_bound(bound: str, fields: dict[str, object]) -> None:
    chip = re.fullmatch(r"chip=([a-z0-9.-]+)", bound)
    rows = re.fullmatch(r"rows(<=|>=|<|>)([0-9]{1,9})", bound)
    if chip:
        fields["chip"] = chip.group(1)
    elif rows:
        limit, sign = int(rows.group(2)), rows.group(1)
        if sign[0] == "<":
            fields["rows_to"] = limit if sign == "<=" else limit - 1
        else:
            fields["rows_from"] = limit if sign == ">=" else limit + 1
    else:
        raise ValueError(f"the scope has the bound {bound!r}; bounds are rows<=N, rows<N, rows>=N, rows>N and chip=NAME")
