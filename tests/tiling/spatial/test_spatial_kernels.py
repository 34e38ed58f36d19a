"""Serving kernels on systolic arrays: hand-worked folds, laws, and that nothing is priced by another device's kernels."""

from dataclasses import replace

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import AttentionShape
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import compile_mapping
from replay.tiling.spatial_kernels import SOFTMAX_OPERATIONS, SpatialAttention
from tests.models import LLAMA_8B, MIXTRAL, mapping
from tests.tiling.spatial.devices import small_device

SMALL = ("[batching]", "max_batched_tokens = 64", "max_running = 16")


def attention(device, phase, *, query_heads=4, kv_heads=2, head_size=8, window=np.inf):
    shape = AttentionShape(query_heads=query_heads, kv_heads=kv_heads, head_size=head_size, value_size=head_size)
    kernel = Kernel(id=phase, layer_type="attention", ops=(), shape=shape, axis=f"{phase}_attention", calls_count=1)
    return SpatialAttention(kernel=kernel, device=device, window=window)


def row(value):
    return np.array([float(value)])


def test_decode_attention_takes_a_fold_for_every_array_of_keys_and_of_values():
    # 4 x 4 cells at 1 GHz; per pair of queries of a head of 8 and 16 keys: 2 x 4 folds of keys, 4 x 2 of values, each 2 + 4 + 4 cycles.
    cost = attention(small_device(), "decode").decode(row(3), row(16))
    softmax_s = 3 * 4 * 16 * SOFTMAX_OPERATIONS / small_device().vector_flops_per_s
    assert cost.terms.compute_s[0] == pytest.approx(3 * 2 * (8 + 8) * 10 / 1e9 + softmax_s)
    assert cost.terms.bytes[0] == 3 * 16 * 2 * 16 * 2 + 3 * 4 * 16 * 2


def test_folds_that_overlap_wait_for_the_slower_of_loading_and_streaming():
    cost = attention(small_device(folds_overlap=True), "decode").decode(row(3), row(16))
    softmax_s = 3 * 4 * 16 * SOFTMAX_OPERATIONS / small_device().vector_flops_per_s
    assert cost.terms.compute_s[0] == pytest.approx(3 * 2 * (8 + 8) * 4 / 1e9 + softmax_s)


def test_a_window_bounds_what_a_query_sees():
    whole, windowed = (attention(small_device(), "decode", window=window).decode(row(3), row(160)) for window in (np.inf, 16.0))
    assert windowed.time_s < whole.time_s
    assert windowed.time_s == attention(small_device(), "decode").decode(row(3), row(16)).time_s


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL])
def test_a_serving_step_on_a_tpu_is_priced_by_its_arrays_and_never_beats_its_peaks(model):
    device, spec = read_hardware("tpu-v5e"), mapping(*SMALL)
    compiled = compile_mapping(model, device, spec)
    assert set(compiled.table.kernels["source"].to_pylist()) == {"datasheet"}
    assert set(compiled.table.kernels["stack"].to_pylist()) == {""}
    steps = (StepShape(name="decode", decode_sequences=16, context_tokens=512), StepShape(name="prefill", prefill_tokens=64))
    for found in mapping_sheet(compiled, device, spec, steps).to_pylist():
        assert found["time_s"] >= found["flops"] / device.matrix_flops_per_s["bf16"] * (1 - 1e-12), found["kernel"]
        assert found["time_s"] >= found["bytes"] / device.memory_bytes_per_s * (1 - 1e-12), found["kernel"]


def test_more_bandwidth_and_a_faster_clock_make_no_step_slower():
    device = read_hardware("tpu-v5e")
    base = compile_mapping(LLAMA_8B, device, mapping(*SMALL)).table
    rates = {name: rate * 2 for name, rate in device.matrix_flops_per_s.items()}
    for faster in (replace(device, memory_bytes_per_s=2e12), replace(device, clock_hz=2 * device.clock_hz, matrix_flops_per_s=rates)):
        table = compile_mapping(LLAMA_8B, faster, mapping(*SMALL)).table
        for name in ("token_terms", "sequence_terms", "decode_terms", "prefill_terms"):
            now, then = getattr(table, name), getattr(base, name)
            for column in now.column_names:
                if column.endswith(("compute_s", "memory_s")):
                    assert (np.asarray(now[column]) <= np.asarray(then[column]) * (1 + 1e-9)).all(), column


def test_pinned_tiles_and_splits_are_reported_as_not_taken():
    device = read_hardware("tpu-v5e")
    compiled = compile_mapping(
        LLAMA_8B, device, mapping(*SMALL, "[gemm]", "tile = [64, 64, 64]", "split_k = 4", "[attention]", "tile = [64, 64]")
    )
    reasons = {decision.knob.split("@")[0]: decision.reason for decision in compiled.decisions if decision.reason}
    assert set(reasons) == {"gemm.tile", "gemm.split_k", "attention.tile"}
    assert all("systolic arrays" in reason for reason in reasons.values())
