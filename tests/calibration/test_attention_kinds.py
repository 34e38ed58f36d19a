"""Attention timings: units, kernels and left-out rows at the door, bad files, and the error that a fit reaches on shared data."""

import io

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.kinds.attention import CONTEXT, FALLBACK, GENERATION, ONE_TOKEN, OTHER_HEAD
from replay.calibration.kinds.cells import USELESS
from replay.errors import SpecError
from tests.calibration.held_out_errors import held_out_errors

HEAD = "attn_dtype,kv_dtype,batch_size,num_heads,num_kv_heads,head_dim,kv_len,ms_vllm_0.24.0"
ROW = "bfloat16,bfloat16,4,32,8,128,1000,0.02"
H100, B200 = "attention_generation_h100.csv", "attention_generation_b200.csv"


def table(*rows, head=HEAD):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows, ""]).encode()))


def generation(*rows, where=H100, head=HEAD):
    return GENERATION.read(table(*rows, head=head), where)


def context(*rows, where="attention_context_h100.csv", head=HEAD):
    return CONTEXT.read(table(*rows, head=head.replace("kv_len", "isl")), where)


def described(sets):
    return [(one.hardware, one.stack, one.variant, len(one.seconds)) for one in sets]


def test_files_are_recognised_by_their_columns():
    columns = frozenset(HEAD.split(","))
    assert GENERATION.recognises(columns)
    assert not CONTEXT.recognises(columns)
    assert CONTEXT.recognises(frozenset(HEAD.replace("kv_len", "isl").split(",")))
    assert not GENERATION.recognises(frozenset(["m", "n", "k", "ms"]))


def test_a_generation_row_becomes_a_decode_shape_in_base_units():
    (found,) = generation(ROW)
    assert described([found]) == [("h100-sxm", "vllm_0.24.0", "bf16-flash3_captured", 1)]
    assert found.seconds.tolist() == [0.02e-3]
    assert {name: float(column[0]) for name, column in found.shapes.items()} == {
        "sequences": 4, "context_tokens": 1000, "query_heads": 32, "kv_heads": 8, "head_size": 128, "value_size": 128,
        "window_tokens": 1e9, "cache_warm_ratio": 1,
    }  # fmt: skip
    assert (found.family.path.name, found.family.kv_bytes, found.family.planned_units) == ("flash3_captured", 2.0, 132)
    assert [column.tolist() for column in found.group_key] == [[32], [8], [128]]
    assert found.skipped == ()


def test_a_context_row_becomes_a_prompt_shape():
    (found,) = context(ROW.replace("bfloat16,bfloat16", "fp8,fp8"))
    assert described([found]) == [("h100-sxm", "vllm_0.24.0", "fp8-flash3", 1)]
    assert found.family.math_bytes == 1.0
    assert {name: float(column[0]) for name, column in found.shapes.items()} == {
        "sequences": 4, "prompt_tokens": 1000, "prefix_tokens": 0, "query_heads": 32, "kv_heads": 8, "head_size": 128, "value_size": 128,
        "window_tokens": 1e9, "cache_warm_ratio": 1,
    }  # fmt: skip


def test_stacks_and_formats_are_sets_of_their_own_and_empty_cells_are_no_rows():
    head = HEAD + ",ms_sglang_0.5.10"
    sets = generation(f"{ROW},0.03", f"{ROW},", ROW.replace("bfloat16,4", "fp8,4").replace(",0.02", ",,0.05"), head=head)
    assert described(sets) == [
        ("h100-sxm", "vllm_0.24.0", "bf16-flash3_captured", 2),
        ("h100-sxm", "sglang_0.5.10", "bf16-flash3", 1),
        ("h100-sxm", "sglang_0.5.10", "bf16-fp8kv-flash3", 1),
    ]
    assert [one.family.kv_bytes for one in sets] == [2.0, 2.0, 1.0]
    assert all(one.skipped == () for one in sets)


def test_the_file_name_gives_device_and_stack_and_power_is_left_aside():
    head = HEAD.replace("ms_vllm_0.24.0", "ms,power_w")
    (found,) = generation(ROW + ",700", head=head, where="some/folder/attention_generation_power_b200_vllm_0.22.0.csv")
    assert described([found]) == [("b200-sxm", "vllm_0.22.0", "bf16-trtllm_gen", 1)]


def test_a_device_column_wins_over_the_file_name():
    sets = generation(ROW + ",h200-sxm", ROW + ",a100", head=HEAD + ",gpu", where="mine.csv")
    assert described(sets) == [
        ("a100-sxm-80gb", "vllm_0.24.0", "bf16-flash2", 1),
        ("h200-sxm", "vllm_0.24.0", "bf16-flash3_captured", 1),
    ]


def test_windows_are_shapes_and_only_tensorrt_has_other_prompt_kernels_under_one():
    rows, head = [ROW + ",128", ROW + ",0", ROW + ","], HEAD + ",window"
    sets = generation(*rows, head=head)
    assert described(sets) == [
        ("h100-sxm", "vllm_0.24.0", "bf16-flash3_captured", 2),
        ("h100-sxm", "vllm_0.24.0", "bf16-flash3_captured", 1),
    ]
    assert sets[1].shapes["window_tokens"].tolist() == [128.0]
    assert [one.variant for one in context(*rows, head=head)] == ["bf16-flash3", "bf16-flash3"]
    head = head.replace("vllm_0.24.0", "trtllm_1.3.0rc20")
    assert [one.variant for one in context(*rows, head=head)] == ["bf16-trtllm_fused", "bf16-trtllm_fused-window"]


def test_tensorrt_rows_are_split_by_kernel_and_fallback_rows_left_out():
    head = HEAD.replace("vllm_0.24.0", "trtllm_1.3.0rc20")
    wide = ROW.replace("32,8", "64,1")
    sets = generation(ROW, ROW.replace("32,8", "8,8").replace("1000", "100"), wide, wide.replace("64,1", "32,1"), head=head)
    assert described(sets) == [
        ("h100-sxm", "trtllm_1.3.0rc20", "bf16-masked_multihead", 2),  # no group; and too few parts for the grouped kernel
        ("h100-sxm", "trtllm_1.3.0rc20", "bf16-xqa", 1),
    ]
    assert sets[0].skipped == ((FALLBACK, 1),)
    (on_b200,) = generation(ROW, wide, head=head, where=B200)
    assert described([on_b200]) == [("b200-sxm", "trtllm_1.3.0rc20", "bf16-trtllm_gen", 1)]
    assert on_b200.skipped == ((FALLBACK, 1),)


def test_a_stack_of_fallback_rows_only_is_counted_beside_the_others():
    head = HEAD + ",ms_trtllm_1.3.0rc20"
    sets = generation(ROW.replace("32,8", "64,1") + ",0.3", head=head, where=B200)
    assert described(sets) == [("b200-sxm", "vllm_0.24.0", "bf16-trtllm_gen", 1)]
    assert sets[0].skipped == ((FALLBACK, 1),)


def test_heads_that_a_kernel_lacks_and_prompts_of_one_token_are_counted():
    fp8 = ROW.replace("bfloat16,4", "fp8,4")
    (missing,) = generation(fp8, fp8.replace("128,1000", "192,1000"), where=B200)
    assert missing.skipped == ((OTHER_HEAD, 1),)
    sets = generation(ROW, ROW.replace("128,1000", "512,1000"))
    assert sets[0].skipped == ((OTHER_HEAD, 1),)
    (prompts,) = context(ROW, ROW.replace("1000", "1"), ROW.replace("1000", "1"), ROW.replace("128,1000", "512,1000"))
    assert described([prompts]) == [("h100-sxm", "vllm_0.24.0", "bf16-flash3", 1)]
    assert prompts.skipped == ((ONE_TOKEN, 2), (OTHER_HEAD, 1))


def test_times_that_are_none_are_counted():
    rows = [ROW.replace("0.02", time) for time in ("0", "-0.5", "inf", "-inf")]
    (found,) = generation(ROW, *rows)
    assert (found.seconds.tolist(), found.skipped) == ([0.02e-3], ((USELESS, 4),))


@pytest.mark.parametrize(
    ("rows", "head", "where", "words"),
    [
        ([], HEAD, H100, "no row"),
        ([ROW + ",3"], HEAD + ",batchsize", H100, "unknown column 'batchsize'; did you mean 'batch_size'?"),
        ([ROW], HEAD.replace("ms_vllm", "us_vllm"), H100, "no column of times; want times in milliseconds as ms or ms_<stack>"),
        ([ROW + ",20"], HEAD + ",us_vllm", H100, "unknown column 'us_vllm'"),
        ([ROW.replace("0.02", "20")], HEAD, H100, "needs at least; want milliseconds"),
        ([ROW.replace("0.02", "0.0000002")], HEAD, H100, "needs at least; want milliseconds"),
        ([ROW.replace("0.02", "fast")], HEAD, H100, "'fast'; want numbers"),
        ([ROW.replace(",4,", ",0,")], HEAD, H100, "batch_size, row 2: 0; want a whole number from 1 to 2^40"),
        ([ROW, ROW.replace("1000", "-3")], HEAD, H100, "kv_len, row 3: -3"),
        ([ROW.replace(",4,", ",1.5,")], HEAD, H100, "batch_size, row 2: 1.5"),
        ([ROW.replace(",4,", ",,")], HEAD, H100, "batch_size, row 2: an empty cell"),
        ([ROW.replace("32,8", "32,5")], HEAD, H100, "row 2: 32 heads over 5 key-value heads"),
        ([ROW.replace("bfloat16,4", "bfloat6,4")], HEAD, H100, "unknown format 'bfloat6'; did you mean 'bfloat16'?"),
        ([ROW.replace("bfloat16,4", ",4")], HEAD, H100, "kv_dtype, row 2: an empty cell"),
        ([ROW], HEAD, "attention_generation_h1000.csv", "no device in the file name"),
        ([ROW + ",h1000"], HEAD + ",gpu", H100, "unknown device 'h1000'"),
        ([ROW.replace("0.02", "")], HEAD, H100, "no usable row"),
        ([ROW.replace("0.02", "0")], HEAD, H100, "no usable row"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(rows, head, where, words):
    with pytest.raises(SpecError) as refusal:
        generation(*rows, head=head, where=where)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


REACHED = {
    "attention_generation_a100.csv": {"vllm_0.14.0 bf16-flash2": (4.0, 3.0), "sglang_0.5.10 bf16-flashinfer": (4.0, 3.0)},
    "attention_context_a100.csv": {"vllm_0.14.0 bf16-flash2": (4.0, 2.5), "sglang_0.5.10 bf16-flashinfer": (4.0, 2.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REACHED))
def test_a_fit_reaches_its_figures_on_unseen_head_geometries(shared, name):
    kind = CONTEXT if "context" in name else GENERATION
    errors = held_out_errors(kind, shared / "data" / "measurements" / name, lambda part: f"{part.stack} {part.variant}")
    for label, (mean, median) in REACHED[name].items():
        assert 100 * errors[label].mean() < mean, label
        assert 100 * np.median(errors[label]) < median, label
