"""Laws of the cost model, whatever the mapping."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.catalog.hardware import hardware_names, read_hardware
from replay.lowering.select import plan_kernels
from replay.tiling.schedule import schedule
from replay.tiling.terms import Terms
from tests.models import LLAMA_8B, MIXTRAL, mapping

SMALL = ("[batching]", "max_batched_tokens = 64", "max_running = 32")
TILES = st.sampled_from(["auto", "[16, 32, 64]", "[64, 64, 32]", "[128, 128, 64]", "[256, 64, 64]"])


def table(device, *lines, model=LLAMA_8B):
    spec = mapping(*SMALL, *lines)
    return schedule(plan_kernels(model, device, spec), model, device, spec).table


def times(terms, kernel, exponent):
    columns = {name: np.asarray(terms[f"{kernel}.{name}"]) for name in ("compute_s", "memory_s", "launch_s", "sync_s", "bytes")}
    return Terms(**columns).time_s(exponent)


def all_times(step_table):
    """Times of every kernel whose terms are tabulated by rows, joined."""
    by_axis = {
        "tokens": step_table.token_terms,
        "sequences": step_table.sequence_terms,
        "decode_attention": step_table.decode_terms,
        "prefill_attention": step_table.prefill_terms,
    }
    rows = step_table.kernels.to_pylist()
    return np.concatenate([times(by_axis[r["axis"]], r["kernel"], r["overlap_exponent"]) * r["calls_count"] for r in rows])


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from(hardware_names()), tile=TILES, more=st.floats(1.01, 4.0))
def test_more_bandwidth_makes_no_cost_larger(name, tile, more):
    device = read_hardware(name)
    line = f"tile = {tile}" if tile != "auto" else 'tile = "auto"'
    faster = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * more)
    assert (all_times(table(faster, "[gemm]", line)) <= all_times(table(device, "[gemm]", line)) * (1 + 1e-12)).all()


@settings(max_examples=8, deadline=None)
@given(name=st.sampled_from(hardware_names()), more=st.floats(1.01, 4.0))
def test_a_higher_matrix_rate_makes_no_cost_larger(name, more):
    device = read_hardware(name)
    faster = replace(device, matrix_flops_per_s={key: rate * more for key, rate in device.matrix_flops_per_s.items()})
    assert (all_times(table(faster)) <= all_times(table(device)) * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL])
def test_no_product_beats_the_datasheet_bound(name, model):
    """Never faster than the bytes of the weights over the memory rate, or the FLOPs over the peak."""
    device = read_hardware(name)
    found = table(device, model=model)
    for row in found.kernels.to_pylist():
        if row["axis"] != "tokens" or row["flops_per_token"] == 0:
            continue
        time_s = times(found.token_terms, row["kernel"], row["overlap_exponent"])[1:65]
        tokens = np.arange(1, 65)
        by_flops = row["flops_per_token"] / row["calls_count"] * tokens / device.matrix_flops_per_s["bf16"]
        by_bytes = np.maximum(np.asarray(found.token_terms[f"{row['kernel']}.bytes"])[1:65] - device.cache_bytes, 0.0)
        bound_s = np.maximum(by_flops, by_bytes / device.memory_bytes_per_s)
        assert (time_s >= bound_s * (1 - 1e-12)).all(), row["kernel"]


@pytest.mark.parametrize("name", hardware_names())
def test_every_term_of_every_device_is_finite_and_not_negative(name):
    found = table(read_hardware(name), model=MIXTRAL)
    for terms in (found.token_terms, found.sequence_terms, found.decode_terms, found.prefill_terms):
        for column in terms.column_names:
            values = np.asarray(terms[column], dtype=float)
            assert np.isfinite(values).all(), column
            assert (values >= 0).all(), column


def test_row_zero_costs_nothing():
    found = table(read_hardware("a100-sxm-80gb"))
    for terms in (found.token_terms, found.sequence_terms):
        for column in terms.column_names:
            assert np.asarray(terms[column])[0] == 0
