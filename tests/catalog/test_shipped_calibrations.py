"""Shipped calibrations are small, valid, and as good as they say on kernels that their fit has not seen."""

from pathlib import Path

import pytest

from replay.calibration.fidelity import compare, report
from replay.calibration.kinds.layers import OPERATORS
from replay.calibration.reader import read_measurements
from replay.catalog import calibration
from replay.catalog.calibration import read_calibration, shipped_calibration
from replay.catalog.hardware import hardware_names, read_hardware
from tests.catalog.shipped_families import family_of

FOLDER = Path(calibration.__file__).with_name("calibrations")
SHIPPED = sorted(FOLDER.glob("*.json"))

# Mean and median error, %, that the product aims at for these kinds, or reaches with some slack, and the files that show it.
TARGETS = [
    ("moe_a100_sglang_0.5.10.csv", "", 12, 8),
    ("moe_l40s_vllm_0.24.0.csv", "bf16", 12, 8),
    ("moe_l40s_vllm_0.24.0.csv", "fp8", 26, 10),
    ("gemm_a100_bf16.csv", "", 6, 4.5),
    ("gemm_h100_bf16.csv", "", 5.7, 4.0),  # aimed at 4.5 and 3: two runs of SGLang differ by 5.6 and 3.0 %
    ("gemm_b200_bf16.csv", "", 7.4, 4.8),  # aimed at 5.5 and 4.5: stacks with one library differ by 5.0 to 5.7 %
    ("gemm_l40s_bf16.csv", "", 10.5, 6.5),
    ("gemm_h100_fp8.csv", "", 6, 4.2),
    ("gemm_b200_fp8.csv", "", 7, 4),
    ("gemm_l40s_fp8.csv", "", 8.5, 5.6),
    ("gemm_h100_fp8_block.csv", "", 7, 4.5),
    ("gemm_b200_nvfp4.csv", "", 5.2, 3.2),
    ("gemm_a100_int_quant.csv", "", 7.5, 5),
    ("gemm_power_b200_vllm_0.22.0.csv", "", 7, 5.2),
    ("vidur_mlp_a100.csv", "bf16", 7, 5),
    ("vidur_mlp_h100.csv", "bf16", 7.5, 5.5),
    ("quantize_fp8_vllm_0.24.0.csv", "", 15, 9),  # finding the scale on a B200 is a difference of timings in steps of 0.4 us
    ("attention_context_a100.csv", "", 3.5, 2.2),
    ("attention_context_h100.csv", "", 6.2, 4.7),
    ("attention_context_b200.csv", "", 5.8, 4),
    ("attention_context_power_b200_vllm_0.22.0.csv", "", 5.8, 4),
    ("attention_context_l40s.csv", "", 7.2, 4.6),
    ("attention_context_window128_h100.csv", "", 10, 8.2),  # aimed at 7 and 4: a band of 128 keys, few rows to fit
    ("attention_generation_a100.csv", "", 3.2, 2.5),
    ("attention_generation_h100.csv", "", 8.4, 4.2),  # aimed at 4 and 2.5: TensorRT-LLM's masked kernel switches between its own splits
    ("attention_generation_b200.csv", "", 5, 3.6),  # aimed at 4 and 2.5: vLLM 0.24 was timed in steps of 2 us
    ("attention_generation_power_b200_vllm_0.22.0.csv", "", 3.8, 1.9),
    ("attention_generation_l40s.csv", "", 5.4, 3.5),
    ("attention_generation_window128_h100.csv", "", 15, 7.7),
    ("collectives_aic.csv", "", 16, 8),  # the L40S node; every other one below 11.1
    ("vidur_network.csv", "", 8, 4.4),
    ("neusight_vector_fp32.csv", "", 5, 3.7),
    ("neusight_vector_amd.csv", "", 7.6, 3),
    ("neusight_linear_fp32.csv", "", 7, 4.5),
    ("neusight_bmm_fp32.csv", "", 19, 12),
    ("deepbench_gemm.csv", "", 18, 8),
    ("deepbench_conv.csv", "", 19, 12.2),
    ("llmcompass_ops_a100.csv", "", 10, 6),
    *((file, operator, 6.3, 4.1) for file in ("vidur_mlp_a100.csv", "vidur_mlp_h100.csv") for operator in OPERATORS),
]


def test_there_are_shipped_calibrations():
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_calibration_is_valid_small_and_of_a_device_in_the_catalog(path):
    document = read_calibration(path)
    assert document.hardware == path.stem
    assert document.hardware in hardware_names()
    assert path.stat().st_size < 200_000
    assert all(entry.error.n_fitted > 0 for entry in document.families)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_entry_is_of_a_family_that_can_be_rebuilt_with_parameters_inside_its_bounds(path):
    document = read_calibration(path)
    device = read_hardware(document.hardware)
    named = [(entry.family, entry.stack, entry.variant) for entry in document.families]
    assert len(set(named)) == len(named)
    for entry in document.families:
        family = family_of(entry, device)
        assert family.name == entry.family
        bounds = {definition.name: (definition.lower, definition.upper) for definition in family.parameters}
        assert set(entry.parameters) == set(bounds), entry.variant
        for name, (lower, upper) in bounds.items():
            assert lower - 1e-5 * abs(lower) - 1e-8 <= entry.parameters[name] <= upper + 1e-5 * abs(upper), (entry.variant, name)
        assert entry.residual is None or entry.residual.features == family.residual_features, entry.variant


@pytest.mark.slow
@pytest.mark.parametrize(("file", "variant", "mean", "median"), TARGETS)
def test_a_shipped_calibration_predicts_unseen_shapes_as_well_as_it_says(shared, file, variant, mean, median):
    found = [compare(kind, measured, shipped_calibration) for kind, measured in read_measurements(shared / "data/measurements" / file)]
    rows = [one.to_document() for one in found if one.source == "calibrated" and one.measured.variant.startswith(variant)]
    assert rows
    for row in rows:
        assert row["mape_percent"] < mean, row
        assert row["median_ape_percent"] < median, row
        recorded = shipped_calibration(row["hardware"]).find(row["family"], row["variant"], row["stack"]).error
        if recorded.n == row["n"]:  # a fit over several files records the error over all of them
            assert row["mape_percent"] == pytest.approx(100 * recorded.mean_ratio, abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["h100", "b200", "l40s"])
def test_the_sign_of_a_change_to_fp8_is_right_for_nine_in_ten_clear_changes(shared, hardware):
    files = [shared / f"data/measurements/gemm_{hardware}_{form}.csv" for form in ("bf16", "fp8")]
    rows = report([compare(kind, measured, shipped_calibration) for path in files for kind, measured in read_measurements(path)])
    signs = {row["stack"]: sign for row in rows for sign in row.get("sign_accuracy", ()) if sign["against"] == f"{row['stack']} bf16"}
    assert len(signs) >= 2
    for stack, sign in signs.items():
        assert sign["n"] > 1000, stack
        assert sign["right_ratio"] >= 0.9, (stack, sign)
