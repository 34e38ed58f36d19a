"""Everything beside products on a device with systolic arrays: its vector unit."""

from __future__ import annotations

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.spatial.formats import spatial_of
from replay.tiling.terms import Array, Terms


def spatial_stream_terms(device: HardwareSpec, moved_bytes: Array, operations: Array) -> Terms:
    """Return the terms [rows] of kernels that read and write `moved_bytes` and do `operations` on the vector unit: a roofline.

    Element-wise operations, norms, softmax, exponentials. What moves passes a buffer once in each direction of device memory: the
    results' if the device has one, else the shared one. The terms join with `choice.overlap_exponent`.

    Raises:
        SpecError: the device has no arrays.
    """
    spatial = spatial_of(device)
    moved, work = np.broadcast_arrays(np.asarray(moved_bytes, dtype=np.float64), np.asarray(operations, dtype=np.float64), np.ones(1))[:2]
    compute_s = work / device.vector_flops_per_s
    buffer = spatial.buffers.get("outputs") or spatial.buffers["shared"]
    if buffer.bytes_per_s is not None:
        compute_s = np.maximum(compute_s, 2.0 * moved / buffer.bytes_per_s)
    floor, nothing = np.full(len(moved), spatial.kernel_floor_s), np.zeros(len(moved))
    return Terms(
        compute_s=compute_s,
        memory_s=moved / (spatial.memory_efficiency_ratio * device.memory_bytes_per_s),
        launch_s=floor if spatial.double_buffered else nothing,
        sync_s=nothing if spatial.double_buffered else floor,
        bytes=moved,
    )
