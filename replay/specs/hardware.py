"""HardwareSpec: a described accelerator, each figure with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
        document: dict[str, Any] = json.loads(canonical_json(self))
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
        return cls(**fields)

    @cached_property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self)
