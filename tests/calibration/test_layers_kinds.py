"""Timings of layer operators: columns to sets, bad files, and the error that fits reach on shared data."""

import io
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.fit import fit_family
from replay.calibration.kinds.layers import LAYERS_KIND
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.tiling.families.gemm_paths import COLD

HEAD = (
    "model,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,tp,input_layernorm_ms,attn_rope_ms,mlp_act_ms,add_ms"
)
ROW = "llama,32,8,4096,14336,32000,True,64,4,0.008,0.004,0.005,0.002"
WHERE = "vidur_mlp_a100.csv"


def read(*rows, where=WHERE, head=HEAD):
    return LAYERS_KIND.read(pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode())), where)


def test_every_measured_operator_column_is_a_set():
    found = read(ROW)
    assert [(part.family.name, part.variant, part.hardware, part.stack) for part in found] == [
        ("norm", "input_layernorm", "a100-sxm-80gb", "vidur"),
        ("rope", "attn_rope", "a100-sxm-80gb", "vidur"),
        ("activation", "mlp_act", "a100-sxm-80gb", "vidur"),
        ("residual_add", "add", "a100-sxm-80gb", "vidur"),
    ]
    assert [part.seconds.tolist() for part in found] == [[8e-6], [4e-6], [5e-6], [2e-6]]
    assert all([column.tolist() for column in part.group_key] == [[64]] for part in found)


def test_shapes_follow_from_the_model_and_its_ranks():
    moved = {}
    for part in read(ROW):
        shape = {name: float(column[0]) for name, column in part.shapes.items()}
        assert shape["rows"] == 64
        moved[part.variant] = shape["columns"] * (shape["read_bytes"] + shape["written_bytes"])
    assert moved == {"input_layernorm": 4096 * 4, "attn_rope": (32 + 8) / 4 * 128 * 4, "mlp_act": 14336 / 4 * 6, "add": 4096 * 6}
    plain = {part.variant: part.shapes for part in read(ROW.replace("True", "False"))}
    assert float(plain["mlp_act"]["read_bytes"][0]) == 2


def test_zero_medians_are_counted_and_empty_cells_are_no_rows():
    found = {part.variant: part for part in read(ROW, ROW.replace("0.002", "0.0"), ROW.replace("0.008", ""))}
    assert (len(found["add"].seconds), found["add"].skipped) == (2, (("time is not a number above zero and below an hour", 1),))
    assert (len(found["input_layernorm"].seconds), found["input_layernorm"].skipped) == (2, ())


PROJECTIONS = ",attn_pre_proj_ms,attn_post_proj_ms,mlp_up_proj_ms,mlp_down_proj_ms"


def test_the_projections_of_a_rank_are_one_set_of_cold_multiplies():
    found = read(ROW + ",0.1,0.2,0.3,0.4", ROW.replace("True", "False") + ",,,0.5,0", head=HEAD + PROJECTIONS)
    part = found[-1]
    assert [(one.family.name, one.variant) for one in found[4:]] == [("gemm", "bf16")]
    sizes = [[int(value) for value in part.shapes[name]] for name in ("rows", "columns", "depth")]
    before, after, up, down = (32 + 2 * 8) * 128 // 4, 4096, 2 * 14336 // 4, 4096
    assert sizes == [[64] * 5, [before, after, up, 14336 // 4, down], [4096, 4096 // 4, 4096, 4096, 14336 // 4]]
    assert part.seconds.tolist() == pytest.approx([1e-4, 2e-4, 3e-4, 5e-4, 4e-4])
    assert part.skipped == (("time is not a number above zero and below an hour", 1),)
    assert part.family.paths.rotation == COLD


BAD = {
    "unknown column": (HEAD + ",add_us", ROW + ",2", "unknown column 'add_us'; did you mean 'add_ms'?"),
    "missing column": (HEAD.replace(",n_embd", ""), ROW.replace(",4096", ""), "no column n_embd"),
    "no model sizes": (HEAD, ROW.replace(",32,8,", ",0,8,"), "n_head, row 2"),
    "neither true nor false": (HEAD, ROW.replace("True", "gated"), "'gated'"),
    "nothing measured": (HEAD, "llama,32,8,4096,14336,32000,True,64,4,0,0,0,0", "no usable row"),
    "microseconds": (HEAD, "llama,32,8,4096,14336,32000,True,64,4,8000,4000,5000,2000", "milliseconds"),
    "text as time": (HEAD, ROW.replace("0.002", "2us"), "'2us'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    head, row, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        read(row, head=head)
    message = str(caught.value)
    assert message.startswith(WHERE)
    assert named in message
    assert "; want " in message
    assert "\n" not in message


def test_an_unknown_device_in_the_name_is_refused():
    with pytest.raises(SpecError, match="no device in the file name"):
        read(ROW, where="vidur_mlp_x1.csv")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["vidur_mlp_a100.csv", "vidur_mlp_h100.csv"])
def test_fits_reach_their_error_on_token_counts_left_out(file: str, shared: Path):
    read_sets = LAYERS_KIND.read(pyarrow.csv.read_csv(shared / "data" / "measurements" / file), file)
    found = [part for part in read_sets if part.family.name != "gemm"]  # tests/catalog holds projections to theirs
    assert len(found) == len(read_sets) - 1 >= 5
    for part in found:
        groups = np.unique(part.group_key[0], return_inverse=True)[1]
        fit = fit_family(part.family, part.shapes, part.seconds, groups, fitted_mask(part.group_key), read_hardware(part.hardware), seed=1)
        assert fit.error.mean_ratio < 0.07, part.variant
        assert fit.error.median_ratio < 0.05, part.variant
        assert (part.seconds >= part.family.bound_s(part.shapes, read_hardware(part.hardware))).all(), part.variant
