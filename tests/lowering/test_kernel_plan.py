from dataclasses import replace

import pytest

from replay.lowering.select import plan_kernels
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware


def kernels(plan):
    return {kernel.id: kernel for kernel in plan.kernels}


def moved_elements(plan):
    """Elements that element-wise kernels read and write for one row, over all calls."""
    shapes = [(kernel.shape, kernel.calls_count) for kernel in plan.kernels if hasattr(kernel.shape, "read_elements")]
    return sum((shape.read_elements + shape.written_elements) * calls for shape, calls in shapes)


@pytest.mark.parametrize(
    ("knob", "more_launches"),
    [
        ("qkv", 2 * 32),
        ("gate_up", 32),
        ("gated_activation", 32),
        ("residual_norm", 2 * 32),
        ("rope_kv_write", 32),
    ],
)
def test_turning_a_fusion_off_adds_its_launches(knob, more_launches):
    fused = plan_kernels(LLAMA_8B, round_hardware(), mapping())
    apart = plan_kernels(LLAMA_8B, round_hardware(), mapping("[fusion]", f"{knob} = false"))
    count = [sum(kernel.calls_count for kernel in plan.kernels) for plan in (fused, apart)]
    assert count[1] - count[0] == more_launches


@pytest.mark.parametrize("knob", ["gated_activation", "residual_norm", "rope_kv_write"])
def test_fusion_removes_traffic(knob):
    fused = plan_kernels(LLAMA_8B, round_hardware(), mapping())
    apart = plan_kernels(LLAMA_8B, round_hardware(), mapping("[fusion]", f"{knob} = false"))
    assert moved_elements(fused) < moved_elements(apart)


def test_fusing_columns_keeps_the_product_size():
    fused = kernels(plan_kernels(LLAMA_8B, round_hardware(), mapping()))
    assert fused["qkv"].matmul.columns == (32 + 8 + 8) * 128
    assert fused["gate_up"].matmul.columns == 2 * 14336


def test_every_operator_runs_in_exactly_one_kernel():
    for model in (LLAMA_8B, MIXTRAL):
        plan = plan_kernels(model, round_hardware(), mapping())
        run = [op for kernel in plan.kernels for op in kernel.ops]
        assert sorted(run) == sorted(plan.graph.names)


def test_low_precision_activations_fall_back_where_the_device_has_no_rate():
    device = round_hardware(matrix_flops_per_s={"bf16": 100e12})
    plan = plan_kernels(LLAMA_8B, device, mapping("[formats]", 'weights = "fp8"', 'activations = "fp8"'))
    fallbacks = {decision.knob: decision for decision in plan.decisions if decision.reason}
    assert set(fallbacks) == {f"formats.activations@{layer}" for layer in ("qkv", "output_proj", "mlp", "lm_head")}
    assert fallbacks["formats.activations@mlp"].effective == "bf16"
    assert "round has no fp8 matrix rate" in fallbacks["formats.activations@mlp"].reason


def test_low_precision_activations_need_weights_of_the_same_format():
    plan = plan_kernels(LLAMA_8B, round_hardware(), mapping("[formats]", 'activations = "fp8"'))
    assert {decision.effective for decision in plan.decisions if decision.knob.startswith("formats.activations")} == {"bf16"}


def test_native_low_precision_launches_a_narrowing_kernel_with_each_product():
    plan = plan_kernels(LLAMA_8B, round_hardware(), mapping("[formats]", 'weights = "fp8"', 'activations = "fp8"'))
    plain = plan_kernels(LLAMA_8B, round_hardware(), mapping())
    launches = [sum(kernel.launches_count for kernel in one.kernels) for one in (plan, plain)]
    assert launches[0] - launches[1] == 4 * 32 + 1
    assert not [kernel for kernel in plan.kernels if kernel.layer_type == "transform"]


def test_activations_follow_an_eight_bit_checkpoint_where_the_device_can():
    checkpoint = replace(LLAMA_8B, weights_format="fp8")
    for rates, effective in (({"bf16": 1e14, "fp8": 2e14}, "fp8"), ({"bf16": 1e14}, "bf16")):
        plan = plan_kernels(checkpoint, round_hardware(matrix_flops_per_s=rates), mapping())
        found = {(k.weights_format, k.activations_format) for k in plan.kernels if k.backends and k.id != "lm_head"}
        assert found == {("fp8", effective)}
        assert (kernels(plan)["lm_head"].weights_format, kernels(plan)["lm_head"].activations_format) == ("bf16", "bf16")
        assert not [decision for decision in plan.decisions if decision.reason]


def test_experts_run_as_one_kernel_on_matrix_units():
    plan = plan_kernels(MIXTRAL, round_hardware(), mapping("[gemm]", '"backend@moe" = "vector"'))
    experts = kernels(plan)["experts"]
    assert (experts.weights_count, experts.calls_count) == (8 * 3 * 4096 * 14336, 32)
    assert {bin_.backend for bin_ in experts.backends} == {"matrix"}
    reasons = {d.reason for d in plan.decisions if d.knob.startswith("gemm.backend@moe") and d.reason}
    assert "grouped products run on matrix units only" in reasons


def test_column_major_activations_add_a_transform_only_where_scoped():
    plan = plan_kernels(LLAMA_8B, round_hardware(), mapping("[layout]", '"activations@mlp" = "column_major"'))
    assert {kernel.id for kernel in plan.kernels if kernel.layer_type == "transform"} == {"transpose_gate_up", "transpose_down_proj"}


def test_misaligned_operands_run_on_vector_units_with_the_reason():
    odd = replace(LLAMA_8B, vocabulary_size=128257)
    plan = plan_kernels(odd, round_hardware(), mapping())
    assert {bin_.backend for bin_ in kernels(plan)["lm_head"].backends} == {"vector"}
    reasons = [decision.reason for decision in plan.decisions if decision.knob.startswith("gemm.backend@lm_head")]
    assert all("not a multiple of 16" in reason for reason in reasons)


def test_a_backend_scoped_to_rows_applies_to_those_rows_only():
    plan = plan_kernels(LLAMA_8B, round_hardware(), mapping("[gemm]", '"backend@mlp.decode[rows<=4]" = "vector"'))
    found = [(b.phase, b.first_row, b.last_row, b.backend) for b in kernels(plan)["gate_up"].backends]
    assert found == [(0, 1, 4, "vector"), (0, 5, 2048, "matrix"), (1, 1, 2048, "matrix")]
