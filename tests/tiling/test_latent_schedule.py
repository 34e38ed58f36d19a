"""DeepSeek-V3 scheduled: cache, FLOPs and prices of latent attention worked by hand, and a replay end to end."""

import numpy as np
import pyarrow as pa
import pytest

from replay.catalog.hardware import read_hardware
from replay.ingress.trace import build_trace
from replay.lowering.select import plan_kernels
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import run
from replay.provenance import TraceProvenance, digest_bytes
from replay.tiling.schedule import schedule
from tests.models import DEEPSEEK_V3, mapping, round_hardware

SMALL = ("[batching]", "max_batched_tokens = 512", "max_running = 32")
WEIGHTS = 61 * (7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168)  # attention
WEIGHTS += 3 * 3 * 7168 * 18432 + 58 * (9 * 3 * 7168 * 2048 + 7168 * 256)  # dense layers; eight experts, the shared one, the router


def compiled(*lines, ranks=8, device=None):
    device, spec = device or round_hardware(), mapping(*SMALL, *lines, "[parallelism]", f"tensor = {ranks}")
    return schedule(plan_kernels(DEEPSEEK_V3, device, spec), DEEPSEEK_V3, device, spec), device, spec


def sheet(step, *lines, **changes):
    return {row["kernel"]: row for row in mapping_sheet(*compiled(*lines, **changes), (step,)).to_pylist()}


@pytest.mark.parametrize("ranks", [1, 8, 16])
def test_every_rank_stores_576_values_of_a_token_and_layer(ranks):
    assert compiled(ranks=ranks)[0].table.pool.block_bytes / 16 == 70_272
    assert compiled("[formats]", 'kv = "fp8"', ranks=ranks)[0].table.pool.block_bytes / 16 == 70_272 / 2


@pytest.mark.parametrize(("name", "ranks"), [("h200-sxm", 8), ("b200-sxm", 8), ("h100-sxm", 16), ("mi300x", 8)])
def test_the_checkpoint_fits_accelerators_that_serve_it_and_leaves_a_cache(name, ranks):
    pool = compiled(ranks=ranks, device=read_hardware(name))[0].table.pool
    assert 671e9 / ranks < pool.weights_bytes < 1.05 * 671e9 / ranks
    assert pool.blocks_count * pool.block_tokens > 163_840


def test_flops_of_a_token_are_two_per_active_weight_in_either_form():
    rows = compiled()[0].table.kernels.to_pylist()
    by_axis = {axis: sum(r["flops_per_token"] for r in rows if r["axis"] == axis) for axis in {r["axis"] for r in rows}}
    assert by_axis["prefill_attention"] == by_axis["decode_attention"] == 2 * 61 * 512 * 128 * 256
    assert by_axis["tokens"] + by_axis["decode_attention"] == 2 * WEIGHTS
    assert sum(r["flops_per_sequence"] for r in rows) == 2 * 7168 * 129280


def test_flops_of_a_pair_are_two_per_head_and_channel_of_key_and_value():
    rows = {row["kernel"]: row["flops_per_pair"] for row in compiled()[0].table.kernels.to_pylist()}
    assert rows["attention_prefill"] == 61 * 2 * 128 * (192 + 128)
    assert rows["attention_decode"] == 61 * 2 * 128 * (576 + 512)


def test_a_step_counts_the_flops_of_its_own_form_only():
    decode = sheet(StepShape(name="decode", decode_sequences=8, context_tokens=1000))
    assert sum(row["flops"] for row in decode.values()) == pytest.approx(8 * (2 * WEIGHTS + 2 * 7168 * 129280 + 1000 * 61 * 2 * 128 * 1088))
    prefill = sheet(StepShape(name="prefill", prefill_tokens=300))
    assert not {"q_absorb", "attention_decode", "v_absorb"} & prefill.keys()
    assert prefill["kv_b_proj"]["flops"] == 300 * 2 * 61 * 512 * 128 * 256


def test_decoding_reads_each_latent_once_for_all_heads():
    row = sheet(StepShape(name="decode", decode_sequences=16, context_tokens=1024))["attention_decode"]
    assert row["bytes"] == pytest.approx(61 * 16 * (1024 * 576 * 2 + 16 * (576 + 512) * 2), rel=1e-9)  # latents; queries and results
    assert row["tile"] == "16x64"


def test_absorbed_products_read_inputs_of_every_head_and_weights_once():
    rows = sheet(StepShape(name="decode", decode_sequences=16, context_tokens=1024), device=round_hardware(cache_bytes=1.0))
    one = 16 * 512 * 128 + 16 * 16 * 128 + 16 * 16 * 512  # weights of 16 heads, inputs and results of 16 rows
    for name in ("q_absorb", "v_absorb"):
        assert rows[name]["bytes"] == pytest.approx(61 * 2 * one, rel=1e-6)
        assert rows[name]["weights_format"] == "bf16"


def test_prompts_expand_cached_latents_too_and_decoding_none():
    table = compiled()[0].table
    grid = table.prefill_terms["kv_b_proj.compute_s"].to_numpy().reshape(len(table.token_knots), -1)
    keys, last = table.keys_knots, grid[-1]  # 512 tokens
    assert last[0] == last[1]  # prompts of a token or two: as many keys as tokens
    many, few = len(keys) - 1, int(np.searchsorted(keys, 10_000))
    assert last[many] / last[few] == pytest.approx((keys[many] + 256) / (keys[few] + 256), rel=0.02)
    decode = table.decode_terms["q_absorb.compute_s"].to_numpy().reshape(-1, len(table.context_knots))
    assert (decode == decode[:, :1]).all()
    assert decode[-1, 0] > decode[1, 0] > decode[0, 0] == 0


def test_settings_of_rows_reach_the_products_on_the_axes_of_attention():
    lines = ("[gemm]", '"tile@qkv.prefill[rows<=128]" = [64, 32, 64]', "[layout]", 'activations = "column_major"')
    rows = [sheet(StepShape(name="prefill", prefill_tokens=tokens), *lines) for tokens in (128, 512)]
    assert rows[0]["kv_b_proj"]["tile"] == "64x32x64"
    assert rows[1]["kv_b_proj"]["tile"] != "64x32x64"
    assert rows[0]["transpose_kv_b_proj"]["time_s"] < rows[1]["transpose_kv_b_proj"]["time_s"]


def test_what_is_not_timed_says_so():
    for row in compiled(device=read_hardware("h200-sxm"))[0].table.kernels.to_pylist():
        if row["axis"] in ("prefill_attention", "decode_attention"):
            assert row["source"] == "datasheet"
        if row["kernel"] in ("attention_prefill", "attention_decode"):
            assert row["error_ratio"] == 0.5


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h200-sxm", "b200-sxm", "tpu-v5e"])
def test_every_term_is_finite_and_not_negative(name):
    table = compiled(device=read_hardware(name))[0].table
    for terms in (table.token_terms, table.sequence_terms, table.decode_terms, table.prefill_terms):
        for column in terms.column_names:
            values = np.asarray(terms[column], dtype=float)
            assert np.isfinite(values).all(), column
            assert (values >= 0).all(), column


@pytest.mark.parametrize("name", ["h200-sxm", "b200-sxm"])
def test_a_small_trace_is_served_to_its_end(name):
    count = 20
    requests = {
        "request_id": [f"r{index}" for index in range(count)],
        "arrival_s": np.arange(count) * 0.2,
        "prompt_tokens": np.full(count, 700),
        "output_tokens": np.full(count, 20),
    }
    provenance = TraceProvenance(kind="synthetic", origin="test", source_digest=digest_bytes(b""), rows_read=count, rows_kept=count)
    trace = build_trace(name="small", requests=pa.table(requests), provenance=provenance)
    done = run(trace, DEEPSEEK_V3, read_hardware(name), mapping(*SMALL, "[parallelism]", "tensor = 8"), seed=1)
    assert set(done.requests["status"].to_pylist()) == {"completed"}
    flops = sum(done.layers["flops"].to_pylist())
    tokens, pairs = count * (700 + 19), count * (700 * 701 / 2)
    decode_pairs = count * sum(range(701, 720))
    expected = tokens * 2 * WEIGHTS + count * 20 * 2 * 7168 * 129280 + 61 * 2 * 128 * (pairs * 320 + decode_pairs * 1088)
    assert flops == pytest.approx(expected, rel=1e-9)
