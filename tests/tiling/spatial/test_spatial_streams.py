"""Element-wise kernels, norms, softmax and exponentials beside the arrays: a roofline of vector unit, buffer and device memory."""

from dataclasses import replace

import numpy as np
import pytest

from replay.errors import SpecError
from replay.specs.hardware import BufferSpec
from replay.tiling.spatial.choice import overlap_exponent
from replay.tiling.spatial.stream import spatial_stream_terms
from tests.tiling.spatial.devices import PLENTY, shared, small_device

DEVICE = replace(small_device(memory_bytes_per_s=1e9, kernel_floor_s=2e-6), vector_flops_per_s=4e9)


def joined_s(device, moved, operations):
    return float(spatial_stream_terms(device, np.array([moved]), np.array([operations])).time_s(overlap_exponent(device))[0])


def test_the_longer_of_vector_unit_and_memory_counts_with_double_buffers():
    assert joined_s(DEVICE, 8e3, 4e3) == pytest.approx(2e-6 + 8e-6)
    assert joined_s(DEVICE, 8e3, 40e3) == pytest.approx(2e-6 + 10e-6)


def test_both_count_without_and_the_floor_once():
    plain = replace(DEVICE, spatial=replace(DEVICE.spatial, double_buffered=False))
    assert joined_s(plain, 8e3, 40e3) == pytest.approx(2e-6 + 8e-6 + 10e-6)


def test_memory_moves_at_the_share_that_streams_reach():
    half = replace(DEVICE, spatial=replace(DEVICE.spatial, memory_efficiency_ratio=0.5))
    assert joined_s(half, 8e3, 0.0) == pytest.approx(2e-6 + 16e-6)


@pytest.mark.parametrize(
    "buffers",
    [shared(PLENTY, banks_count=1, bank_bytes_per_s=1e9), {"outputs": BufferSpec(bytes=1e3, banks_count=2, bank_bytes_per_s=5e8)}],
)
def test_every_byte_passes_the_buffer_in_and_out(buffers):
    device = replace(DEVICE, spatial=replace(DEVICE.spatial, buffers=buffers))
    terms = spatial_stream_terms(device, np.array([8e3, 16e3]), np.array([0.0]))
    assert terms.compute_s == pytest.approx([16e-6, 32e-6])
    assert terms.bytes == pytest.approx([8e3, 16e3])


def test_a_device_without_arrays_is_refused():
    with pytest.raises(SpecError, match=r"no table \[spatial\]"):
        spatial_stream_terms(replace(DEVICE, spatial=None), np.array([1.0]), np.array([1.0]))
