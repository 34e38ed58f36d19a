"""HardwareSpec: a described accelerator, each figure with its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from replay.provenance import digest_document


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCalibration:
    """Parameters of the GEMM model, fitted on measured kernels of the device or carried over (`source` says which)."""

    floor_s: float
    compute_efficiency_ratio: float
    memory_efficiency_ratio: float
    step_latency_s: float
    """Latency of one 64-deep step over the reduction dimension when a unit holds a single tile."""
    overlap_exponent: float
    """p of the p-norm that joins execution and memory time (infinity = the larger one)."""
    split_combine_s: float
    wave_smoothness_ratio: float
    """Share of the wave count that is rounded up (1 = hard waves)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCalibration:
    """Parameters of the prefill and decode attention models."""

    decode_floor_s: float
    decode_memory_efficiency_ratio: float
    decode_combine_s: float
    prefill_floor_s: float
    prefill_compute_efficiency_ratio: float


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

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> SpatialSpec:
        """Return the spec of a JSON form; figures that nobody publishes may be absent."""
        fields = {**document, "dataflows": tuple(document["dataflows"]), "mac_energy_j": dict(document.get("mac_energy_j") or {})}
        fields["buffers"] = {name: BufferSpec(**buffer) for name, buffer in document["buffers"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    gemm: GemmCalibration
    attention: AttentionCalibration
    elementwise_floor_s: float
    elementwise_memory_efficiency_ratio: float
    calibration: str
    """`calibrated` where the fitted parameters come from this device's kernels, else `datasheet`."""
    sources: dict[str, str]
    spatial: SpatialSpec | None = None
    """Systolic arrays, where the device multiplies on such."""

    @property
    def reference_flops_per_s(self) -> float:
        """The fixed peak that MFU is measured against: the dense bf16 matrix rate, whatever format a mapping uses."""
        return self.matrix_flops_per_s["bf16"]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested and embedded in bundles."""
        return _stated(asdict(self))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> HardwareSpec:
        """Return the spec of a JSON form made by `to_document`."""
        fields = dict(document)
        nested = {"link": LinkSpec, "host": HostCosts, "gemm": GemmCalibration, "attention": AttentionCalibration}
        for key, record in nested.items():
            fields[key] = record(**fields[key])
        if "spatial" in fields:
            fields["spatial"] = SpatialSpec.from_document(fields["spatial"])
        return cls(**fields)

    @property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self.to_document())


def _stated(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what is None, so that a figure a device lacks does not change its digest."""
    kept = {key: list(value) if isinstance(value, tuple) else value for key, value in document.items() if value is not None}
    return {key: _stated(value) if isinstance(value, dict) else value for key, value in kept.items()}
