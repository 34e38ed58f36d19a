"""`replay calibrate` and `replay fidelity` on made-up timings whose law is known."""

import json

import pytest

from replay import documents


def timings(factor: float = 1.0) -> str:
    """Element-wise kernels on a V100 that take 4 us plus two passes at 700 GB/s, times a factor."""
    rows = [(rows, columns) for rows in (64, 256, 1024, 4096, 16384) for columns in (256, 512, 1024, 2048, 4096, 8192)]
    lines = [f"v100,add,{rows},{columns},{factor * (4e-3 + rows * columns * 12 / 700e9 * 1e3):.6f}" for rows, columns in rows]
    return "gpu,op,B,H,ms\n" + "\n".join(lines) + "\n"


def test_a_calibration_predicts_the_timings_it_was_fitted_on(empty):
    empty.write("v100.csv", timings())
    assert empty.replay("calibrate", "--measurements", "v100.csv", "--out", "fits", "--jobs", "1").exit_code == 0
    document = json.loads(empty.read("fits/v100-pcie-32gb.json"))
    documents.check(document, "calibration.v1", "v100-pcie-32gb.json")
    result = empty.replay("fidelity", "--measurements", "v100.csv", "--calibration", "fits/v100-pcie-32gb.json", "--format", "json")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert row["source"] == "calibrated"
    assert row["mape_percent"] < 3
    assert row["n"] + row["n_fitted"] == 30
    assert sum(decade["n"] for decade in row["by_decade"]) == row["n"]


def test_without_a_calibration_the_report_says_so(empty):
    empty.write("l4.csv", timings().replace("v100", "l4"))
    (row,) = json.loads(empty.replay("fidelity", "--measurements", "l4.csv", "--format", "json").stdout)
    assert (row["source"], row["n_fitted"], row["n"]) == ("datasheet", 0, 30)


def test_a_calibration_twice_gives_the_same_bytes(empty):
    empty.write("v100.csv", timings())
    for out in ("first", "second"):
        assert empty.replay("calibrate", "--measurements", "v100.csv", "--out", out, "--jobs", "1").exit_code == 0
    assert empty.read("first/v100-pcie-32gb.json") == empty.read("second/v100-pcie-32gb.json")


def test_an_update_keeps_the_kernels_that_are_not_fitted_now(empty):
    empty.write("v100.csv", timings())
    empty.write("other.csv", timings(factor=1.5).replace("add", "softmax"))
    fit = ("calibrate", "--out", "fits", "--jobs", "1", "--measurements")
    assert empty.replay(*fit, "v100.csv").exit_code == 0
    before = json.loads(empty.read("fits/v100-pcie-32gb.json"))["families"]
    assert empty.replay(*fit, "other.csv", "--update").exit_code == 0
    after = json.loads(empty.read("fits/v100-pcie-32gb.json"))["families"]
    assert after[0] == before[0]
    assert [entry["variant"] for entry in after] == ["fp32-add", "fp32-softmax"]
    assert empty.replay(*fit, "other.csv").exit_code == 0
    assert len(json.loads(empty.read("fits/v100-pcie-32gb.json"))["families"]) == 1


def test_an_update_of_a_broken_file_is_refused_before_the_fit(empty):
    empty.write("v100.csv", timings())
    empty.write("v100-pcie-32gb.json", "{}")
    result = empty.replay("calibrate", "--measurements", "v100.csv", "--out", ".", "--update", "--jobs", "1")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert empty.read("v100-pcie-32gb.json") == "{}"


def test_one_family_of_a_file_can_be_fitted(empty):
    empty.write("mixed.csv", timings() + timings().replace("add", "softmax").split("\n", 1)[1])
    fit = ("calibrate", "--measurements", "mixed.csv", "--out", "fits", "--jobs", "1", "--family")
    assert empty.replay(*fit, "softmax").exit_code == 0
    assert [entry["family"] for entry in json.loads(empty.read("fits/v100-pcie-32gb.json"))["families"]] == ["softmax"]
    result = empty.replay(*fit, "gemm")
    assert result.exit_code == 2
    assert "no measured row matches" in result.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "of no known kind"),
        ("gpu,op,B,H,ms\n", "row"),
        (timings().replace("v100", "v1000"), "unknown device"),
        (timings(factor=1e-3), "millisecond"),
        (timings().replace("0.00", "x", 1), ""),
        (timings().replace(",64,", ",-64,"), "whole number"),
        (timings().replace(",64,", f",{2**63 - 1},"), "whole number from 1 to 2^40"),
        (timings().replace(",64,", f",{10**23},"), "whole number from 1 to 2^40"),
        (timings().replace("B,H,ms", "B,B,ms"), "'B' stands there twice"),
        (timings().replace("add", "\xe5dd").encode("latin-1"), "not UTF-8"),
    ],
    ids=[
        "empty",
        "other columns",
        "no rows",
        "unknown device",
        "seconds for milliseconds",
        "text in a number",
        "negative size",
        "huge size",
        "size beyond 64 bits",
        "a column twice",
        "latin-1",
    ],
)
def test_a_bad_measurement_file_is_one_sentence(empty, content, says):
    empty.write("bad.csv", content)
    result = empty.replay("fidelity", "--measurements", "bad.csv")
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert "bad.csv" in result.stderr
    assert says in result.stderr


@pytest.mark.parametrize("wild", ["nan", "-1", "0", "inf", "1e300"])
def test_times_that_cannot_be_are_left_out_and_counted(empty, wild):
    empty.write("v100.csv", timings() + f"v100,add,64,64,{wild}\n")
    result = empty.replay("fidelity", "--measurements", "v100.csv")
    assert result.exit_code == 0, result.output
    assert "(1 left out: time is not a number above zero and below an hour)" in result.stdout


def test_a_filter_that_matches_nothing_is_one_sentence(empty):
    empty.write("v100.csv", timings())
    result = empty.replay("fidelity", "--measurements", "v100.csv", "--hardware", "h100-sxm")
    assert result.exit_code == 2
    assert "no measured row matches" in result.stderr


def test_the_sign_of_a_change_is_judged_between_stacks_of_one_family_only(empty):
    head, rows = "attn_dtype,kv_dtype,batch_size,num_heads,num_kv_heads,head_dim,kv_len,ms_old_1.0,ms_new_2.0\n", []
    for sequences in (1, 8, 64):
        for keys in (256, 1024, 4096):
            slow = 0.02 + sequences * keys * 8 * 128 * 4 / 1.5e12 * 1e3
            rows.append(f"bfloat16,bfloat16,{sequences},32,8,128,{keys},{slow:.6f},{1.5 * slow:.6f}")
    empty.write("attention_generation_a100.csv", head + "\n".join(rows) + "\n")
    result = empty.replay("fidelity", "--measurements", "attention_generation_a100.csv", "--format", "json")
    assert result.exit_code == 0, result.stderr
    first, second = json.loads(result.stdout)
    assert "sign_accuracy" not in first
    assert [(sign["against"], sign["n"]) for sign in second["sign_accuracy"]] == [("old_1.0 bf16-flashinfer", 9)]


def test_the_sign_of_a_change_of_format_is_judged_within_a_stack(empty):
    # Large products gain by fp8 and small ones lose by the kernel that narrows; the last one changes by less than a tenth.
    sizes = {"1024,8192,8192": (0.2, 0.11), "2048,8192,8192": (0.4, 0.21), "1,512,512": (0.002, 0.006), "2,512,512": (0.00200, 0.00201)}
    for form, index in (("bf16", 0), ("fp8", 1)):
        rows = [f"{size},{times[index]},{times[index]}" for size, times in sizes.items()]
        empty.write(f"gemm_h200_{form}.csv", "\n".join(["m,n,k,ms_a_1.0,ms_b_1.0", *rows]) + "\n")
    files = ("--measurements", "gemm_h200_bf16.csv", "--measurements", "gemm_h200_fp8.csv")
    result = empty.replay("fidelity", *files, "--format", "json")
    assert result.exit_code == 0, result.stderr
    rows = {(row["stack"], row["variant"]): row for row in json.loads(result.stdout)}
    found = {key: [(sign["against"], sign["n"], sign["right_ratio"]) for sign in row.get("sign_accuracy", ())] for key, row in rows.items()}
    assert found[("a_1.0", "fp8")] == [("a_1.0 bf16", 3, 1.0)]
    assert found[("b_1.0", "fp8")] == [("b_1.0 bf16", 3, 1.0)]
    assert found[("b_1.0", "bf16")] == []
    assert "sign right 100% of 3 against b_1.0 bf16" in empty.replay("fidelity", *files).stdout


def test_kernels_with_fewer_rows_than_parameters_are_not_fitted_and_it_is_said(empty):
    empty.write("few.csv", "\n".join(timings().splitlines()[:4]) + "\n")
    result = empty.replay("calibrate", "--measurements", "few.csv", "--out", "fits", "--jobs", "1")
    assert result.exit_code == 2
    assert "skipped elementwise pytorch fp32-add on v100-pcie-32gb" in result.stdout
    assert "nothing that can be fitted" in result.stderr
    assert not (empty.folder / "fits").exists()
