"""`replay fidelity` on whole layers, passes and servers, which `replay calibrate` leaves alone."""

import json

import pytest

from tests.cli.test_fidelity import timings

PASSES = "gpu,model,phase,seq,batch,variant,e2e_ms,fw_ms\nTesla_V100-PCIE-32GB,bert_large,inf,512,16,unfused,518,518\n"
LAYER = "op,ms\nlayernorm_mha,0.68\ngelu,0.52\n"
SERVERS = (
    "backend,backend_version,model_path,system,isl,osl,gemm_quant_mode,tp_size,pp_size,attention_dp_size,moe_ep_size,concurrency,"
    "silicon_ttft_ms,silicon_tpot_ms\n"
    "vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,1024,512,,4,1,1,1,16,160,11.9\n"
    "vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,1024,64,,4,1,1,1,128,800,40\n"
    "sglang,0.5.9,zhipuai/GLM-5,b200_sxm,1024,512,,4,1,1,1,16,160,11.9\n"
)


def rows(empty, *arguments):
    result = empty.replay("fidelity", *arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_wholes_are_rows_like_the_others_and_never_fitted(empty):
    for name, content in (("layer_a100x4.csv", LAYER), ("passes.csv", PASSES), ("servers.csv", SERVERS)):
        empty.write(name, content)
    names = ("layer_a100x4.csv", "passes.csv", "servers.csv")
    found = rows(empty, *(part for name in names for part in ("--measurements", name)))
    assert [(row["kind"], row["family"], row["hardware"], row["n"], row["n_fitted"]) for row in found] == [
        ("model_layer", "parts", "a100-sxm-80gb", 2, 0),
        ("model_layer", "parts", "a100-sxm-80gb", 1, 0),
        ("model_forward", "parts", "v100-pcie-32gb", 1, 0),
        ("serving", "parts", "h100-sxm", 1, 0),
        ("serving", "parts", "h100-sxm", 2, 0),
    ]
    assert {entry["reason"]: entry["rows"] for entry in found[3]["skipped"]} == {
        "no description of the model 'zhipuai/GLM-5'": 1,
        "prompts fill more than half of the time: a queue decides": 1,
    }
    assert all(row["mape_percent"] > 0 and row["by_decade"] for row in found)


def test_a_row_without_a_forecast_is_shown_without_figures(empty):
    empty.write("servers.csv", "".join(line for line in SERVERS.splitlines(keepends=True) if ",512,," not in line))
    result = empty.replay("fidelity", "--measurements", "servers.csv")
    assert result.exit_code == 0, result.stderr
    assert next(line for line in result.stdout.splitlines() if "ttft" in line).split()[5:11] == ["0", "0", "-", "-", "-", "-"]


def test_a_calibration_that_is_given_prices_the_kernels_it_holds(empty):
    empty.write("v100.csv", timings(factor=10.0))
    assert empty.replay("calibrate", "--measurements", "v100.csv", "--out", "fits", "--jobs", "1").exit_code == 0
    empty.write("passes.csv", PASSES)
    (shipped,) = rows(empty, "--measurements", "passes.csv")
    (given,) = rows(empty, "--measurements", "passes.csv", "--calibration", "fits/v100-pcie-32gb.json")
    assert given["bias_percent"] > shipped["bias_percent"] + 1  # additions that take ten times as long


def test_calibrate_leaves_wholes_out_and_says_how_many(empty):
    empty.write("v100.csv", timings())
    empty.write("passes.csv", PASSES)
    result = empty.replay("calibrate", "--measurements", "v100.csv", "--measurements", "passes.csv", "--out", "fits", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    skipped, wrote = result.stdout.splitlines()
    assert skipped == "skipped 1 rows of model_forward on v100-pcie-32gb: wholes are predicted from calibrated kernels, never fitted"
    assert wrote.endswith("1 kernel families")


@pytest.mark.parametrize(
    ("verb", "name", "content", "says"),
    [
        ("calibrate", "passes.csv", PASSES, "nothing that can be fitted"),
        ("fidelity", "passes.csv", PASSES.replace("518,518", "0.518,0.518"), "milliseconds"),
        ("fidelity", "servers.csv", SERVERS.replace("11.9", "0.0119").replace("40\n", "0.04\n"), "milliseconds"),
        ("fidelity", "layer_a100x4.csv", LAYER.replace("0.", "0.000"), "milliseconds"),
    ],
    ids=["nothing to fit", "a pass in seconds", "servers in seconds", "a layer in seconds"],
)
def test_what_cannot_be_is_one_sentence(empty, verb, name, content, says):
    empty.write(name, content)
    result = empty.replay(verb, "--measurements", name, *(("--out", "fits") if verb == "calibrate" else ()))
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr
