from dataclasses import replace

import numpy as np
import pytest

from replay.errors import SpecError
from replay.lowering.select import plan_kernels
from replay.mapping_sheet import SHEET_SCHEMA, StepShape, mapping_sheet
from replay.tiling.families.gemm_formats import gemm_format
from replay.tiling.families.gemm_parameters import gemm_parameters
from replay.tiling.families.gemm_paths import gemm_paths
from replay.tiling.schedule import schedule
from replay.tiling.tabulate import context_knots, keys_knots, row_knots
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware

EXPONENT = next(p.start for p in gemm_parameters(gemm_format("bf16"), gemm_paths("bf16", "", 1e6)) if p.name == "overlap_exponent")
DECODE = StepShape(name="decode", decode_sequences=16, context_tokens=1000)
PREFILL = StepShape(name="prefill", prefill_tokens=512)


def compiled(*lines, model=LLAMA_8B, **changes):
    device, spec = round_hardware(**changes), mapping(*lines)
    return schedule(plan_kernels(model, device, spec), model, device, spec)


def step_time(*lines, step=DECODE, model=LLAMA_8B, **changes):
    device, spec = round_hardware(**changes), mapping(*lines)
    done = schedule(plan_kernels(model, device, spec), model, device, spec)
    return sum(mapping_sheet(done, device, spec, (step,))["time_s"].to_pylist())


def test_decode_attention_reads_each_key_and_value_once():
    # 16 sequences x 1024 keys x 8 heads x 128 x 2 (K and V) x 2 bytes x 32 layers, beside queries and outputs.
    sheet = mapping_sheet(compiled(), round_hardware(), mapping(), (replace(DECODE, context_tokens=1024),)).to_pylist()
    row = next(row for row in sheet if row["kernel"] == "attention_decode")
    assert row["bytes"] == pytest.approx(16 * 1024 * 8 * 128 * 2 * 2 * 32, rel=0.01)


def test_model_flops_of_a_step_are_two_per_parameter_and_token_plus_attention():
    sheet = mapping_sheet(compiled(), round_hardware(), mapping(), (PREFILL,)).to_pylist()
    products = 2 * 512 * 32 * (4096 * (48 * 128 + 4096) + 3 * 4096 * 14336) + 2 * 4096 * 128256
    pairs = 512 * 513 / 2
    assert sum(row["flops"] for row in sheet) == pytest.approx(products + 4 * 32 * 128 * pairs * 32)


def test_pool_holds_what_weights_and_work_space_leave():
    pool = compiled().table.pool
    assert pool.weights_bytes == pytest.approx(16.06e9, rel=0.001)
    assert pool.block_bytes == 16 * 2 * 8 * 128 * 2 * 32
    assert pool.blocks_count == int((0.9 * 80e9 - pool.weights_bytes - pool.workspace_bytes) // pool.block_bytes)


def test_a_model_larger_than_the_memory_leaves_no_blocks():
    assert compiled(model=MIXTRAL).table.pool.blocks_count == 0


def test_weights_on_the_host_free_the_device_and_cost_the_link():
    there, here = compiled("[placement]", '"weights@mlp" = "host"').table, compiled().table
    mlp_bytes = 3 * 4096 * 14336 * 2 * 32
    assert here.pool.weights_bytes - there.pool.weights_bytes == mlp_bytes
    extra = np.asarray(there.token_terms["down_proj.memory_s"])[1] - np.asarray(here.token_terms["down_proj.memory_s"])[1]
    assert extra == pytest.approx(4096 * 14336 * 2 / 20e9)


def test_captured_sizes_cover_the_steps_the_mode_names():
    table = compiled("[graph]", 'mode = "decode"', "sizes = [1, 4, 8]").table.capture.to_pydict()
    found = {(p, t): c for p, t, c in zip(table["phase"], table["tokens"], table["captured_tokens"], strict=True)}
    assert [found[0, tokens] for tokens in (0, 1, 2, 4, 5, 8, 9)] == [0, 1, 4, 4, 8, 8, 0]
    assert {found[1, tokens] for tokens in range(2049)} == {0}


def test_a_tile_scoped_to_decode_rows_leaves_prefill_alone():
    scoped = compiled("[gemm]", '"tile@mlp.decode[rows<=16]" = [256, 32, 64]').table.token_terms
    free = compiled().table.token_terms
    rows = 2049
    column = "gate_up.compute_s"
    assert (np.asarray(scoped[column])[1:17] != np.asarray(free[column])[1:17]).any()
    assert (np.asarray(scoped[column])[17:rows] == np.asarray(free[column])[17:rows]).all()
    assert (np.asarray(scoped[column])[rows:] == np.asarray(free[column])[rows:]).all()


def test_a_tile_that_does_not_fit_is_reported_as_requested_and_effective():
    decisions = [d for d in compiled("[gemm]", "tile = [512, 512, 64]").decisions if d.stage == "tiling"]
    assert {d.requested for d in decisions} == {"512x512x64"}
    assert {d.effective for d in decisions} == {"the default tile"}
    assert all("bytes of unit memory" in d.reason for d in decisions)


def test_unfused_attention_costs_more_the_longer_the_context():
    lines = ("[attention]", 'backend = "unfused"')
    extra = [step_time(*lines, step=step) - step_time(step=step) for step in (PREFILL, replace(PREFILL, prefill_tokens=2048))]
    assert 0 < extra[0] < extra[1] / 8


def test_tensor_parallel_ranks_shorten_products_and_add_collectives():
    one, two = (compiled("[parallelism]", f"tensor = {ranks}").table for ranks in (1, 2))
    columns = [np.asarray(table.token_terms["down_proj.bytes"])[1] for table in (one, two)]
    assert columns[1] == pytest.approx(columns[0] / 2, rel=0.01)
    assert "mlp_all_reduce" in two.kernels["kernel"].to_pylist()
    assert two.reference_flops_per_s == 2 * one.reference_flops_per_s


def test_row_knots_hold_both_ends_and_rise():
    for first, last in ((1, 1), (1, 2), (1, 8192), (17, 2048), (300, 301)):
        knots = row_knots(first, last)
        assert (knots[0], knots[-1]) == (first, last)
        assert (np.diff(knots) > 0).all()
        assert len(row_knots(first, last, dense=10**6)) == last - first + 1
    assert (keys_knots(131072)[0], keys_knots(131072)[-1]) == (1, 131072)


def test_context_knots_start_at_zero_and_pass_the_longest_context():
    knots = context_knots(131072)
    assert knots[0] == 0
    assert knots[-1] >= 131072
    assert (np.diff(knots) > 0).all()


def test_the_sheet_names_every_kernel_of_the_step_and_its_shares_add_up():
    sheet = mapping_sheet(compiled(), round_hardware(), mapping(), (DECODE, PREFILL))
    assert sheet.schema.equals(SHEET_SCHEMA)
    for step in ("decode", "prefill"):
        rows = [row for row in sheet.to_pylist() if row["step"] == step]
        assert sum(row["share_ratio"] for row in rows) == pytest.approx(1)
        assert all(row["rows_count"] > 0 for row in rows)


@pytest.mark.parametrize("ranks", [2, 8, 16, 32])
@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL])
def test_model_flops_do_not_depend_on_the_ranks(model, ranks):
    columns = ("flops_per_token", "flops_per_sequence", "flops_per_pair")
    one, many = (compiled("[parallelism]", f"tensor = {count}", model=model).table.kernels for count in (1, ranks))
    assert [sum(many[name].to_pylist()) for name in columns] == [sum(one[name].to_pylist()) for name in columns]


@pytest.mark.parametrize("split", [1, 4, 32])
def test_what_memory_costs_is_memory_time_and_nothing_else(split):
    """With infinite bandwidth only compute, floors and latencies are left: no traffic of a product hides in another term."""
    lines = ("[gemm]", "tile = [64, 64, 64]", f"split_k = {split}")
    device = round_hardware(memory_bytes_per_s=1e30)
    sheet = mapping_sheet(compiled(*lines, memory_bytes_per_s=1e30), device, mapping(*lines), (DECODE, PREFILL)).to_pylist()
    for row in sheet:
        if row["weights_format"]:
            assert row["time_s"] == pytest.approx(_joined(row), rel=1e-6), row["kernel"]
            assert row["memory_s"] < 1e-9 * row["time_s"]  # the rounding of `Terms.with_memory_after`


def _joined(row):
    execution_s, floor_s, p = row["compute_s"] + row["launch_s"], row["launch_s"], EXPONENT
    return (execution_s**p + floor_s**p) ** (1 / p) + row["sync_s"]


def test_a_split_finer_than_the_reduction_allows_is_reported():
    decisions = {d.knob: d for d in compiled("[gemm]", "split_k = 1000").decisions if d.knob.startswith("gemm.split_k")}
    assert decisions["gemm.split_k@qkv.decode"].effective == "32"
    assert "keep at least 128 of 4096" in decisions["gemm.split_k@qkv.decode"].reason
    assert not [knob for knob in decisions if knob.startswith("gemm.split_k@lm_head.prefill")]


def test_serving_limits_that_do_not_take_effect_are_reported():
    done = compiled("[batching]", "max_context_tokens = 9999999", "max_batched_tokens = 256", "[graph]", "sizes = [8, 512]")
    assert done.table.limits.max_context_tokens == LLAMA_8B.max_context_tokens
    reported = {d.knob: (d.effective, d.stage) for d in done.decisions if d.reason}
    assert reported == {"batching.max_context_tokens": ("131072", "execution"), "graph.sizes": ("sizes up to 256", "execution")}


def test_preferred_sizes_without_batches_of_that_size_are_reported():
    def reported(*lines):
        done = compiled("[batching]", "preferred_sizes = [4, 8]", *lines)
        return done.table.limits.preferred_sizes, [d.effective for d in done.decisions if d.knob == "batching.preferred_sizes"]

    assert reported('scheduler = "static"') == ((4, 8), [])
    assert reported('scheduler = "static"', "max_running = 7") == ((4,), ["(4,)"])
    assert reported()[1] == ["none"]


def test_swapping_costs_a_block_over_the_host_link_and_does_not_go_with_the_prefix_cache():
    pool = compiled("[kv]", 'preemption = "swap"').table.pool
    assert pool.block_swap_s == pool.block_bytes / round_hardware().host_link_bytes_per_s
    staged = compiled("[kv]", 'preemption = "swap"', "[parallelism]", "pipeline = 2").table.pool
    assert staged.block_bytes < pool.block_bytes
    assert staged.block_swap_s == pytest.approx(pool.block_swap_s, rel=1e-12)  # each stage moves its part when the step comes to it
    other = compiled("[kv]", 'preemption = "swap"', "prefix_cache = true", 'prefix_cache_formats = "16bit"', "[formats]", 'kv = "fp8"')
    assert not other.table.limits.prefix_cache  # it stays off with this format, and so is not in the way
    with pytest.raises(SpecError, match=r'kv\.preemption.*"swap" together with kv\.prefix_cache'):
        compiled("[kv]", 'preemption = "swap"', "prefix_cache = true")


def test_what_a_prefill_replica_sends_goes_over_the_link_between_accelerators_or_at_the_rate_that_is_asked_for():
    apart = compiled("[fleet]", "prefill_replicas = 2").table
    assert (apart.limits.prefill_replicas_count, apart.limits.all_replicas_count) == (2, 3)
    link, pool = round_hardware().link, apart.pool
    assert (pool.block_send_s, pool.send_latency_s) == (pool.block_bytes / link.bytes_per_s, link.latency_s)
    asked = compiled("[fleet]", "prefill_replicas = 2", "kv_link_bytes_per_s = 5e10").table.pool
    assert asked.block_send_s == pool.block_bytes / 5e10
    staged = compiled("[fleet]", "prefill_replicas = 2", "[parallelism]", "pipeline = 2").table.pool
    assert staged.block_send_s == pytest.approx(pool.block_send_s / 2)  # both stages send their half side by side
    together = compiled("[fleet]", "kv_link_bytes_per_s = 5e10")
    assert together.table.pool.block_send_s == 0.0
    assert [(d.requested, d.effective) for d in together.decisions if d.knob == "fleet.kv_link_bytes_per_s"] == [("50000000000.0", "none")]


def test_a_batch_that_runs_until_all_of_it_is_done_is_not_taken_apart():
    with pytest.raises(SpecError, match=r'batching\.scheduler.*"static" with fleet\.prefill_replicas = 1'):
        compiled("[batching]", 'scheduler = "static"', "[fleet]", "prefill_replicas = 1")


def test_a_step_launches_only_the_kernels_it_runs():
    # Per layer: qkv, rope, attention, o_proj, norm, gate_up, activation, down, norm = 9; once: embedding, norm, LM head, sampling.
    table = compiled().table
    assert table.launches_count == 9 * 32 + 4
    assert table.prefill_launches_count == 32
    unfused = compiled("[attention]", 'backend = "unfused"').table
    assert unfused.launches_count == 11 * 32 + 4
    assert unfused.prefill_launches_count == 3 * 32
