"""Whole servers: rows to wholes, what is left out and why, laws of the predictions, and the error on shared data."""

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.fidelity import compare
from replay.calibration.kinds.serving import CACHE_DECIDES, PROMPTS_DECIDE, SERVING_KIND
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.ingress.model_config import read_model
from tests.calibration.whole_tables import errors, table

COLUMNS = {
    "backend": "vllm",
    "backend_version": "0.12.0",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "",
    "isl": 1024,
    "osl": 512,
    "gemm_quant_mode": "",
    "moe_quant_mode": "",
    "batch_size": 16,
    "tp_size": 4,
    "pp_size": 1,
    "attention_dp_size": "",
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "silicon_ttft_ms": 150,
    "silicon_tpot_ms": 12,
    "measured": "",
    "concurrency": 16,
}
GPT_OSS = {"model_path": "openai/gpt-oss-120b", "gemm_quant_mode": "nvfp4", "tp_size": 2}


def read(*changes, columns=COLUMNS):
    rows = [",".join(str({**columns, **change}[name]) for name in columns) for change in changes]
    return SERVING_KIND.read(table(",".join(columns), *rows), "servers.csv")


def predicted(metric, *changes):
    (whole,) = (whole for whole in read(*changes) if whole.variant.endswith(metric))
    return whole.predict(read_hardware(whole.hardware)).seconds


def test_a_set_is_of_a_device_a_stack_a_model_with_its_format_and_a_metric():
    found = read({}, {"tp_size": 8, "silicon_tpot_ms": ""}, {"backend": "trtllm", "backend_version": "", "gemm_quant_mode": "fp8"})
    assert [(whole.hardware, whole.stack, whole.variant, len(whole.seconds)) for whole in found] == [
        ("h100-sxm", "trtllm", "qwen3-32b-fp8-ttft", 1),
        ("h100-sxm", "trtllm", "qwen3-32b-fp8-tpot", 1),
        ("h100-sxm", "vllm_0.12.0", "qwen3-32b-bf16-ttft", 2),
        ("h100-sxm", "vllm_0.12.0", "qwen3-32b-bf16-tpot", 1),
    ]
    assert found[0].seconds == pytest.approx([0.150])
    assert {name: column.tolist() for name, column in found[2].shapes.items()} == {
        "prompt_tokens": [1024, 1024],
        "output_tokens": [512, 512],
        "concurrency": [16, 16],
        "ranks": [4, 8],
    }


LEFT_OUT = {
    "no description of the model 'acme/x'": {"model_path": "acme/x"},
    "the catalog has no figures of the system 'gb200'": {"system": "gb200"},
    "pipeline parallelism is not priced": {"pp_size": 2},
    "data parallel attention is not priced": {"attention_dp_size": 4},
    "expert parallelism is not priced": {"model_path": "Qwen/Qwen3-235B-A22B-FP8", "gemm_quant_mode": "fp8_block", "moe_ep_size": 4},
    "no concurrency is stated": {"concurrency": ""},
    "one output token: nothing is decoded": {"osl": 1},
    "time is not a number above zero and below an hour": {"silicon_ttft_ms": 0, "silicon_tpot_ms": -1},
    "qwen3-32b has 64 attention heads, which 3 ranks cannot share": {"tp_size": 3},
    "gpt-oss in another format than its 4-bit experts": {**GPT_OSS, "gemm_quant_mode": "fp8"},
    "qwen3-32b in int4_wo": {"gemm_quant_mode": "int4_wo"},
}


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_what_cannot_be_priced_is_counted_with_its_reason(reason):
    assert read({}, LEFT_OUT[reason], LEFT_OUT[reason])[0].skipped == ((reason, 2),)
    with pytest.raises(SpecError, match="no row can be predicted"):
        read(LEFT_OUT[reason])


def test_an_fp8_table_of_a_model_that_is_stored_in_fp8_blocks_means_those():
    found = read({"model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "gemm_quant_mode": "fp8", "tp_size": 8})
    assert [whole.variant for whole in found] == ["deepseek-v3-fp8_block-ttft", "deepseek-v3-fp8_block-tpot"]


def test_dense_models_share_no_experts():
    assert len(read({"moe_ep_size": 4})) == 2


def test_a_token_takes_at_least_its_weights_and_not_twice_that_at_one_client():
    """Qwen3-32B in 16 bit on 4 H100: 31.98e9 weights that a step reads (head included) at 3.35 TB/s are 4.77 ms."""
    model = read_model("qwen3-32b")
    layer = model.hidden_size * 128 * (64 + 2 * 8) + 64 * 128 * model.hidden_size + 3 * model.hidden_size * model.intermediate_size
    weights = 64 * layer + model.hidden_size * model.vocabulary_size
    assert weights == pytest.approx(31.98e9, rel=1e-3)
    least = 2 * weights / 4 / 3.35e12
    assert least < predicted("tpot", {"concurrency": 1})[0] < 2 * least


def test_more_clients_longer_prompts_and_fewer_ranks_make_tokens_slower_and_fp8_faster():
    base = predicted("tpot", {})[0]
    assert predicted("tpot", {"concurrency": 64})[0] > base
    assert predicted("tpot", {"isl": 4096})[0] > base
    assert predicted("tpot", {"tp_size": 2})[0] > base
    assert predicted("tpot", {"gemm_quant_mode": "fp8"})[0] < base


def test_layers_with_a_window_make_gpt_oss_faster_at_long_contexts_only():
    short, long = predicted("tpot", {**GPT_OSS, "isl": 64, "osl": 64}, {**GPT_OSS, "isl": 8192, "osl": 64, "concurrency": 64})
    full = predicted("tpot", {"isl": 64, "osl": 64}, {"isl": 8192, "osl": 64, "concurrency": 64})
    assert 1 < long / short < full[1] / full[0]


def test_first_tokens_that_a_queue_decides_are_no_forecast():
    crowd = {"osl": 64, "concurrency": 128}
    over = {"tp_size": 2, "isl": 8192, "osl": 4096, "concurrency": 128}  # 10,240 tokens of 262,144 bytes each: 343 GB of cache
    (ttft, _) = read({}, crowd, over)
    one = compare("serving", ttft, lambda _: None)
    assert one.held_out.tolist() == [True, False, False]
    assert dict(one.measured.skipped) == {PROMPTS_DECIDE: 1, CACHE_DECIDES: 1}
    assert one.to_document()["n_skipped"] == 2


def test_a_set_that_a_queue_decides_wholly_has_no_figures():
    (ttft, _) = read({"osl": 64, "concurrency": 128})
    document = compare("serving", ttft, lambda _: None).to_document()
    assert (document["n"], document["mape_percent"], document["by_decade"]) == (0, None, [])


BAD = {
    "unknown backend": ({"backend": "vlm"}, "did you mean 'vllm'"),
    "unknown system": ({"system": "h1000_sxm"}, "unknown device 'h1000-sxm'"),
    "negative ranks": ({"tp_size": -1}, "tp_size, row 2: -1"),
    "half a client": ({"concurrency": 1.5}, "concurrency, row 2: 1.5"),
    "text as concurrency": ({"concurrency": "many"}, "'many'"),
    "no prompt": ({"isl": 0}, "isl, row 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    change, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        read(change)
    message = str(caught.value)
    assert message.startswith("servers.csv")
    assert named in message
    assert "\n" not in message


def test_columns_are_the_ones_of_the_kind():
    assert SERVING_KIND.recognises(frozenset(COLUMNS))
    with pytest.raises(SpecError, match="no column concurrency"):
        read({}, columns={name: value for name, value in COLUMNS.items() if name != "concurrency"})


NEAR = {
    ("h100-sxm", "vllm_0.12.0", "qwen3-32b-bf16-tpot"): 0.15,
    ("h100-sxm", "trtllm_1.0.0rc3", "qwen3-32b-fp8-tpot"): 0.35,
    ("h100-sxm", "vllm_0.18.0", "gpt-oss-120b-mxfp4-tpot"): 0.25,
    ("h100-sxm", "vllm_0.12.0", "qwen3-32b-bf16-ttft"): 0.45,
    ("h100-sxm", "vllm_0.18.0", "gpt-oss-120b-mxfp4-ttft"): 0.40,
}
"""Mean error of times per token and to the first token, with slack."""


def test_times_of_measured_servers_are_near(shared):
    path = shared / "data" / "measurements" / "e2e_serving_agg.csv"
    found = errors(SERVING_KIND, path, lambda whole: (whole.hardware, whole.stack, whole.variant) in NEAR)
    assert {place: np.abs(error).mean() < NEAR[place] for place, error in found.items()} == dict.fromkeys(NEAR, True)


def test_every_measured_row_is_predicted_or_counted(shared):
    measured = pyarrow.csv.read_csv(shared / "data" / "measurements" / "e2e_serving_agg.csv")
    found = SERVING_KIND.read(measured, "e2e_serving_agg.csv")
    rows = sum(len(whole.seconds) for whole in found if whole.variant.endswith("tpot"))
    assert rows + sum(count for whole in found for _, count in whole.skipped) == measured.num_rows
