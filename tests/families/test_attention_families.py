"""Prefill and decode attention: cases worked on paper for a round device, laws over drawn shapes, and which kernel splits how."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.catalog.hardware import read_hardware
from replay.tiling.families import decode_paths as paths
from replay.tiling.families.decode_attention import SPLITS, DecodeAttention, decode_shapes
from replay.tiling.families.prefill_attention import FLASH2, FLASH3, TRTLLM_GEN, PrefillAttention, PrefillPath, prefill_path, prefill_shapes
from tests.models import round_hardware

# Decode: one item walks blocks of 128 keys of 2 x 128 x 2 bytes each: 65,536 bytes, 65.536 us at 1 byte a nanosecond.
PLAIN_PATH = paths.DecodePath(name="plain", block_keys=(128, 128, 128), splits=paths.FLASHINFER.splits, part_keys=128.0)
DECODE = DecodeAttention(path=PLAIN_PATH, kv_bytes=2.0, planned_units=100)
DECODE_PLAIN = {
    "floor_s": 0.0, "item_s": 0.0, "row_s": 0.0, "unit_bytes_per_clock": 1.0, "dram_efficiency_ratio": 1.0, "cache_speed_ratio": 4.0,
    "cache_knee_ratio": 1.0, "overlap_exponent": float("inf"), "combine_s": 0.0, "combine_part_s": 0.0, "wave_smoothness_ratio": 1.0,
    "copy_s": 0.0, "sequence_s": 0.0,
}  # fmt: skip
STEP_S = 65536 / 1e9
NO_MEMORY = {"memory_bytes_per_s": 1e30}
SHAPE = {"sequences": 1.0, "context_tokens": 128.0, "query_heads": 1.0, "kv_heads": 1.0, "head_size": 128.0}

# Prefill: a tile of 128 x 64 pairs; 4 x 128 FLOPs a pair at 1 TFLOP/s a unit are 4.194304 us, an exponential a clock 8.192 us.
PREFILL_PATH = PrefillPath(name="plain", tile_rows=128.0, block_keys=64.0, packs_group=False)
PREFILL = PrefillAttention(path=PREFILL_PATH)
PREFILL_PLAIN = {
    "floor_s": 0.0, "tile_s": 0.0, "matrix_efficiency_ratio": 1.0, "exponentials_per_clock": 1.0, "softmax_overlap_exponent": 1.0,
    "balance_exponent": 1.0, "dram_efficiency_ratio": 1.0, "cache_speed_ratio": 4.0, "write_passes": 0.0, "overlap_exponent": float("inf"),
}  # fmt: skip
BLOCK_S = 128 * 64 * 4 * 128 / 1e12 + 128 * 64 / 1e9
PROMPT = {"sequences": 1.0, "prompt_tokens": 128.0, "query_heads": 1.0, "kv_heads": 1.0, "head_size": 128.0}


def decode_s(device=None, parameters=None, family=DECODE, **changes):
    shapes = decode_shapes({name: np.array([value]) for name, value in {**SHAPE, **changes}.items()})
    return float(family.seconds(shapes, device or round_hardware(), {**DECODE_PLAIN, **(parameters or {})})[0])


def prefill_s(device=None, parameters=None, family=PREFILL, **changes):
    shapes = prefill_shapes({name: np.array([value]) for name, value in {**PROMPT, **changes}.items()})
    return float(family.seconds(shapes, device or round_hardware(), {**PREFILL_PLAIN, **(parameters or {})})[0])


def test_keys_are_walked_by_whole_blocks_on_one_unit():
    assert decode_s(splits=1.0) == pytest.approx(STEP_S)
    assert decode_s(splits=1.0, context_tokens=2.0) == pytest.approx(STEP_S)
    assert decode_s(splits=1.0, context_tokens=300.0) == pytest.approx(3 * STEP_S)


def test_a_split_divides_the_steps_and_pays_for_each_part():
    found = decode_s(splits=4.0, context_tokens=1000.0, parameters={"combine_s": 1e-6, "combine_part_s": 1e-7})
    partial = 2 * 4 * 128 * 4 / 1e12  # four parts of 128 values of 4 bytes, written and read
    assert found == pytest.approx(2 * STEP_S + 1e-6 + 4e-7 + partial)


@pytest.mark.parametrize(("smoothness", "waves"), [(1.0, 2.0), (0.0, 1.5), (0.5, 1.75)])
def test_more_items_than_units_come_in_waves(smoothness, waves):
    found = decode_s(splits=1.0, sequences=150.0, parameters={"wave_smoothness_ratio": smoothness}, device=round_hardware(**NO_MEMORY))
    assert found == pytest.approx(waves * STEP_S)


def test_an_item_pays_for_its_query_rows_by_head_size():
    parameters = {"item_s": 1e-6, "row_s": 1e-7, "unit_bytes_per_clock": 1e30}
    assert decode_s(query_heads=8.0, head_size=64.0, parameters=parameters, device=round_hardware(**NO_MEMORY)) == pytest.approx(1.4e-6)


def test_memory_is_keys_values_queries_and_outputs_once():
    # 1000 sequences of 1008 keys (63 pages of 16) x 2 x 8 heads x 128 values x 2 bytes, and 2 x 32 heads x 128 x 2 bytes each.
    moved = 1000 * (1008 * 2 * 8 * 128 * 2 + 2 * 32 * 128 * 2)
    shape = {"sequences": 1000.0, "context_tokens": 1000.0, "query_heads": 32.0, "kv_heads": 8.0}
    assert decode_s(parameters={"unit_bytes_per_clock": 1e30}, **shape) == pytest.approx(moved / 1e12)


def test_keys_that_the_last_call_left_in_the_cache_are_read_faster_until_they_outgrow_it():
    def memory_s(tokens, warm):
        return decode_s(parameters={"unit_bytes_per_clock": 1e30}, context_tokens=tokens, cache_warm_ratio=warm, splits=1.0)

    assert memory_s(16000.0, 1.0) == pytest.approx(memory_s(16000.0, 0.0) / 4)  # 8 of 40 MB
    assert memory_s(800_000.0, 1.0) == pytest.approx(memory_s(800_000.0, 0.0))  # 400 MB


def test_execution_and_memory_join_with_the_floor_inside_both():
    # Execution 65.536 us; 128 keys and one query and output: 66,048 bytes, 0.066048 us; floors of 2 us: (67.536^1 + 2.066048^1).
    found = decode_s(splits=1.0, parameters={"floor_s": 2e-6, "overlap_exponent": 1.0})
    assert found == pytest.approx(2 * 2e-6 + STEP_S + 66048 / 1e12)


def test_copies_and_layout_are_paid_where_a_kernel_needs_them():
    copying = DecodeAttention(path=replace(PLAIN_PATH, copies=True, sorted_sequences=4), kv_bytes=2.0, planned_units=100)
    extra = {"copy_s": 3e-6, "sequence_s": 1e-6}
    rows = {"query_heads": 8.0, "kv_heads": 2.0, "splits": 1.0}

    def added(sequences):
        shape = {**rows, "sequences": sequences}
        return decode_s(family=copying, parameters=extra, **shape) - decode_s(**shape)

    assert added(1.0) == pytest.approx(1e-6)  # one sequence is contiguous: no copy
    assert added(4.0) == pytest.approx(4e-6 + 3e-6 + 2 * (2 * 4 * 8 * 128 * 2) / 1e12)
    assert added(8.0) == pytest.approx(3e-6 + 2 * (2 * 8 * 8 * 128 * 2) / 1e12)  # too many to sort
    names = {definition.name for definition in copying.parameters}
    assert names - {definition.name for definition in DECODE.parameters} == {"copy_s", "sequence_s"}


def test_a_window_bounds_the_keys_and_cuts_its_first_block():
    assert decode_s(context_tokens=128.0, window_tokens=128.0, splits=1.0) == pytest.approx(STEP_S)
    assert decode_s(context_tokens=100_000.0, window_tokens=128.0, splits=1.0) == pytest.approx(2 * STEP_S)


# One latent of 576 channels, of which 512 are the value: a block of 64 keys is 73,728 bytes, and 64 query heads (a tile, however
# few there are) take 2 x 64 x 64 x (576 + 512) FLOPs at 1 TFLOP/s a unit.
LATENT = {**SHAPE, "query_heads": 16.0, "head_size": 576.0, "value_size": 512.0, "context_tokens": 64.0, "splits": 1.0}
MLA = DecodeAttention(path=paths.FLASH_MLA, kv_bytes=2.0, planned_units=100)
MLA_PLAIN = {"matrix_efficiency_ratio": 1.0}
PRODUCTS_S = 2 * 64 * 64 * 1088 / 1e12


def test_a_block_of_latents_takes_the_longer_of_its_bytes_and_its_products():
    free = round_hardware(**NO_MEMORY)
    assert decode_s(family=MLA, parameters=MLA_PLAIN, device=free, **LATENT) == pytest.approx(73_728 / 1e9)
    fast = {**MLA_PLAIN, "unit_bytes_per_clock": 1e30}
    assert decode_s(family=MLA, parameters=fast, device=free, **LATENT) == pytest.approx(PRODUCTS_S)
    half = {**fast, "matrix_efficiency_ratio": 0.5}
    assert decode_s(family=MLA, parameters=half, device=free, **{**LATENT, "context_tokens": 65.0}) == pytest.approx(4 * PRODUCTS_S)


def test_tiles_of_64_heads_share_one_read_of_the_latent():
    free, fast = round_hardware(**NO_MEMORY), {**MLA_PLAIN, "unit_bytes_per_clock": 1e30}
    # 60 sequences of 128 heads are 120 tiles on 100 units.
    many = {**LATENT, "sequences": 60.0, "query_heads": 128.0}
    assert decode_s(family=MLA, parameters=fast, device=free, **many) == pytest.approx(2 * PRODUCTS_S)
    slow = round_hardware(memory_bytes_per_s=1e9, cache_bytes=1.0)
    moved = 60 * (64 * 576 * 2 + 128 * 1088 * 2)  # latents once; queries of 576 and results of 512 channels a head
    assert decode_s(family=MLA, parameters=fast, device=slow, **many) == pytest.approx(moved / 1e9)
    shapes = decode_shapes({name: np.array([value]) for name, value in many.items()})
    assert MLA.terms(shapes, slow, {**DECODE_PLAIN, **fast}).bytes.tolist() == [moved]


def test_the_bound_of_latents_is_their_flops_or_their_bytes_once():
    shapes = decode_shapes({**LATENT, "context_tokens": np.array([1000.0, 1000.0]), "query_heads": np.array([16.0, 1024.0])})
    cold = round_hardware(memory_bytes_per_s=1e12, matrix_flops_per_s={"bf16": 1e14}, unit_cache_bytes_per_s=1e30)
    bytes_s, flops_s = 1000 * 576 * 2 / 1e12, 2 * 1024 * 1000 * 1088 / 1e14
    assert MLA.bound_s(shapes, cold).tolist() == pytest.approx([bytes_s, flops_s])


def test_parts_of_a_latent_write_and_read_their_values_only():
    split = {**LATENT, "context_tokens": 6400.0, "splits": 4.0}
    found = decode_s(family=MLA, parameters={**MLA_PLAIN, "unit_bytes_per_clock": 1e30}, **split)
    assert found == pytest.approx(25 * PRODUCTS_S + 2 * 4 * 16 * 512 * 4 / 1e12)


def test_the_parameter_of_products_is_that_of_latents_alone():
    names = [{definition.name for definition in family.parameters} for family in (MLA, DECODE)]
    assert names[0] - names[1] == {"matrix_efficiency_ratio"}


def test_prompts_may_have_values_narrower_than_keys():
    wide = {"head_size": 192.0, "value_size": 128.0}
    block_s = 128 * 64 * 2 * (192 + 128) / 1e12 + 128 * 64 / 1e9
    assert prefill_s(device=round_hardware(**NO_MEMORY), **wide) == pytest.approx((0.02 + 2) * block_s)
    slow = round_hardware(memory_bytes_per_s=1e9, cache_bytes=1.0)
    moved = 1000 * 2 * 320 * (16 + 16)  # queries and results, keys and values of 16 heads each
    assert prefill_s(device=slow, prompt_tokens=1000.0, query_heads=16.0, kv_heads=16.0, **wide) == pytest.approx(moved / 1e9)


def test_terms_are_pure_and_nothing_costs_nothing():
    counts = {name: np.array([0.0, value]) if name == "sequences" else np.array([value, value]) for name, value in SHAPE.items()}
    shapes, parameters = decode_shapes(counts), {**DECODE_PLAIN, "floor_s": 1e-6, "combine_s": 1e-6}
    terms = DECODE.terms(shapes, round_hardware(), parameters)
    assert [terms.compute_s[0], terms.launch_s[0], terms.memory_s[0], terms.sync_s[0], terms.bytes[0]] == [0.0] * 5
    joined = terms.time_s(parameters["overlap_exponent"])
    assert joined[1] == pytest.approx(DECODE.seconds(shapes, round_hardware(), parameters)[1])


def test_flash2_splits_only_grouped_queries_and_fills_its_waves_to_85_percent():
    def parts(sequences, keys, heads, kv_heads):
        family = DecodeAttention(path=paths.FLASH2, kv_bytes=2.0, planned_units=100)
        counts = {**SHAPE, "sequences": sequences, "context_tokens": keys, "query_heads": heads, "kv_heads": kv_heads}
        return float(family.splits(decode_shapes({name: np.array([value]) for name, value in counts.items()}))[0])

    assert parts(1.0, 100_000.0, 8.0, 8.0) == 1.0  # one query head a key-value head
    assert parts(160.0, 100_000.0, 8.0, 1.0) == 1.0  # 0.8 of the 200 slots are busy already
    assert parts(1.0, 256.0, 8.0, 1.0) == 2.0  # two blocks, two parts
    # 60 items on 200 slots: 3 parts fill 0.9 of a wave, the best; 2 fill 0.6; so 3.
    assert parts(60.0, 100_000.0, 8.0, 1.0) == 3.0


def test_flash3_gives_every_unit_a_tenth_more_than_its_share():
    # 8 items of 12,800 keys, blocks of 128 at head size 64: 100 blocks each, 1.1 x 800 / 100 = 9 a unit: ceil(100 / 9) = 12 parts.
    counts = {**SHAPE, "sequences": 8.0, "context_tokens": 12_800.0, "head_size": 64.0}
    shapes = decode_shapes({name: np.array([value]) for name, value in counts.items()})
    for path, parts in ((paths.FLASH3, 12.0), (replace(paths.FLASH3, most_splits=4), 4.0)):
        assert DecodeAttention(path=path, kv_bytes=2.0, planned_units=100).splits(shapes).tolist() == [parts]


def test_filling_kernels_round_their_parts_down_or_up_and_keep_them_long_enough():
    counts = {**SHAPE, "sequences": 30.0, "context_tokens": 12_800.0}
    shapes = decode_shapes(
        {name: np.array([value, value]) for name, value in counts.items()} | {"context_tokens": np.array([12_800.0, 500.0])}
    )
    for path, parts in ((paths.FLASHINFER, [3.0, 2.0]), (paths.TRTLLM_GEN, [4.0, 1.0])):
        assert DecodeAttention(path=path, kv_bytes=2.0, planned_units=100).splits(shapes).tolist() == parts


def test_a_pinned_split_is_taken_as_it_is():
    shapes = decode_shapes({**{name: np.array([value]) for name, value in SHAPE.items()}, SPLITS: np.array([7.0])})
    assert DECODE.splits(shapes).tolist() == [7.0]


@pytest.mark.parametrize(
    ("stack", "kv_format", "device", "kernel"),
    [
        ("vllm_0.14.0", "bf16", "a100-sxm-80gb", "flash2"),
        ("sglang_0.5.10", "bf16", "a100-sxm-80gb", "flashinfer"),
        ("vllm_0.24.0", "fp8", "l40s", "flashinfer"),
        ("vllm_0.24.0", "bf16", "h100-sxm", "flash3_captured"),
        ("sglang_0.5.10", "fp8", "h200-sxm", "flash3"),
        ("vllm_0.24.0", "bf16", "b200-sxm", "trtllm_gen"),
        ("trtllm_1.3.0rc20", "bf16", "b200-sxm", "trtllm_gen"),
    ],
)
def test_each_stack_runs_its_kernel(stack, kv_format, device, kernel):
    one = np.array([4.0])
    found = paths.decode_paths(
        stack, kv_format, read_hardware(device), sequences=one, keys=one, query_heads=one, kv_heads=one, head_sizes=128 * one
    )
    assert found.tolist() == [kernel]


def test_tensorrt_takes_its_grouped_kernel_once_a_quarter_of_the_units_has_a_part():
    # 132 units: 33 parts. 8 key-value heads x 4 sequences are 32, of 256 keys twice as many.
    sequences, keys = np.array([4.0, 4.0, 5.0, 5.0, 5.0]), np.array([128.0, 256.0, 2.0, 2.0, 1e4])
    heads, kv_heads = np.array([64.0, 64.0, 64.0, 8.0, 512.0]), np.full(5, 8.0)
    shapes = {"sequences": sequences, "keys": keys, "query_heads": heads, "kv_heads": kv_heads, "head_sizes": np.full(5, 128.0)}
    found = paths.decode_paths("trtllm_1", "bf16", read_hardware("h100-sxm"), **shapes)
    assert found.tolist() == ["masked_multihead", "xqa", "xqa", "masked_multihead", "masked_multihead"]
    on_b200 = paths.decode_paths("trtllm_1", "bf16", read_hardware("b200-sxm"), **shapes)
    assert on_b200.tolist() == ["trtllm_gen"] * 4 + ["masked_multihead"]


def test_an_fp8_cache_takes_grouped_kernels_by_head_and_group():
    many, group = np.full(4, 1e4), np.array([8.0, 8.0, 9.0, 12.0])
    shapes = {
        "sequences": many,
        "keys": many,
        "query_heads": group,
        "kv_heads": np.ones(4),
        "head_sizes": np.array([64.0, 128.0, 128.0, 64.0]),
    }
    found = paths.decode_paths("trtllm_1", "fp8", read_hardware("h100-sxm"), **shapes)
    assert found.tolist() == ["xqa", "xqa_fp8", "xqa_fp8_wide", "xqa"]


def test_vllm_takes_a_wider_tile_above_16_query_heads_a_key_value_head():
    many = np.full(2, 16.0)
    shapes = {
        "sequences": many,
        "keys": many,
        "query_heads": np.array([16.0, 24.0]),
        "kv_heads": np.ones(2),
        "head_sizes": np.full(2, 128.0),
    }
    assert paths.decode_paths("vllm_0.24.0", "fp8", read_hardware("l40s"), **shapes).tolist() == ["flashinfer", "flashinfer_wide"]
    assert paths.decode_paths("sglang_0.5.10", "fp8", read_hardware("l40s"), **shapes).tolist() == ["flashinfer"] * 2


def test_rows_of_an_item_cost_as_the_next_step_of_its_tile():
    heads, one = np.array([4.0, 9.0, 33.0, 64.0]), np.ones(4)
    assert paths.TRTLLM_GEN.rows(heads, one).tolist() == [8.0, 16.0, 32.0, 32.0]
    assert paths.FLASH3.rows(2 * heads, one).tolist() == [64.0, 64.0, 128.0, 128.0]
    assert paths.XQA.rows(heads, one).tolist() == heads.tolist()


def test_one_prompt_tile_walks_the_blocks_up_to_its_last_query():
    # 128 queries are one tile of two blocks; it is the average (of 100 units, 0.02 blocks) and the longest: their sum at exponent 1.
    assert prefill_s(device=round_hardware(**NO_MEMORY)) == pytest.approx((0.02 + 2) * BLOCK_S)
    # 256 queries: tiles of 2 and 4 blocks; 6 blocks over 100 units, the longest 4.
    assert prefill_s(device=round_hardware(**NO_MEMORY), prompt_tokens=256.0) == pytest.approx((0.06 + 4) * BLOCK_S)


def test_many_tiles_share_the_units_and_balance_hides_the_longest():
    parameters = {"balance_exponent": 12.0, "tile_s": 1e-6}
    # 1000 heads of two tiles: 2000 tiles, 20 a unit, 60 blocks a unit; the longest of 4 blocks adds nothing.
    found = prefill_s(device=round_hardware(**NO_MEMORY), parameters=parameters, prompt_tokens=256.0, query_heads=1000.0, kv_heads=1000.0)
    assert found == pytest.approx(20e-6 + 60 * BLOCK_S, rel=1e-6)


def test_products_and_exponentials_overlap_by_a_p_norm():
    products, exponentials = 128 * 64 * 4 * 128 / 1e12, 128 * 64 / 1e9
    found = prefill_s(device=round_hardware(**NO_MEMORY), parameters={"softmax_overlap_exponent": 2.0})
    assert found == pytest.approx(2.02 * np.hypot(products, exponentials))


def test_packing_fills_a_tile_with_the_heads_of_a_group():
    packing = PrefillAttention(path=replace(PREFILL_PATH, packs_group=True))
    shape = {"prompt_tokens": 16.0, "query_heads": 800.0, "kv_heads": 100.0}
    # 16 queries of 8 heads fill one tile: 100 tiles, one a unit, of one block; unpacked 800 tiles, 8 a unit.
    assert prefill_s(device=round_hardware(**NO_MEMORY), family=packing, **shape) == pytest.approx((1 + 1) * BLOCK_S)
    assert prefill_s(device=round_hardware(**NO_MEMORY), **shape) == pytest.approx((8 + 1) * BLOCK_S)


def test_a_window_cuts_the_blocks_of_a_tile():
    # 1024 queries, window 128: the first tile has 2 blocks, the other seven 128 + 128 keys, 4 blocks: 30 blocks, longest 4.
    found = prefill_s(device=round_hardware(**NO_MEMORY), prompt_tokens=1024.0, window_tokens=128.0)
    assert found == pytest.approx((0.30 + 4) * BLOCK_S)


def test_prompt_memory_is_its_bytes_and_the_write_of_new_keys():
    # 1000 tokens: queries and outputs 2 x 32 heads, keys and values 2 x 8 heads, of 128 values of 2 bytes; the write passes twice.
    slow = round_hardware(memory_bytes_per_s=1e9, cache_bytes=1.0)
    values = 1000 * 128 * 2
    found = prefill_s(device=slow, parameters={"write_passes": 2.0}, prompt_tokens=1000.0, query_heads=32.0, kv_heads=8.0)
    assert found == pytest.approx(values * (64 + 16 + 2 * 16) / 1e9)


def test_fp8_products_take_the_fp8_rate_where_there_is_one():
    fast = {"exponentials_per_clock": 1e30}
    fp8 = PrefillAttention(path=PREFILL_PATH, math_bytes=1.0)
    only_bf16 = round_hardware(matrix_flops_per_s={"bf16": 100e12}, **NO_MEMORY)
    assert prefill_s(family=fp8, parameters=fast, device=round_hardware(**NO_MEMORY)) == pytest.approx(
        prefill_s(parameters=fast, device=round_hardware(**NO_MEMORY)) / 2
    )
    assert prefill_s(family=fp8, parameters=fast, device=only_bf16) == pytest.approx(prefill_s(parameters=fast, device=only_bf16))


def pairs(tokens, prefix=0.0, window=1e9):
    """Return the pairs of one head, from the flops of the physical bound."""
    shapes = prefill_shapes({**PROMPT, "prompt_tokens": np.array([tokens]), "prefix_tokens": prefix, "window_tokens": window})
    device = round_hardware(memory_bytes_per_s=1e30)
    return float(PREFILL.bound_s(shapes, device)[0]) * device.matrix_flops_per_s["bf16"] / (4 * 128)


@pytest.mark.parametrize("prefix", [0, 1, 63, 200])
@pytest.mark.parametrize("window", [1, 16, 100, 1e9])
def test_a_query_sees_the_keys_before_it_inside_the_window(prefix, window):
    counted = sum(min(position, window) for position in range(prefix + 1, prefix + 151))
    assert pairs(150.0, prefix, window) == pytest.approx(counted)


def test_tiles_walk_the_prefix_too():
    # 256 queries after 640 cached keys: tiles of 12 and 14 blocks of 64, 26 blocks over 100 units; the longest 14.
    free = round_hardware(**NO_MEMORY)
    assert prefill_s(device=free, prompt_tokens=256.0, prefix_tokens=640.0) == pytest.approx((0.26 + 14) * BLOCK_S)
    # In a window of 768 the first tile walks its 768 keys, and the second 768 and the 128 that its queries span.
    found = prefill_s(device=free, prompt_tokens=256.0, prefix_tokens=640.0, window_tokens=768.0)
    assert found == pytest.approx(((12 + 14) / 100 + 14) * BLOCK_S)
    # In one of 128 every tile walks 256 keys.
    found = prefill_s(device=free, prompt_tokens=256.0, prefix_tokens=640.0, window_tokens=128.0)
    assert found == pytest.approx((0.08 + 4) * BLOCK_S)


def test_cached_keys_are_read_inside_the_window_and_only_new_ones_written():
    slow = round_hardware(memory_bytes_per_s=1e9, cache_bytes=1.0)
    shape = {"prompt_tokens": 1000.0, "prefix_tokens": 3000.0, "query_heads": 32.0, "kv_heads": 8.0}
    token_bytes = 128 * 2  # one value of a head of 128, 2 bytes
    found = prefill_s(device=slow, parameters={"write_passes": 2.0}, **shape)
    assert found == pytest.approx(1000 * token_bytes * (64 + 2 * 16) / 1e9 + 4000 * token_bytes * 16 / 1e9)
    # The first query of a window of 501 sees 500 of the cached keys.
    found = prefill_s(device=slow, parameters={"write_passes": 2.0}, window_tokens=501.0, **shape)
    assert found == pytest.approx(1000 * token_bytes * (64 + 2 * 16) / 1e9 + 1500 * token_bytes * 16 / 1e9)


def test_no_prompts_cost_nothing():
    shapes, parameters = prefill_shapes({**PROMPT, "sequences": np.array([0.0])}), {**PREFILL_PLAIN, "floor_s": 1e-6, "tile_s": 1e-6}
    terms = PREFILL.terms(shapes, round_hardware(), parameters)
    assert [terms.compute_s[0], terms.memory_s[0], terms.launch_s[0], terms.sync_s[0], terms.bytes[0]] == [0.0] * 5
    assert np.isfinite(PREFILL.features(shapes)).all()


def test_a_prompt_without_a_prefix_is_one_whose_prefix_is_left_out():
    for window in (128.0, 1e9):
        shape = {"prompt_tokens": 700.0, "window_tokens": window}
        assert prefill_s(prefix_tokens=0.0, **shape) == prefill_s(**shape)


@pytest.mark.parametrize("path", [FLASH2, FLASH3, TRTLLM_GEN])
def test_a_prompt_of_one_token_takes_a_launch_and_no_more_than_one_of_two(path):
    family, parameters = PrefillAttention(path=path), {"floor_s": 5e-6, "tile_s": 1e-6}
    one, two = (prefill_s(family=family, parameters=parameters, prompt_tokens=tokens) for tokens in (1.0, 2.0))
    assert 5e-6 < one <= two
    shapes = prefill_shapes({**PROMPT, "prompt_tokens": np.array([1.0])})
    assert np.isfinite(family.features(shapes)).all()


@pytest.mark.parametrize(
    ("stack", "formats", "device", "kernel"),
    [
        ("vllm_0.14.0", "bf16", "a100-sxm-80gb", "flash2"),
        ("sglang_0.5.10", "bf16", "l40s", "flashinfer"),
        ("vllm_0.24.0", "fp8", "l40s", "flashinfer"),
        ("sglang_0.5.10", "bf16", "h100-sxm", "flash3"),
        ("trtllm_1.3.0rc20", "bf16", "h100-sxm", "trtllm_fused"),
        ("vllm_0.24.0", "bf16", "b200-sxm", "trtllm_gen"),
    ],
)
def test_each_stack_runs_its_prompt_kernel(stack, formats, device, kernel):
    assert prefill_path(stack, formats, read_hardware(device)).name == kernel


SIZES = {
    "sequences": st.sampled_from([1.0, 3.0, 16.0, 100.0, 700.0]),
    "kv_heads": st.sampled_from([1.0, 2.0, 5.0, 8.0]),
    "head_size": st.sampled_from([64.0, 96.0, 128.0, 256.0]),
    "value_size": st.sampled_from([64.0, 128.0]),
    "window_tokens": st.sampled_from([128.0, 4096.0, 1e9]),
    "cache_warm_ratio": st.sampled_from([0.0, 0.5, 1.0]),
}
FASTER = st.sampled_from(["memory_bytes_per_s", "units_count", "clock_hz", "matrix_flops_per_s"])


def faster(device, what, by):
    """Return a device with more of one thing; units bring their own matrix rate along."""
    if what == "matrix_flops_per_s":
        return replace(device, matrix_flops_per_s={name: rate * by for name, rate in device.matrix_flops_per_s.items()})
    if what == "units_count":
        units = round(device.units_count * by)
        each = {name: rate * units / device.units_count for name, rate in device.matrix_flops_per_s.items()}
        return replace(device, units_count=units, matrix_flops_per_s=each)
    return replace(device, **{what: getattr(device, what) * by})


def drawn_parameters(data, family):
    ranges = {definition.name: (definition.lower, definition.upper) for definition in family.parameters}
    return {name: data.draw(st.floats(lower, upper), label=name) for name, (lower, upper) in ranges.items()}


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_decode_is_never_slower_on_a_faster_device_nor_faster_than_physics(data):
    path = data.draw(st.sampled_from(list(paths.PATHS.values())))
    family = DecodeAttention(path=path, kv_bytes=data.draw(st.sampled_from([1.0, 2.0])), planned_units=100)
    counts = {name: data.draw(choices, label=name) for name, choices in SIZES.items()}
    counts |= {
        "query_heads": counts["kv_heads"] * data.draw(st.sampled_from([1.0, 3.0, 12.0])),
        "context_tokens": data.draw(st.floats(1.0, 2e5)),
    }
    shapes, parameters = decode_shapes({name: np.array([value]) for name, value in counts.items()}), drawn_parameters(data, family)
    device = round_hardware()
    better = faster(device, data.draw(FASTER), data.draw(st.floats(1.0, 5.0)))
    before, after = (family.seconds(shapes, one, parameters)[0] for one in (device, better))
    assert after <= before * (1 + 1e-12)
    assert before >= family.bound_s(shapes, device)[0]
    assert family.features(shapes).shape == (1, len(family.residual_features))
    assert np.isfinite(family.features(shapes)).all()


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_prefill_is_never_slower_on_a_faster_device_nor_faster_than_physics(data):
    path = data.draw(st.sampled_from([FLASH2, FLASH3, TRTLLM_GEN]))
    family = PrefillAttention(path=path, math_bytes=data.draw(st.sampled_from([1.0, 2.0])))
    counts = {name: data.draw(choices, label=name) for name, choices in SIZES.items()}
    counts |= {
        "query_heads": counts["kv_heads"] * data.draw(st.sampled_from([1.0, 3.0, 12.0])),
        "prompt_tokens": data.draw(st.floats(1.0, 20000.0)),
        "prefix_tokens": data.draw(st.one_of(st.just(0.0), st.floats(0.0, 50000.0))),
    }
    shapes, parameters = prefill_shapes({name: np.array([value]) for name, value in counts.items()}), drawn_parameters(data, family)
    device = round_hardware()
    better = faster(device, data.draw(FASTER), data.draw(st.floats(1.0, 5.0)))
    before, after = (family.seconds(shapes, one, parameters)[0] for one in (device, better))
    assert after <= before * (1 + 1e-12)
    assert before >= family.bound_s(shapes, device)[0]
    assert family.features(shapes).shape == (1, len(family.residual_features))
    assert np.isfinite(family.features(shapes)).all()


@settings(max_examples=60, deadline=None)
@given(keys=st.floats(1.0, 1e5), more=st.floats(1.0, 4.0), sequences=st.integers(1, 300))
def test_with_one_split_more_keys_never_take_less_time(keys, more, sequences):
    shape = {"sequences": float(sequences), "splits": 1.0, "parameters": {"floor_s": 1e-6, "overlap_exponent": 2.0}}
    assert decode_s(context_tokens=keys * more, **shape) >= decode_s(context_tokens=keys, **shape) * (1 - 1e-12)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_longer_prefix_never_takes_less_time(data):
    family = PrefillAttention(path=data.draw(st.sampled_from([FLASH2, FLASH3, TRTLLM_GEN])))
    counts = {name: data.draw(choices, label=name) for name, choices in SIZES.items()}
    counts |= {
        "query_heads": counts["kv_heads"] * data.draw(st.sampled_from([1.0, 3.0, 12.0])),
        "prompt_tokens": data.draw(st.floats(1.0, 20000.0)),
    }
    prefix = data.draw(st.floats(0.0, 50000.0))
    shapes = prefill_shapes({**counts, "prefix_tokens": np.array([prefix, prefix + data.draw(st.floats(0.0, 5000.0))])})
    shorter, longer = family.seconds(shapes, round_hardware(), drawn_parameters(data, family))
    assert longer >= shorter * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    window=st.sampled_from([128.0, 4096.0, 1e9]),
)
def test_chunks_of_a_prompt_compute_its_pairs(chunks, window):
    ends = np.cumsum(chunks).astype(float)
    parts = zip(np.concatenate([[0.0], ends[:-1]]), ends, strict=True)
    assert sum(pairs(end - start, start, window) for start, end in parts) == pytest.approx(pairs(float(ends[-1]), 0.0, window))


@settings(max_examples=60, deadline=None)
@given(
    tiles=st.lists(st.integers(1, 24), min_size=1, max_size=6),
    short=st.integers(0, 127),
    window=st.sampled_from([128.0, 4096.0, 1e9]),
    heads=st.sampled_from([1.0, 12.0]),
)
def test_chunks_of_whole_tiles_never_take_less_than_the_whole_prompt(tiles, short, window, heads):
    """Chunks that end inside a tile may be faster: a last tile of few rows then walks few keys."""
    ends = 128.0 * np.cumsum(tiles)
    ends[-1] -= short
    parts = zip(np.concatenate([[0.0], ends[:-1]]), ends, strict=True)
    shape = {"query_heads": heads, "window_tokens": window, "device": round_hardware(**NO_MEMORY)}
    chunked = sum(prefill_s(prompt_tokens=end - start, prefix_tokens=start, **shape) for start, end in parts)
    assert chunked >= prefill_s(prompt_tokens=float(ends[-1]), **shape) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(sequences=st.floats(0.3, 40.0), tokens=st.floats(1.0, 5000.0), prefix=st.floats(0.0, 5000.0))
def test_time_goes_evenly_with_a_mean_number_of_prompts(sequences, tokens, prefix):
    shape = {"prompt_tokens": tokens, "prefix_tokens": prefix, "query_heads": 8.0}
    before, after = (prefill_s(sequences=count, **shape) for count in (sequences, sequences * 1.001))
    assert before <= after <= before * 1.0011
