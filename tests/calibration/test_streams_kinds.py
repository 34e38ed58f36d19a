"""Timings of streaming kernels: units and shapes at the door, bad files, and the error that fits reach on shared data."""

import io
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.fit import fit_family, predict
from replay.calibration.kinds.streams import OPERATORS_KIND, QUANTIZE_KIND, UNRESOLVED, VECTOR_KIND
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError

VECTOR = "gpu,op,B,H,ms,grid_x,block_x"
QUANTIZE = "gpu,op_name,m,k,quant_dtype,ms"
OPERATORS = "gpu,op,m,n,k,ms"
USELESS = "time is not a number above zero and below an hour"


def table(head, *rows):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode()))


def test_each_kind_recognises_its_own_columns_and_no_others():
    heads = {VECTOR_KIND: VECTOR, QUANTIZE_KIND: QUANTIZE, OPERATORS_KIND: OPERATORS}
    for kind in heads:
        assert [other for other, head in heads.items() if kind.recognises(frozenset(head.split(",")))] == [kind]


def test_vector_operators_are_sets_of_bytes_in_fp32():
    found = VECTOR_KIND.read(
        table(VECTOR, "v100,add,4100,1000,0.5,1,128", "v100,relu,4100,1000,0.25,1,128", "t4,ln,10,64,0.1,1,32"), "x.csv"
    )
    assert [(part.hardware, part.stack, part.family.name, part.variant) for part in found] == [
        ("t4", "pytorch", "norm", "fp32-ln"),
        ("v100-pcie-32gb", "pytorch", "elementwise", "fp32-add"),
        ("v100-pcie-32gb", "pytorch", "elementwise", "fp32-relu"),
    ]
    assert [part.seconds.tolist() for part in found] == [[0.1e-3], [0.5e-3], [0.25e-3]]
    assert [float((part.shapes["read_bytes"] + part.shapes["written_bytes"])[0]) for part in found] == [8, 12, 8]
    assert [(float(part.shapes["rows"][0]), float(part.shapes["columns"][0])) for part in found] == [(10, 64), (4100, 1000), (4100, 1000)]


def test_quantising_with_and_without_finding_the_scale_are_two_families():
    rows = ["h100,scale_matrix,64,4096,fp8,0.002", "h100,compute_scale,64,4096,fp8,0.001"]
    found = QUANTIZE_KIND.read(table(QUANTIZE, *rows), "quantize_fp8_vllm_0.24.0.csv")
    assert [(part.hardware, part.stack, part.family.name, part.variant, part.seconds.tolist()) for part in found] == [
        ("h100-sxm", "vllm_0.24.0", "quantise_scale", "fp8", [1e-6]),
        ("h100-sxm", "vllm_0.24.0", "quantise", "fp8", [2e-6]),
    ]
    assert float((found[1].shapes["read_bytes"] + found[1].shapes["written_bytes"])[0]) == 3


def test_increments_that_two_timings_cannot_tell_apart_are_dropped_with_the_reason():
    rows = [f"h100,scale_matrix,{m},4096,fp8,0.002" for m in (1, 2, 3, 4)]
    rows += [f"h100,compute_scale,{m},4096,fp8,{ms}" for m, ms in ((1, 0.001), (2, 0.00009), (3, 0), (4, -0.001))]
    found = QUANTIZE_KIND.read(table(QUANTIZE, *rows), "q.csv")
    assert [(part.family.name, len(part.seconds), dict(part.skipped)) for part in found] == [
        ("quantise_scale", 1, {USELESS: 2, UNRESOLVED: 1}),
        ("quantise", 4, {}),
    ]


def test_what_an_operator_without_a_usable_row_skipped_is_still_counted():
    found = VECTOR_KIND.read(table(VECTOR, "t4,add,10,64,0.1,1,32", "t4,relu,10,64,0,1,32", "t4,ln,10,64,-1,1,32"), "x.csv")
    assert [(part.variant, part.skipped) for part in found] == [("fp32-add", ((USELESS, 2),))]


def test_multiplies_among_operators_are_dense_multiplies():
    rows = ["a100,matmul,64,128,256,0.2", "a100,softmax,64,4096,,0.02", "a100,layernorm,64,4096,,0.05", "a100,gelu,1024,1,,0.04"]
    found = OPERATORS_KIND.read(table(OPERATORS, *rows), "ops.csv")
    assert [(part.family.name, part.variant, part.hardware) for part in found] == [
        ("softmax", "fp16-softmax", "a100-sxm-80gb"),
        ("norm", "fp16-layernorm", "a100-sxm-80gb"),
        ("elementwise", "fp16-gelu", "a100-sxm-80gb"),
        ("gemm", "bf16", "a100-sxm-80gb"),
    ]
    assert float(found[2].shapes["rows"][0] * found[2].shapes["columns"][0]) == 1024
    assert [float(found[3].shapes[name][0]) for name in ("rows", "columns", "depth")] == [64, 128, 256]


def test_a_multiply_without_its_depth_is_refused():
    with pytest.raises(SpecError, match="k, row 3: an empty cell"):
        OPERATORS_KIND.read(table(OPERATORS, "a100,gelu,1024,1,,0.04", "a100,matmul,64,128,,0.2"), "ops.csv")


BAD = {
    "unknown column": (VECTOR_KIND, VECTOR + ",seconds", "v100,add,10,10,0.5,1,1,0.1", "unknown column 'seconds'"),
    "unknown operator": (VECTOR_KIND, VECTOR, "v100,gelo,10,10,0.5,1,1", "did you mean 'gelu'"),
    "unknown device": (VECTOR_KIND, VECTOR, "v1000,add,10,10,0.5,1,1", "did you mean 'v100'"),
    "no time above zero": (VECTOR_KIND, VECTOR, "v100,add,10,10,-0.5,1,1", "no usable row"),
    "microseconds": (VECTOR_KIND, VECTOR, "v100,add,4100,1000,500,1,1\nv100,add,4100,2000,1000,1,1", "milliseconds"),
    "zero rows": (VECTOR_KIND, VECTOR, "v100,add,0,10,0.5,1,1", "B, row 2"),
    "no operator": (VECTOR_KIND, VECTOR, "v100,,10,10,0.5,1,1", "op, row 2"),
    "unknown operation": (QUANTIZE_KIND, QUANTIZE, "h100,scale,64,4096,fp8,0.1", "op_name"),
    "unknown format": (QUANTIZE_KIND, QUANTIZE, "h100,scale_matrix,64,4096,fp6,0.1", "quant_dtype"),
    "text as time": (QUANTIZE_KIND, QUANTIZE, "h100,scale_matrix,64,4096,fp8,fast", "'fast'"),
    "missing column": (OPERATORS_KIND, OPERATORS.replace(",k", ""), "a100,softmax,64,4096,0.02", "no column k"),
    "unknown kernel": (OPERATORS_KIND, OPERATORS, "a100,topk,64,4096,,0.02", "'topk'"),
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


@pytest.mark.parametrize("kind", [VECTOR_KIND, QUANTIZE_KIND, OPERATORS_KIND])
def test_a_file_without_rows_is_refused(kind):
    rows = {
        "vector": (VECTOR, "v100,add,1,1,1,1,1"),
        "quantize": (QUANTIZE, "h100,scale_matrix,1,1,fp8,1"),
        "operators": (OPERATORS, "a100,gelu,1,1,,1"),
    }
    head, row = rows[kind.name]
    with pytest.raises(SpecError, match="no row"):
        kind.read(table(head, row).slice(0, 0), "made.csv")


REACHED = {"elementwise": 0.01, "softmax": 0.08, "norm": 0.06, "quantise": 0.095}
"""Mean error over all operators of a device on shape groups left out of the fit, with slack."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file"),
    [(VECTOR_KIND, "neusight_vector_fp32.csv"), (VECTOR_KIND, "neusight_vector_amd.csv"), (QUANTIZE_KIND, "quantize_fp8_vllm_0.24.0.csv")],
)
def test_fits_reach_their_error_on_groups_left_out(kind, file: str, shared: Path):
    errors = defaultdict(list)
    for part in kind.read(pyarrow.csv.read_csv(shared / "data" / "measurements" / file), file):
        device, fitted = read_hardware(part.hardware), fitted_mask(part.group_key)
        groups = np.unique(np.stack(part.group_key, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        fit = fit_family(part.family, part.shapes, part.seconds, groups, fitted, device, seed=1)
        found = predict(part.family, part.shapes, device, fit.parameters, fit.residual)
        errors[part.hardware, part.family.name.partition("_")[0]].append(np.abs(found / part.seconds - 1)[~fitted])
        assert (part.seconds >= part.family.bound_s(part.shapes, device)).all(), part.variant
    assert len(errors) >= 3
    for (hardware, family), parts in errors.items():
        assert np.concatenate(parts).mean() < REACHED[family], (hardware, family)
