"""Shortlist: the cells that keep the limits within a power budget, the smallest fleet first, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gates.fit.cell import FitCell
from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec

_OBJECTIVES = (("goodput_per_device_per_s", -1.0), ("e2e_p99_s", 1.0), ("joules_per_token", 1.0), ("risk_ratio", 1.0))
"""What a platform is weighed by, with the sign that makes smaller better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Watts that a device, and a rack of the whole fleet, may draw; None does not limit."""

    device_w: float | None = None
    rack_w: float | None = None

    def check(self, devices: Sequence[HardwareSpec]) -> None:
        """Raise SpecError where a budget is below what a device draws when it does nothing."""
        for device in devices:
            idle_w = None if device.power is None else device.power.idle_w
            for option, budget_w in (("--device-watts", self.device_w), ("--rack-watts", self.rack_w)):
                if idle_w is not None and budget_w is not None and budget_w < idle_w:
                    got = f"{budget_w:g} W, and {device.name} draws {idle_w:g} W when idle"
                    raise SpecError(option, got, "a budget above idle power", "raise it, or leave the accelerator out")


def shortlist(cells: Sequence[FitCell], budget: Budget, prices: dict[str, float]) -> list[dict[str, Any]]:
    """Return a row for each cell, the fit ones and the small fleets first: its fleet with watts and cost, or why it is not fit."""
    rows = [_row(cell, budget, prices.get(cell.hardware)) for cell in cells]
    return sorted(rows, key=lambda row: (not row["fit"], row["fleet_devices"] or 0, row["usd_per_million_tokens"] or 0.0, row["hardware"]))


def dominating(cells: Sequence[FitCell]) -> tuple[bool, ...]:
    """Return of each cell whether no other one of its trace and model is at least as good in everything known and better in something.

    Goodput per device, p99 end-to-end latency, joules per token and risk; a figure that is not known counts as the worst.
    """
    return tuple(cell.problem is None and not any(_beats(other, cell) for other in cells) for cell in cells)


def _beats(one: FitCell, other: FitCell) -> bool:
    if (one.trace, one.model) != (other.trace, other.model) or one.problem is not None:
        return False
    pairs = [(_value(one, name, sign), _value(other, name, sign)) for name, sign in _OBJECTIVES]
    return all(left <= right for left, right in pairs) and any(left < right for left, right in pairs)


def _value(cell: FitCell, name: str, sign: float) -> float:
    value = getattr(cell, name)
    return float("inf") if value is None else sign * float(value)


def _row(cell: FitCell, budget: Budget, price: float | None) -> dict[str, Any]:
    why = tuple(_against(cell, budget))
    fleet_w = None if cell.board_w is None or cell.fleet_devices is None else cell.board_w * cell.fleet_devices
    tokens = cell.output_tokens_per_s
    cost = None
    if price is not None and tokens and cell.fleet_devices:
        cost = price * cell.fleet_devices / 3600.0 / tokens * 1e6
    return {
        **{name: getattr(cell, name) for name in ("trace", "model", "hardware", "mapping", "fleet_devices")},
        "fit": not why,
        "fleet_w": fleet_w,
        "usd_per_million_tokens": cost,
        "why_not": list(why),
    }


def _against(cell: FitCell, budget: Budget) -> Iterator[str]:
    if cell.problem is not None:
        yield cell.problem
        return
    if cell.fleet_devices is None:
        yield "the limits hold at no rate, so no fleet of such servers keeps them"
    if budget.device_w is None and budget.rack_w is None:
        return
    if cell.board_w is None:
        yield "its power is not described, so no budget is shown to be kept"
        return
    if budget.device_w is not None and cell.board_w > budget.device_w:
        yield f"a device may draw {cell.board_w:g} W, and {budget.device_w:g} W are allowed"
    if budget.rack_w is not None and cell.fleet_devices is not None and cell.board_w * cell.fleet_devices > budget.rack_w:
        yield f"the fleet may draw {cell.board_w * cell.fleet_devices:g} W, and {budget.rack_w:g} W are allowed"
