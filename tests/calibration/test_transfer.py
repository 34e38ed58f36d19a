"""Calibrations carried over to another device: by its datasheet alone, and by four parameters fitted on a hundred rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay.calibration.fidelity import compare
from replay.calibration.kinds.gemm import product_set
from replay.calibration.reader import read_measurements
from replay.calibration.transfer import REFITTED, refitted
from replay.catalog.calibration import shipped_calibration
from replay.catalog.hardware import read_hardware
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration, ResidualSpec
from replay.tiling.families.gemm import gemm_family
from replay.tiling.families.gemm_features import FEATURES

ERROR = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.1, median_ratio=0.1, p90_ratio=0.1, bias_ratio=0.0)
ZEROS = (0.0,) * len(FEATURES)
SIZES = [column.ravel() for column in np.meshgrid([1, 64, 1024, 8192], [1024, 4096, 7168, 12288, 28672], [512, 2048, 4096, 8192])]


def made_up(hardware, *, stack="vllm_1.0", **changes):
    """Return (calibration, measured set) of products that follow the family's start parameters, with `changes` for the set."""
    family = gemm_family("bf16", stack, read_hardware(hardware))
    start = {part.name: part.start for part in family.parameters}
    entry = FamilyCalibration(family="gemm", stack=stack, variant="bf16", parameters=start, residual=None, error=ERROR)
    empty = product_set((hardware, stack, "bf16"), SIZES, np.ones(len(SIZES[0])))
    return entry, replace(empty, seconds=family.seconds(empty.shapes, read_hardware(hardware), {**start, **changes}))


def test_another_devices_calibration_is_named_and_nothing_counts_as_seen():
    entry, measured = made_up("h200-sxm")
    document = CalibrationDocument(hardware="h100-sxm", families=(entry,), split="rule")
    found = compare("gemm", measured, lambda _: document)
    assert found.source == "calibrated for h100-sxm"
    assert found.held_out.all()
    assert found.predicted_s == pytest.approx(measured.seconds)
    other = CalibrationDocument(hardware="h100-sxm", families=(replace(entry, stack="trtllm_1.0"),), split="rule")
    assert compare("gemm", measured, lambda _: other).source == "calibrated for h100-sxm trtllm_1.0"


def test_another_devices_residual_is_not_carried_over():
    entry, measured = made_up("h200-sxm")
    scale = (100.0,) * len(FEATURES)
    bump = ResidualSpec(features=FEATURES, mean=ZEROS, scale=scale, length=1.0, centres=(ZEROS,), weights=(1.0,))
    entry = replace(entry, residual=bump)
    own, other = (CalibrationDocument(hardware=name, families=(entry,), split="rule") for name in ("h200-sxm", "h100-sxm"))
    assert compare("gemm", measured, lambda _: other).predicted_s == pytest.approx(measured.seconds)
    assert (compare("gemm", measured, lambda _: own).predicted_s > 1.5 * measured.seconds).all()


def test_by_datasheet_an_h200_is_an_h100_with_faster_memory():
    entry, measured = made_up("h100-sxm")
    old, new = (
        gemm_family("bf16", entry.stack, read_hardware(name)).seconds(measured.shapes, read_hardware(name), entry.parameters)
        for name in ("h100-sxm", "h200-sxm")
    )
    assert (new <= old * (1 + 1e-9)).all()
    rows, _, depth = SIZES
    ratio = read_hardware("h200-sxm").memory_bytes_per_s / read_hardware("h100-sxm").memory_bytes_per_s
    bound_by_memory = (rows == 1) & (SIZES[1] == 28672) & (depth == 8192)
    assert (old / new)[bound_by_memory] == pytest.approx(ratio, rel=0.06)
    assert (old / new)[(rows == 8192) & (SIZES[1] == 12288) & (depth == 8192)] == pytest.approx(1.0, abs=0.02)


def test_a_refit_finds_the_four_parameters_and_keeps_the_others():
    truth = {"floor_s": 4e-6, "compute_efficiency_ratio": 0.6, "memory_efficiency_ratio": 0.9, "step_latency_cycles": 400.0}
    entry, measured = made_up("b200-sxm", **truth)
    found = refitted(entry, measured, rows=30, seed=0)
    assert {name: found.parameters[name] for name in REFITTED} == pytest.approx(truth, rel=0.02)
    assert {name: value for name, value in found.parameters.items() if name not in REFITTED} == {
        name: value for name, value in entry.parameters.items() if name not in REFITTED
    }
    assert found.error.n_fitted == 30
    assert found.error.mean_ratio < 0.01


@pytest.mark.slow
def test_an_h100s_calibration_predicts_a_b200_without_and_with_a_hundred_rows(shared: Path):
    h100, found = shipped_calibration("h100-sxm"), 0
    for kind, measured in read_measurements(shared / "data/measurements/gemm_b200_bf16.csv"):
        row = compare(kind, measured, lambda _: h100).to_document()
        assert row["source"] == "calibrated for h100-sxm"
        assert row["mape_percent"] < 15, measured.stack
        assert row["median_ape_percent"] < 12, measured.stack
        refit = refitted(h100.find("gemm", "bf16", measured.stack), measured, seed=0)
        assert refit.error.n_fitted == 100
        assert refit.error.mean_ratio < 0.095, measured.stack
        assert refit.error.median_ratio < 0.076, measured.stack
        found += 1
    assert found == 3
