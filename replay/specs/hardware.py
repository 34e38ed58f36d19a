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

    @property
    def reference_flops_per_s(self) -> float:
        """The fixed peak that MFU is measured against: the dense bf16 matrix rate, whatever format a mapping uses."""
        return self.matrix_flops_per_s["bf16"]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested and embedded in bundles."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> HardwareSpec:
        """Return the spec of a JSON form made by `to_document`."""
        fields = dict(document)
        nested = {"link": LinkSpec, "host": HostCosts, "gemm": GemmCalibration, "attention": AttentionCalibration}
        for key, record in nested.items():
            fields[key] = record(**fields[key])
        return cls(**fields)

    @property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self.to_document())
