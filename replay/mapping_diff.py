"""What changes from one mapping to another: knobs, decisions, operators, the cache and limits of serving, kernels and whole steps.

Both meet the same steps on the same accelerator. Only what differs is listed, so two mappings that do the same have an empty diff.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from replay.lowering.kernel_plan import Decision, KernelPlan
from replay.mapping_sheet import SHEET_SCHEMA, StepShape, StepTotal, mapping_sheet, step_totals
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec, diff, shown
from replay.tiling.schedule import Schedule
from replay.tiling.step_table import StepTable

ROUNDING_RATIO = 1e-9
"""Floats that differ by less are equal: the same row priced among other rows may round differently."""
KERNEL_FIELDS = tuple(name for name in SHEET_SCHEMA.names if name not in ("step", "kernel", "layer_type", "share_ratio"))
"""Columns of a mapping sheet that are compared; a share changes with every other kernel of the step."""
KernelFate = Literal["appears", "disappears", "changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two mappings, compiled."""

    mapping: MappingSpec
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A named value that differs; None where one side has no such value."""

    name: str
    baseline: Any
    candidate: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference:
    """A kernel that differs in a step."""

    step: str
    kernel: str
    ops: tuple[str, ...]
    """Operators that it runs, on either side."""
    change: KernelFate
    fields: tuple[Difference, ...]
    """Columns of the mapping sheet that differ; with a kernel that appears or disappears, all that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """A step whose whole time differs, or one of its parts."""

    step: str
    fields: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingDiff:
    """All that differs."""

    knobs: tuple[Difference, ...]
    """As the files set them."""
    decisions: tuple[Difference, ...]
    """What was asked for, what runs and why, by place."""
    operators: tuple[Difference, ...]
    """Operators that run in another kernel."""
    serving: tuple[Difference, ...]
    """Cache pool, limits and launches."""
    kernels: tuple[KernelDifference, ...]
    steps: tuple[StepDifference, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two do the same."""
        return not (self.knobs or self.decisions or self.operators or self.serving or self.kernels or self.steps)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of its parts."""
        return asdict(self)


def mapping_diff(baseline: Side, candidate: Side, hardware: HardwareSpec, steps: tuple[StepShape, ...]) -> MappingDiff:
    """Return what changes from `baseline` to `candidate` on an accelerator, shown on `steps` that both can take."""
    changes = diff(baseline.mapping, candidate.mapping)
    sheets = [mapping_sheet(side.schedule, hardware, side.mapping, steps).to_pylist() for side in (baseline, candidate)]
    before, after = ({(row["step"], row["kernel"]): row for row in sheet} for sheet in sheets)
    one, other = baseline.schedule, candidate.schedule
    return MappingDiff(
        knobs=tuple(Difference(name=c.knob, baseline=shown(c.baseline), candidate=shown(c.candidate)) for c in changes),
        decisions=tuple(_differences(_decisions(one.decisions), _decisions(other.decisions))),
        operators=tuple(_differences(_kernel_of_op(one.plan), _kernel_of_op(other.plan))),
        serving=tuple(_differences(_serving(one.table), _serving(other.table))),
        kernels=tuple(_kernels(before, after)),
        steps=tuple(_steps(one.table, other.table, steps)),
    )


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        if not _same(before.get(name), after.get(name)):
            yield Difference(name=name, baseline=before.get(name), candidate=after.get(name))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDING_RATIO)
    return bool(one == other)


def _decisions(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    return {d.knob: {"requested": d.requested, "effective": d.effective, "reason": d.reason} for d in decisions}


def _kernel_of_op(plan: KernelPlan) -> dict[str, Any]:
    return {op: kernel.id for kernel in plan.kernels for op in kernel.ops}


def _serving(table: StepTable) -> dict[str, Any]:
    launches = {"launches_count": table.launches_count, "prefill_launches_count": table.prefill_launches_count}
    captured = table.capture["captured_tokens"].to_numpy()
    return {**asdict(table.pool), **asdict(table.limits), **launches, "captured_graphs_count": len({*captured.tolist()} - {0})}


def _kernels(before: dict[tuple[str, str], Any], after: dict[tuple[str, str], Any]) -> Iterator[KernelDifference]:
    """Yield the kernels that differ, those of the first side before those that only the second has, step by step."""
    steps = list(dict.fromkeys(step for step, _ in [*before, *after]))
    for key in sorted(dict.fromkeys([*before, *after]), key=lambda key: steps.index(key[0])):
        old, new = before.get(key), after.get(key)
        fields = tuple(_differences(_compared(old), _compared(new)))
        if fields:
            members = dict.fromkeys(op for row in (old, new) if row is not None for op in row["ops"].split("+"))
            change: KernelFate = "appears" if old is None else "disappears" if new is None else "changes"
            yield KernelDifference(step=key[0], kernel=key[1], ops=tuple(members), change=change, fields=fields)


def _compared(row: dict[str, Any] | None) -> dict[str, Any]:
    return {} if row is None else {name: row[name] for name in KERNEL_FIELDS}


def _steps(one: StepTable, other: StepTable, steps: tuple[StepShape, ...]) -> Iterator[StepDifference]:
    for before, after in zip(step_totals(one, steps), step_totals(other, steps), strict=True):
        fields = tuple(_differences(_total(before), _total(after)))
        if fields:
            yield StepDifference(step=before.step, fields=fields)


def _total(total: StepTotal) -> dict[str, Any]:
    found = {"time_s": total.time_s, **asdict(total)}
    return found if total.host_s > total.device_s else {name: value for name, value in found.items() if name != "host_s"}
