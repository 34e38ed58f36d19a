"""Timings of multiplies by classic libraries: arithmetic and units at the door, bad files, and the error reached on shared data."""

import io
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.kinds.vector_gemm import DEEPBENCH_GEMM_KIND, VECTOR_GEMM_KIND
from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_STORED, FP32, INT8_QUADS
from tests.calibration.held_out_errors import held_out_errors

EAGER = "gpu,B,M,N,K,ms,tile,grid_x,grid_y,grid_z,block_x,kernel"
DEEPBENCH = "gpu,kind,precision,m,n,k,transA,transB,ms"
USELESS = "time is not a number above zero and below an hour"


def table(head, *rows):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode()))


def sizes(part):
    return [[int(value) for value in part.shapes[name]] for name in ("rows", "columns", "depth", "count")]


def test_each_kind_recognises_its_own_columns_and_no_others():
    eager, deepbench = frozenset(EAGER.split(",")), frozenset(DEEPBENCH.split(","))
    assert [kind.recognises(eager) for kind in (VECTOR_GEMM_KIND, DEEPBENCH_GEMM_KIND)] == [True, False]
    assert [kind.recognises(deepbench) for kind in (VECTOR_GEMM_KIND, DEEPBENCH_GEMM_KIND)] == [False, True]


def test_linear_layers_and_batches_are_sets_of_their_own_and_contract_over_n():
    rows = ["v100,1,512,768,2304,0.19,128x64,18,8,1,128,volta_sgemm_128x64_tn", "v100,12,64,196,384,0.07,,1,1,12,256,x"]
    found = VECTOR_GEMM_KIND.read(table(EAGER, *rows), "any_name.csv")
    assert [(part.hardware, part.stack, part.variant) for part in found] == [
        ("v100-pcie-32gb", "pytorch", "fp32-batched"),
        ("v100-pcie-32gb", "pytorch", "fp32-linear"),
    ]
    assert sizes(found[0]) == [[64], [384], [196], [12]]
    assert sizes(found[1]) == [[512], [2304], [768], [1]]
    assert found[1].seconds.tolist() == pytest.approx([0.19e-3])
    assert found[1].family.arithmetic == FP32
    assert [key.tolist() for key in found[1].group_key] == [[1], [512], [768], [2304]]


def test_launch_geometry_may_be_absent():
    (found,) = VECTOR_GEMM_KIND.read(table("gpu,B,M,N,K,ms", "t4,1,512,768,2304,0.9"), "x.csv")
    assert found.hardware == "t4"


@pytest.mark.parametrize(
    ("sheet", "arithmetic"),
    [
        ("Results FP32", FP32),
        ("Results - FP32", FP32),
        ('"Results - FP16 ip, Mixed math"', FP16_MATRIX),
        ("Results - Mixed Precision", INT8_QUADS),
        ("Results - Psuedo FP16", FP16_STORED),
    ],
)
def test_worksheets_name_the_arithmetic(sheet, arithmetic):
    (found,) = DEEPBENCH_GEMM_KIND.read(table(DEEPBENCH, f"t4,train,{sheet},1760,16,1024,N,T,0.1"), "x.csv")
    assert (found.hardware, found.stack, found.variant) == ("t4", "deepbench_train", arithmetic.name)
    assert found.family.arithmetic == arithmetic
    assert sizes(found) == [[1760], [16], [1024], [1]]
    assert (found.shapes["left_transposed"][0], found.shapes["right_transposed"][0]) == (0, 1)
    assert [key.tolist() for key in found.group_key] == [[1760], [16], [1024], [0], [1]]


def test_devices_without_public_figures_are_counted_and_left_out():
    rows = ["m40,train,Results FP32,1760,16,1024,N,N,0.1", "v100,train,Results FP32,1760,16,1024,N,N,0.1"]
    (found,) = DEEPBENCH_GEMM_KIND.read(table(DEEPBENCH, *rows), "x.csv")
    assert found.hardware == "v100-pcie-32gb"
    assert found.skipped == (("the catalog has no figures of the device 'm40'", 1),)
    with pytest.raises(SpecError, match="no figures of the device 'm40'"):
        DEEPBENCH_GEMM_KIND.read(table(DEEPBENCH, rows[0]), "x.csv")


def test_unusable_times_are_counted_where_they_belong_and_empty_cells_are_no_rows():
    times = ((512, 0.9), (1024, 0), (2048, -1), (4096, "inf"), (8192, ""))
    rows = [f"t4,1,{rows},768,2304,{ms}" for rows, ms in times] + ["p4,1,512,768,2304,0"]
    (found,) = VECTOR_GEMM_KIND.read(table("gpu,B,M,N,K,ms", *rows), "x.csv")
    assert (len(found.seconds), found.skipped) == (1, ((USELESS, 3), (USELESS, 1)))


BAD = {
    "unknown column": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms,us", "t4,1,512,768,2304,0.9,900", "unknown column 'us'"),
    "missing column": (DEEPBENCH_GEMM_KIND, DEEPBENCH.replace("kind,", ""), "t4,Results FP32,16,16,16,N,N,0.1", "no column kind"),
    "unknown device": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "v1000,1,512,768,2304,0.9", "did you mean 'v100'"),
    "zero size": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "t4,1,0,768,2304,0.9", "M, row 2"),
    "negative size": (DEEPBENCH_GEMM_KIND, DEEPBENCH, "t4,train,Results FP32,-16,16,16,N,N,0.1", "m, row 2"),
    "unknown worksheet": (DEEPBENCH_GEMM_KIND, DEEPBENCH, "t4,train,Results FP64,16,16,16,N,N,0.1", "unknown worksheet 'Results FP64'"),
    "unknown transpose": (DEEPBENCH_GEMM_KIND, DEEPBENCH, "t4,train,Results FP32,16,16,16,X,N,0.1", "transA, row 2"),
    "no time above zero": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "t4,1,512,768,2304,0", "no row can be used"),
    "no time at all": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "t4,1,512,768,2304,", "no cell holds a time"),
    "seconds": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "t4,1,8192,8192,8192,0.3", "milliseconds"),
    "text as time": (VECTOR_GEMM_KIND, "gpu,B,M,N,K,ms", "t4,1,512,768,2304,fast", "'fast'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    kind, head, row, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        kind.read(table(head, row), "made.csv")
    message = str(caught.value)
    assert message.startswith("made.csv")
    assert named in message
    assert "; want " in message
    assert "\n" not in message


@pytest.mark.parametrize(("kind", "head"), [(VECTOR_GEMM_KIND, EAGER), (DEEPBENCH_GEMM_KIND, DEEPBENCH)])
def test_a_file_without_rows_is_refused(kind, head):
    with pytest.raises(SpecError, match="no row"):
        kind.read(table(head, head).slice(0, 0), "made.csv")


REACHED = {"neusight_linear_fp32.csv": 0.055, "neusight_bmm_fp32.csv": 0.085, "deepbench_gemm.csv": 0.12}
"""Mean error over the devices of a file on shape groups left out of the fit, with slack."""


@pytest.mark.slow
@pytest.mark.parametrize("file", REACHED)
def test_fits_reach_their_error_on_groups_left_out(file, shared: Path):
    kind = DEEPBENCH_GEMM_KIND if file.startswith("deepbench") else VECTOR_GEMM_KIND
    errors = held_out_errors(kind, shared / "data" / "measurements" / file, lambda part: (part.hardware, part.variant))
    assert np.concatenate(list(errors.values())).mean() < REACHED[file]
    # T4 batches run in one of two power states at random: no model of the shape tells which. (Its 8-bit products: 0.201.)
    worst = 0.21 if "deepbench" in file else 0.20 if "bmm" in file else 0.18
    assert all(values.mean() < worst for values in errors.values())
