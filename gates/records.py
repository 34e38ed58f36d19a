"""What an arm or a measurement was recorded on against what is judged: one of another load or kernel does not speak for this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gates.finding import Finding
from gates.request import Arm, Cell, GateRequest

if TYPE_CHECKING:
    from replay.tiling.step_table import StepTable


def foreign_records(request: GateRequest, cell: Cell) -> Iterator[Finding]:
    """Find arms that were recorded on another trace, accelerator or model than the cell's; a mapping file records nothing."""
    for role, arm in (("baseline", request.baseline), ("candidate", request.candidate)):
        if arm.model is not None and replace(arm.model, name=cell.model.name) != cell.model:
            yield _invalid("model_changed", f"the {role} was made for {arm.model.name} with other figures than {cell.model.name}")
        if arm.recorded:
            yield from _foreign_load(role, arm, cell)


def unused_measurements(cell: Cell, tables: Sequence[StepTable]) -> Iterator[Finding]:
    """Find measured kernels that decide no cost of either arm: a wrong format, shape or stack is the likeliest reason."""
    names = ", ".join(dict.fromkeys(one.name for one in cell.hardware.measured))
    if names and not any(table.measured.num_rows for table in tables):
        message = f"no kernel of the mappings on {cell.hardware.name} has the shape, format and stack of one that {names} measures"
        yield Finding(code="measurements_unused", message=message, effect="informs", stage="ingress")


def _foreign_load(role: str, arm: Arm, cell: Cell) -> Iterator[Finding]:
    trace, hardware = cell.trace, cell.hardware
    same_chip = [record for record in arm.recorded if record.hardware.name == hardware.name]
    same_load = [record for record in same_chip if record.trace_digest == trace.digest]
    if any(record.hardware == hardware for record in same_load):
        return
    if same_load:
        message = f"the {role} was made with other figures of {hardware.name}; make it again"
        yield _invalid("hardware_changed", message)
        return
    renamed = [record for record in same_chip if record.trace_name == trace.name]
    if renamed:
        message = (
            f"trace {trace.name} has digest {trace.digest}, the {role} was made on {renamed[0].trace_digest}: "
            f"the loads differ; make the {role} again on this trace, or name the old one"
        )
        yield _invalid("trace_changed", message)
        return
    places = ", ".join(f"{record.trace_name} on {record.hardware.name}" for record in arm.recorded)
    message = (
        f"the {role} was made on {places}, not on trace {trace.name} on {hardware.name}: make it again there, or name its mapping file"
    )
    yield _invalid("load_differs", message)


def _invalid(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")
