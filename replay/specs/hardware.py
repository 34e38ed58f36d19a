"""HardwareSpec: a described accelerator, each figure with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from replay.provenance import canonical_json, digest_document
from replay.specs.calibration import FamilyCalibration
from replay.specs.measured import MeasuredKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Time of the host per step, beside the device's."""

    launch_s: float
    """Host time of one eager kernel launch."""
    graph_launch_s: float
    """Host time of replaying one captured graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """The link between the accelerators of one node."""

    bytes_per_s: float
    """One direction, per accelerator."""
    latency_s: float


DATAFLOWS = ("weight_stationary", "output_stationary", "input_stationary")
BUFFERS = ("shared", "inputs", "weights", "outputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec:
    """One on-chip memory that feeds the arrays of a spatial device."""

    bytes: float
    banks_count: int | None = None
    bank_bytes_per_s: float | None = None
    """Reads and writes of one bank together."""
    energy_j_per_byte: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """What all banks move; None where that is not published: the buffer then never binds."""
        return None if self.banks_count is None or self.bank_bytes_per_s is None else self.banks_count * self.bank_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialSpec:
    """Systolic arrays of multiply-accumulate cells and the memories that feed them; a figure that is not published is None."""

    arrays_count: int
    array_rows_count: int
    """Cells that a partial sum passes (weight- and input-stationary), or rows of results (output-stationary)."""
    array_columns_count: int
    cell_format: str
    """Number format of which a cell multiplies one pair per clock; others run in proportion to `matrix_flops_per_s`."""
    dataflows: tuple[str, ...]
    """What the arrays can keep in place: names of `DATAFLOWS`."""
    folds_overlap: bool
    """Cells hold a second stationary value, so that one fold loads (or drains) while another one streams."""
    double_buffered: bool
    """Buffers hold the next tile beside the current one, so that device memory and arrays work at once."""
    accumulator_bytes: float
    """Of one partial sum."""
    buffers: dict[str, BufferSpec]
    """By name of `BUFFERS`: an operand's own, or `shared` for those that have none of their own."""
    mac_energy_j: dict[str, float]
    """Of one multiply-accumulate by format; a format that is absent has no published figure."""
    memory_energy_j_per_byte: float | None = None
    kernel_floor_s: float = 0.0
    """Launch and first access of a kernel; 0 where nothing is known of it."""
    memory_efficiency_ratio: float = 1.0
    """Share of the device memory's rate that kernels reach."""

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> SpatialSpec:
        """Return the spec of a JSON form; figures that nobody publishes may be absent."""
        fields = {**document, "dataflows": tuple(document["dataflows"]), "mac_energy_j": dict(document.get("mac_energy_j") or {})}
        fields["buffers"] = {name: BufferSpec(**buffer) for name, buffer in document["buffers"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSpec:
    """What the board draws, what holds it back, and how it warms; `replay.execution.power_arrays` says how they act together."""

    idle_w: float
    cap_w: float
    """Board limit, which the moving average of the power must keep."""
    compute_w: float
    """Draw above idle of the matrix units at the peak of any format, on-chip memories included: what a FLOP costs is this over the peak
    of its format."""
    memory_energy_j_per_byte: float
    """To move one byte to or from device memory."""
    average_s: float
    """Time constant of the moving average."""
    min_clock_hz: float
    clock_step_hz: float
    """Clocks run from `HardwareSpec.clock_hz` down to the least in such steps."""
    ambient_c: float
    throttle_c: float
    """Temperature that the clock holds the board at or below."""
    thermal_resistance_k_per_w: float
    thermal_s: float
    """Time constant of warming: resistance x heat capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """A calibrated kernel family and the device that its timings were taken on."""

    hardware: str
    units_count: int
    """Units of that device: decisions of its kernels (waves, splits) were made for them."""
    fit: FamilyCalibration


@dataclass(frozen=True, kw_only=True)  # without slots: the digest of many calibrations is worked out once
class HardwareSpec:
    """One accelerator: peaks, memory, units, link; `sources` names where each figure comes from."""

    name: str
    units_count: int
    """Streaming multiprocessors, compute units or matrix units."""
    clock_hz: float
    matrix_flops_per_s: dict[str, float]
    """Dense peak by format; a format that is absent has no native rate."""
    vector_flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    cache_bytes: float
    """Last-level on-chip memory shared by the units."""
    unit_memory_bytes: float
    """Fast memory one unit can give to tiles (shared memory, local data share, vector memory share)."""
    unit_registers_bytes: float
    unit_cache_bytes_per_s: float
    """Rate at which one unit reads from the shared cache."""
    link: LinkSpec
    host_link_bytes_per_s: float
    host: HostCosts
    sources: dict[str, str]
    sparse_speedup_ratio: float | None = None
    """Matrix rate with weights of which two in every four are zero, over the dense rate; None without sparse units."""
    spatial: SpatialSpec | None = None
    """Systolic arrays, where the device multiplies on such."""
    power: PowerSpec | None = None
    """Power and heat, where they are described; without, the clock never changes."""
    kernels: tuple[KernelFit, ...] = ()
    """Calibrated kernel families: the device's own, then those of devices like it for what it has none of."""
    measured: tuple[MeasuredKernels, ...] = ()
    """Timings of a user's own, which take precedence over the model inside their hull."""

    @property
    def reference_flops_per_s(self) -> float:
        """The fixed peak that MFU is measured against: the dense bf16 matrix rate, whatever format a mapping uses."""
        return self.matrix_flops_per_s["bf16"]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested and embedded in bundles."""
        document: dict[str, Any] = json.loads(canonical_json(self._record))
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> HardwareSpec:
        """Return the spec of a JSON form made by `to_document`."""
        fields = dict(document)
        fields["link"], fields["host"] = LinkSpec(**fields["link"]), HostCosts(**fields["host"])
        fields["kernels"] = tuple(
            KernelFit(**{**entry, "fit": FamilyCalibration.from_document(entry["fit"])}) for entry in fields.get("kernels", ())
        )
        fields["measured"] = tuple(MeasuredKernels(**entry) for entry in fields.get("measured", ()))
        if "spatial" in fields:
            fields["spatial"] = SpatialSpec.from_document(fields["spatial"])
        if "power" in fields:
            fields["power"] = PowerSpec(**fields["power"])
        return cls(**fields)

    @cached_property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self._record)

    @property
    def _record(self) -> dict[str, Any]:
        """The fields without those that say nothing, so that what a device lacks does not change its digest; kernels are not copied."""
        record: dict[str, Any] = _stated(self)
        return record if self.measured else {key: value for key, value in record.items() if key != "measured"}


def _stated(value: Any) -> Any:
    """Return a record or dictionary as a dictionary without what is None; anything else as it is."""
    entries = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else value
    return {key: _stated(entry) for key, entry in entries.items() if entry is not None} if isinstance(entries, dict) else value
