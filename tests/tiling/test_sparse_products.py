"""2:4 sparse weights: half the bytes, a modest gain where compute decides, a loss for few rows, dense where nothing can run them."""

from dataclasses import replace

import pytest

from replay.catalog.hardware import read_hardware
from replay.lowering.select import plan_kernels
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import compile_mapping
from tests.models import LLAMA_8B, MIXTRAL, mapping

SPARSE = ("[formats]", '"sparsity@mlp" = "2:4"')


def gate_up(rows, *lines):
    device, spec = read_hardware("h100-sxm"), mapping(*lines)
    compiled = compile_mapping(LLAMA_8B, device, spec)
    step = StepShape(name="step", prefill_tokens=rows)
    return next(row for row in mapping_sheet(compiled, device, spec, (step,)).to_pylist() if row["kernel"] == "gate_up")


def test_the_kept_half_and_its_places_are_stored():
    dense, sparse = (plan_kernels(LLAMA_8B, read_hardware("h100-sxm"), mapping(*lines)) for lines in ((), SPARSE))
    for before, after in zip(dense.kernels, sparse.kernels, strict=True):
        ratio = 0.5 * (2 + 0.25) / 2 if before.layer_type == "mlp" and before.weights_count else 1.0
        assert after.weights_bytes == pytest.approx(before.weights_bytes * ratio)


def test_compute_bound_products_gain_less_than_the_peak_promises():
    dense, sparse = (
        gate_up(8192, "[batching]", "max_batched_tokens = 8192"),
        gate_up(8192, *SPARSE, "[batching]", "max_batched_tokens = 8192"),
    )
    assert 1.1 < dense["time_s"] / sparse["time_s"] <= 1.3 + 1e-9
    assert (sparse["source"], sparse["error_ratio"]) == ("datasheet", 0.5)


def test_one_row_costs_as_much_as_thirty_two():
    assert gate_up(1, *SPARSE)["time_s"] == pytest.approx(gate_up(32, *SPARSE)["time_s"])
    assert gate_up(1, *SPARSE)["padding_ratio"] >= 1 - 1 / 32


@pytest.mark.parametrize(
    ("device", "model", "layer", "why"),
    [("v100-pcie-32gb", LLAMA_8B, "mlp", "no sparse matrix units"), ("h100-sxm", MIXTRAL, "moe", "no sparse kernels")],
)
def test_where_nothing_runs_sparse_weights_they_stay_dense_with_the_reason(device, model, layer, why):
    spec = mapping("[formats]", f'"sparsity@{layer}" = "2:4"')
    plan = plan_kernels(replace(model), read_hardware(device), spec)
    [decision] = [found for found in plan.decisions if found.knob == f"formats.sparsity@{layer}" and found.reason]
    assert (decision.requested, decision.effective) == ("2:4", "none")
    assert why in decision.reason
