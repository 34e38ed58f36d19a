"""Kernels bound by movement: element-wise streams and collectives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel
from replay.specs.hardware import HardwareSpec
from replay.tiling.terms import Terms


def elementwise_terms(kernel: Kernel, rows: npt.NDArray[np.int64], hardware: HardwareSpec) -> Terms:
    """Return the terms [rows] of a kernel that reads and writes each element once: floor plus bytes over the DRAM rate."""
    shape = kernel.elementwise
    moved = rows * (shape.read_elements + shape.written_elements) * shape.element_bytes
    rate = hardware.elementwise_memory_efficiency_ratio * hardware.memory_bytes_per_s
    nothing = np.zeros(len(rows))
    return Terms(
        compute_s=nothing, memory_s=moved / rate, launch_s=np.full(len(rows), hardware.elementwise_floor_s), sync_s=nothing, bytes=moved
    )


def collective_terms(kernel: Kernel, rows: npt.NDArray[np.int64], one_shot_max_bytes: int, hardware: HardwareSpec) -> Terms:
    """Return the terms [rows] of a collective over the node's links, all of it in `sync_s`.

    An all-reduce of b bytes over r ranks takes one latency and (r-1) b bytes per rank when every rank reads all others
    (one-shot), or two latencies and 2 (r-1)/r b bytes as a pipelined ring (Thakur, Rabenseifner and Gropp 2005, sections 3
    and 4); an all-gather of b bytes a rank takes one latency and (r-1) b bytes.
    """
    shape = kernel.collective
    message = rows * shape.elements * FORMAT_BYTES["bf16"]
    others, link = shape.ranks - 1, hardware.link
    one_shot = link.latency_s + others * message / link.bytes_per_s
    ring = 2 * link.latency_s + 2 * others / shape.ranks * message / link.bytes_per_s
    sync_s = one_shot if shape.kind == "all_gather" else np.where(message <= one_shot_max_bytes, one_shot, ring)
    nothing = np.zeros(len(rows))
    floor = np.full(len(rows), hardware.elementwise_floor_s)
    return Terms(compute_s=nothing, memory_s=nothing, launch_s=floor, sync_s=np.asarray(sync_s), bytes=2.0 * message)
