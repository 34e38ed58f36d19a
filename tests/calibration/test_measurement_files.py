"""Files of measured kernels at the door of a replay: which rows are kept for which accelerator, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from replay.calibration.measured_kernels import with_measurements
from replay.catalog.hardware import hardware_from_document, read_hardware
from replay.errors import SpecError
from replay.provenance import digest_bytes
from replay.tiling.measured_hull import timings

A100, L40S = read_hardware("a100-sxm-80gb"), read_hardware("l40s")
ATTENTION = """attn_dtype,kv_dtype,batch_size,num_heads,num_kv_heads,head_dim,kv_len,ms_vllm_0.14.0,ms_sglang_0.5.10
bfloat16,bfloat16,1,32,8,128,1024,0.021,0.023
bfloat16,bfloat16,16,32,8,128,1024,0.0731,
bfloat16,bfloat16,16,32,8,128,2048,0.13,0
"""
VECTOR = "gpu,op,B,H,ms\na100,add,4096,4096,0.2\nh100,add,4096,4096,0.1\nh100,add,64,4096,0.01\n"
CONVOLUTION = (
    "gpu,kind,precision,w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h,fwd_ms\nv100,train,FP32,56,56,64,16,64,3,3,1,1,1,1,0.9\n"
)


def joined(tmp_path, text, *devices, name="attention_generation_a100.csv"):
    path = tmp_path / name
    path.write_text(text)
    return with_measurements(devices or [A100], [(f"tables/{name}", path)])


def test_rows_are_kept_by_family_variant_and_stack_with_their_file(tmp_path):
    [device] = joined(tmp_path, ATTENTION)
    kept = {(one.family, one.variant, one.stack): one for one in device.measured}
    assert set(kept) == {("decode_attention", "bf16-flash2", "vllm_0.14.0"), ("decode_attention", "bf16-flashinfer", "sglang_0.5.10")}
    assert {(one.name, one.digest) for one in device.measured} == {
        ("tables/attention_generation_a100.csv", digest_bytes(ATTENTION.encode()))
    }
    assert sum(one.rows_count for one in device.measured) == 4
    assert sum(one.set_aside_count for one in device.measured) == 1  # the time of zero; an empty cell is no row
    found = timings([kept["decode_attention", "bf16-flash2", "vllm_0.14.0"]])
    assert found.seconds.tolist() == (np.array([0.021, 0.0731, 0.13]) * 1e-3).tolist()
    assert found.shapes["context_tokens"].tolist() == [1024, 1024, 2048]


def test_rows_of_other_accelerators_are_set_aside_and_counted(tmp_path):
    a100, l40s = joined(tmp_path, VECTOR, A100, L40S, name="vector.csv")
    assert [(one.variant, one.rows_count, one.set_aside_count) for one in a100.measured] == [("fp32-add", 1, 2)]
    assert l40s == L40S


def test_an_accelerator_that_the_file_does_not_measure_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"tables/attention_generation_a100.csv: kernels of a100-sxm-80gb and none of l40s; want"):
        joined(tmp_path, ATTENTION, L40S)


def test_kernels_that_no_serving_step_has_are_refused(tmp_path):
    device = read_hardware("v100-pcie-32gb")
    with pytest.raises(SpecError, match="only convolution kernels of v100-pcie-32gb; want kernels of a serving step: gemm,"):
        joined(tmp_path, CONVOLUTION, device, name="conv.csv")


def test_a_time_that_physics_does_not_allow_is_refused_with_its_row(tmp_path):
    fast = ATTENTION.replace("0.13,0", "0.013,0").replace("16,32,8,128,2048", "64,32,8,128,65536")
    with pytest.raises(SpecError) as caught:
        joined(tmp_path, fast)
    text = str(caught.value)
    assert "1.3e-05 s for decode_attention bf16-flash2 of sequences 64, context_tokens 65536" in text
    assert "which a100-sxm-80gb needs by its peaks" in text
    assert text.count("\n") == 0


def test_the_same_file_twice_counts_once(tmp_path):
    [once] = joined(tmp_path, ATTENTION)
    [twice] = joined(tmp_path, ATTENTION, once)
    assert twice == once


def test_measured_kernels_pass_through_the_recorded_form_and_change_the_digest(tmp_path):
    [device] = joined(tmp_path, ATTENTION)
    again = hardware_from_document(json.loads(json.dumps(device.to_document())), "bundle.json")
    assert again == device
    assert again.digest == device.digest != A100.digest
    assert replace(device, measured=()).digest == A100.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "sequences,seconds\n1,nan\n"}, "not all finite, or not as many"),
        ({"table": "sequences,seconds\n1,x\n"}, "no table of numbers"),
        ({"table": "sequences\n1\n"}, "not all finite, or not as many"),
        ({"table": ""}, "no table of numbers"),
        ({"table": "sequences,seconds\n1,0\n", "rows_count": 1}, "not above zero"),
        ({"rows_count": 2}, "not as many as it says"),
        ({"stack": None}, "stack is None"),
        ({"more": 1}, "no list of measured kernels"),
    ],
)
def test_recorded_measurements_that_no_replay_wrote_are_refused(tmp_path, change, message):
    [device] = joined(tmp_path, ATTENTION)
    document = device.to_document()
    document["measured"][0] |= change
    with pytest.raises(SpecError, match=f"bundle.json: hardware: measured: .*{message}"):
        hardware_from_document(document, "bundle.json")
