"""Timings of dense multiplies: names and columns to sets, bad files, and every shared file as it is."""

import io

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.kinds.gemm import FORMATS, GEMM_KIND
from replay.calibration.kinds.vector_gemm import DEEPBENCH_GEMM_KIND
from replay.calibration.reader import KINDS, read_measurements
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.tiling.families.gemm_formats import GEMM_FORMATS

WIDE = "m,n,k,ms_sglang_0.5.10,ms_vllm_0.24.0"
LONG = "dtype,m,n,k,ms,power_w"
WHERE = "gemm_h100_bf16.csv"


def read(head, *rows, where=WHERE):
    return GEMM_KIND.read(pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode())), where)


def places(found):
    return [(part.hardware, part.stack, part.variant) for part in found]


def test_a_table_of_multiplies_is_recognised_after_those_with_more_columns():
    assert GEMM_KIND.recognises(frozenset(WIDE.split(",")))
    assert not GEMM_KIND.recognises(frozenset({"m", "k", "ms"}))
    assert KINDS.index(DEEPBENCH_GEMM_KIND) < KINDS.index(GEMM_KIND)
    assert KINDS[-1] is GEMM_KIND


def test_every_stack_column_is_a_set_of_its_measured_rows():
    first, second = read(WIDE, "1,4096,2048,0.01,", "128,4096,1024,0.02,0.03")
    assert places([first, second]) == [("h100-sxm", "sglang_0.5.10", "bf16"), ("h100-sxm", "vllm_0.24.0", "bf16")]
    assert first.seconds.tolist() == pytest.approx([1e-5, 2e-5])
    assert second.seconds.tolist() == pytest.approx([3e-5])
    assert {name: column.tolist() for name, column in second.shapes.items()} == {"rows": [128], "columns": [4096], "depth": [1024]}
    assert [column.tolist() for column in first.group_key] == [[4096, 4096], [2048, 1024]]


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("gemm_b200_fp8.csv", ("b200-sxm", "", "fp8")),
        ("gemm_h100_fp8_block_vllm_0.24.0.csv", ("h100-sxm", "vllm_0.24.0", "fp8_block")),
        ("gemm_h200_fp8_vllm_0.24.0.csv", ("h200-sxm", "vllm_0.24.0", "fp8")),
        ("my_l40s_int4_wo_trtllm_1.0.0.csv", ("l40s", "trtllm_1.0.0", "int4_weights")),
    ],
)
def test_format_device_and_stack_come_from_the_name_where_no_column_says_them(where, place):
    assert places(read("m,n,k,ms", "16,4096,2048,0.02", where=where)) == [place]


def test_columns_go_before_the_name():
    found = read("gpu,dtype,m,n,k,ms_vllm_0.24.0", "h100,bfloat16,16,4096,2048,0.02", "l40s,fp8,16,4096,2048,0.02", where="any.csv")
    assert places(found) == [("h100-sxm", "vllm_0.24.0", "bf16"), ("l40s", "vllm_0.24.0", "fp8")]


def test_a_column_of_formats_makes_a_set_each_and_power_is_not_used():
    found = read(LONG, "bfloat16,1,64,64,0.002,300", "nvfp4,1,64,64,0.005,310", where="gemm_power_b200_vllm_0.22.0.csv")
    assert places(found) == [("b200-sxm", "vllm_0.22.0", "bf16"), ("b200-sxm", "vllm_0.22.0", "nvfp4")]


def test_every_name_of_a_format_is_one_of_the_family():
    assert set(FORMATS.values()) == set(GEMM_FORMATS)


def test_useless_times_are_counted_and_empty_ones_are_no_rows():
    (found,) = read("m,n,k,ms_a_1", "1,64,64,0.002", "2,64,64,0", "4,64,64,", "8,64,64,-1")
    assert (len(found.seconds), found.skipped) == (1, (("time is not a number above zero and below an hour", 2),))


BAD = {
    "unknown column": (WIDE + ",us", "1,64,64,0.002,0.002,2", "unknown column 'us'"),
    "no times": ("m,n,k", "1,64,64", "no column of times"),
    "zero size": (WIDE, "1,0,64,0.002,0.002", "n, row 2"),
    "empty size": (WIDE, "1,,64,0.002,0.002", "n, row 2: an empty cell"),
    "half a row": (WIDE, "1.5,64,64,0.002,0.002", "m, row 2"),
    "nothing measured": (WIDE, "1,64,64,,", "no usable row"),
    "text as time": (WIDE, "1,64,64,2us,0.002", "'2us'"),
    "a column of microseconds": (WIDE, "1,64,64,0.002,2", "milliseconds"),
    "unknown format": ("dtype,m,n,k,ms", "fp7,1,64,64,0.002", "unknown format 'fp7'"),
    "unknown device": ("gpu,dtype,m,n,k,ms", "h1000,bf16,1,64,64,0.002", "unknown device 'h1000'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    head, row, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        read(head, row)
    message = str(caught.value)
    assert message.startswith(WHERE)
    assert named in message
    assert "; want " in message
    assert "\n" not in message


def test_a_file_without_rows_is_refused():
    with pytest.raises(SpecError, match=f"{WHERE}: no row"):
        GEMM_KIND.read(pyarrow.table({name: [] for name in WIDE.split(",")}), WHERE)


def test_units_mixed_within_a_column_are_refused_at_the_row():
    with pytest.raises(SpecError, match=r"ms_sglang_0.5.10, row 4.*one unit"):
        read(WIDE, "1,64,64,0.002,0.002", "2,64,64,0.002,0.002", "4,64,64,2.0,0.002")


@pytest.mark.parametrize(("where", "says"), [("gemm_x9_bf16.csv", "no device in the file name"), ("gemm_h100.csv", "no format")])
def test_a_name_that_does_not_say_what_the_columns_leave_open_is_refused(where, says):
    with pytest.raises(SpecError, match=says):
        read(WIDE, "1,64,64,0.002,0.002", where=where)


def test_a_format_that_the_device_has_no_rate_for_is_refused():
    with pytest.raises(SpecError, match="no rate for fp8"):
        read("m,n,k,ms", "1,64,64,0.002", where="gemm_a100_fp8.csv")


def test_every_shared_file_is_read_as_it_is(shared):
    found = [one for path in sorted((shared / "data/measurements").glob("gemm_*.csv")) for one in read_measurements(path)]
    assert {kind for kind, _ in found} == {"gemm"}
    assert len(found) == 29
    for _, part in found:
        assert part.skipped == ()
        assert (part.seconds > 0).all()
        assert np.quantile(part.seconds / part.family.bound_s(part.shapes, read_hardware(part.hardware)), 0.01) > 1, places([part])


TILED = "m,n,k,tile_m,tile_n,tile_k,split_k,ms"


def test_tiles_and_splits_of_the_callers_are_sets_of_their_own():
    rows = ["1,4096,1024,64,128,64,,0.01", "2,4096,1024,64,128,64,,0.01", "1,4096,1024,,,,4,0.02", "1,4096,1024,,,,,0.03"]
    found = {part.variant: part for part in read(TILED, *rows)}
    assert set(found) == {"bf16@split 4", "bf16@64x128x64", "bf16"}
    assert found["bf16@64x128x64"].seconds.tolist() == pytest.approx([1e-5, 1e-5])
    assert (found["bf16@64x128x64"].family.tile, found["bf16@split 4"].family.split) == ((64, 128, 64), 4)
    assert [part.is_pinned for part in found.values()].count(True) == 2
    assert {part.fitted_variant for part in found.values()} == {"bf16"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,4096,1024,64,,64,,0.01", "a tile without tile_n"),
        ("1,4096,1024,64,0,64,,0.01", "tile_n"),
        ("1,4096,1024,4096,4096,64,,0.01", "a tile that one unit holds"),
        ("1,4096,1024,,,,2.5,0.01", "split_k"),
    ],
)
def test_a_tile_that_cannot_be_is_one_sentence(row, says):
    with pytest.raises(SpecError, match=says):
        read(TILED, row)
