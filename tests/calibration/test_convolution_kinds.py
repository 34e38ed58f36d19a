"""Timings of convolutions: shapes and arithmetic at the door, bad files, and the error that fits reach on shared data."""

import io
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.kinds.convolution import CONVOLUTION_KIND
from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_PAIRS, FP32
from tests.calibration.held_out_errors import held_out_errors

HEAD = "gpu,kind,precision,w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h,fwd_ms"
USELESS = "time is not a number above zero and below an hour"


def table(*rows, head=HEAD):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode()))


def row(gpu="v100", sheet="Results FP32", w=700, h=161, c=1, n=4, k=32, fw=20, fh=5, pad="0,0", stride="2,2", ms="0.5"):
    return f"{gpu},train,{sheet},{w},{h},{c},{n},{k},{fw},{fh},{pad},{stride},{ms}"


def test_the_kind_recognises_its_columns():
    assert CONVOLUTION_KIND.recognises(frozenset(HEAD.split(",")))
    assert not CONVOLUTION_KIND.recognises(frozenset(["gpu", "kind", "precision", "m", "n", "k", "transA", "transB", "ms"]))


def test_rows_are_shapes_with_channels_outermost():
    (found,) = CONVOLUTION_KIND.read(table(row()), "x.csv")
    assert (found.hardware, found.stack, found.variant) == ("v100-pcie-32gb", "deepbench_train", "fp32")
    names = ("images", "channels", "filters", "rows", "columns", "filter_rows", "filter_columns", "result_rows", "result_columns")
    assert [int(found.shapes[name][0]) for name in names] == [4, 1, 32, 161, 700, 5, 20, 79, 341]
    assert (found.shapes["groups"][0], found.shapes["channels_last"][0]) == (1, 0)
    assert found.seconds.tolist() == pytest.approx([0.5e-3])
    assert [int(key[0]) for key in found.group_key] == [700, 161, 1, 4, 32, 20, 5, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("sheet", "arithmetic"),
    [("Results - FP32", FP32), ('"Results - FP16 ip, Mixed math"', FP16_MATRIX), ("Results - Psuedo FP16", FP16_PAIRS)],
)
def test_worksheets_name_the_arithmetic(sheet, arithmetic):
    (found,) = CONVOLUTION_KIND.read(table(row(sheet=sheet)), "x.csv")
    assert (found.variant, found.family.arithmetic) == (arithmetic.name, arithmetic)


def test_devices_without_public_figures_are_counted_and_left_out():
    (found,) = CONVOLUTION_KIND.read(table(row(), row(gpu="m40"), row(gpu="m40", n=8)), "x.csv")
    assert found.skipped == (("the catalog has no figures of the device 'm40'", 2),)


def test_unusable_times_are_counted_and_empty_cells_are_no_rows():
    rows = [row(n=n, ms=ms) for n, ms in ((4, "0.5"), (8, "0"), (16, "-1"), (32, "inf"), (64, ""))]
    (found,) = CONVOLUTION_KIND.read(table(*rows), "x.csv")
    assert (len(found.seconds), found.skipped) == (1, ((USELESS, 3),))


BAD = {
    "unknown column": (HEAD + ",bwd_ms", row() + ",1", "unknown column 'bwd_ms'"),
    "missing column": (HEAD.replace(",pad_h", ""), row(pad="0"), "no column pad_h"),
    "unknown device": (HEAD, row(gpu="v1000"), "did you mean 'v100'"),
    "unknown worksheet": (HEAD, row(sheet="Results FP64"), "unknown worksheet"),
    "zero channels": (HEAD, row(c=0), "c, row 2"),
    "negative padding": (HEAD, row(pad="-1,0"), "pad_w, row 2"),
    "filter larger than the pixels": (HEAD, row(w=7, h=7, fw=20), "a filter larger"),
    "no time above zero": (HEAD, row(ms="0"), "no row can be used"),
    "microseconds": (HEAD, row(ms="500000"), "milliseconds"),
    "text as time": (HEAD, row(ms="fast"), "'fast'"),
    "unfit arithmetic": (HEAD, row(gpu="p4", sheet='"Results - FP16 ip, Mixed math"'), "no rate for fp16"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence(case):
    head, line, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        CONVOLUTION_KIND.read(table(line, head=head), "made.csv")
    message = str(caught.value)
    assert named in message
    assert "; want " in message
    assert "\n" not in message


def test_a_file_without_rows_is_refused():
    with pytest.raises(SpecError, match="no row"):
        CONVOLUTION_KIND.read(table(row()).slice(0, 0), "made.csv")


@pytest.mark.slow
def test_fits_reach_their_error_on_groups_left_out(shared: Path):
    path = shared / "data" / "measurements" / "deepbench_conv.csv"
    errors = held_out_errors(CONVOLUTION_KIND, path, lambda part: (part.hardware, part.variant))
    assert len(errors) == 6
    assert np.concatenate(list(errors.values())).mean() < 0.14
    assert np.median(np.concatenate(list(errors.values()))) < 0.11
    assert all(values.mean() < 0.20 for values in errors.values())
