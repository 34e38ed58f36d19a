"""Which calibrated kernels stand for a device's, and what is said of costs from them."""

from dataclasses import replace

import numpy as np
import pytest

from replay.specs.calibration import ErrorFigures, FamilyCalibration, ResidualSpec
from replay.specs.hardware import KernelFit
from replay.tiling.families.streams import NORM
from replay.tiling.library import (
    TRANSFER_ERROR_RATIO,
    UNCALIBRATED_ERROR_RATIO,
    Cost,
    KernelLibrary,
    in_order,
    merged,
    weakest_needed,
)
from replay.tiling.terms import Terms
from tests.models import round_hardware

ERROR = ErrorFigures(n_fitted=60, n=40, mean_ratio=0.05, median_ratio=0.03, p90_ratio=0.1, bias_ratio=0.0)
HALF = ResidualSpec(
    features=("log_rows", "log_columns"), mean=(0.0, 0.0), scale=(1e9, 1e9), length=1.0, centres=((0.0, 0.0),), weights=(np.log(0.5),)
)
SHAPES = {
    "rows": np.array([8.0, 4096.0]), "columns": np.array([4096.0, 4096.0]), "read_bytes": np.full(2, 2.0), "written_bytes": np.full(2, 2.0),
    "work_columns": np.full(2, 4096.0), "passes": np.ones(2), "rows_per_unit": np.full(2, 2.0),
}  # fmt: skip


def kernel_fit(hardware="round", *, family="norm", variant="a", stack="vllm_0.9.0", floor_s=1e-6, residual=None, units_count=100):
    fit = FamilyCalibration(family=family, stack=stack, variant=variant, parameters={"floor_s": floor_s}, residual=residual, error=ERROR)
    return KernelFit(hardware=hardware, units_count=units_count, fit=fit)


def library(*kernels):
    return KernelLibrary(device=round_hardware(kernels=kernels))


def test_the_newest_stack_is_the_highest_version_not_the_last_in_the_alphabet():
    found = library(kernel_fit(stack="vllm_0.24.0"), kernel_fit(stack="vllm_0.9.1"))
    assert found.stack(["norm"], "auto") == "vllm_0.24.0"
    assert found.stack(["norm"], "vllm_0.9.1") == "vllm_0.9.1"


def test_a_stack_that_is_not_calibrated_falls_back_to_the_devices_own_newest():
    found = library(kernel_fit(stack="sglang_0.5"), kernel_fit("other", stack="vllm_0.24.0"))
    assert found.stack(["norm"], "trtllm_1.0") == "sglang_0.5"
    assert found.stack(["gemm"], "auto") == ""


def test_a_variant_under_the_asked_stack_comes_before_a_better_variant_under_another():
    kernels = kernel_fit(variant="a", stack="s_1"), kernel_fit(variant="b", stack="s_2"), kernel_fit(variant="a", stack="s_3")
    found = library(*kernels)
    assert found.find("norm", ("a", "b"), "s_2") is kernels[1]
    assert found.find("norm", ("a", "b"), "s_9") is kernels[2]
    assert found.find("norm", ("c",), "s_1") is None


@pytest.mark.parametrize(
    ("kernel", "wanted", "source", "error_ratio", "factor"),
    [
        (kernel_fit(residual=HALF), "", "calibrated", 0.05, 0.5),
        (kernel_fit(residual=HALF), "a", "calibrated", 0.05, 0.5),
        (kernel_fit(residual=HALF), "b", "datasheet", TRANSFER_ERROR_RATIO, 1.0),  # stands for another variant
        (kernel_fit("other", residual=HALF), "", "datasheet", TRANSFER_ERROR_RATIO, 1.0),  # of another device
        (None, "", "datasheet", UNCALIBRATED_ERROR_RATIO, None),
    ],
)
def test_a_residual_and_its_error_hold_for_the_kernel_and_device_they_were_fitted_on_only(kernel, wanted, source, error_ratio, factor):
    found = library(*([kernel] if kernel else []))
    model = found.model(NORM, kernel, wanted=wanted)
    cost = model.cost(SHAPES, found.device)
    assert (cost.source, cost.error_ratio) == (source, error_ratio)
    physical = NORM.seconds(SHAPES, found.device, model.parameters)
    if factor is None:
        assert model.parameters == {p.name: p.start for p in NORM.parameters}
    else:
        assert model.parameters["floor_s"] == 1e-6
        np.testing.assert_allclose(cost.time_s, np.maximum(physical * factor, NORM.bound_s(SHAPES, found.device)))


def test_no_residual_makes_a_kernel_faster_than_physics_allows():
    tiny = replace(HALF, weights=(-50.0,))
    found = library(kernel_fit(residual=tiny))
    cost = found.model(NORM, found.device.kernels[0]).cost(SHAPES, found.device)
    np.testing.assert_allclose(cost.time_s, NORM.bound_s(SHAPES, found.device))


def test_kernels_decide_for_the_units_of_the_device_that_they_were_timed_on():
    found = library(kernel_fit(units_count=7), kernel_fit("other", variant="b", units_count=9))
    assert [found.units_count(kernel) for kernel in (*found.device.kernels, None)] == [7, 100, 100]


def cost(seconds, exponent, source="calibrated", stack="s"):
    terms = Terms(**{name: np.array(seconds, dtype=float) / 4 for name in ("compute_s", "memory_s", "launch_s", "sync_s", "bytes")})
    measured, error_ratio = np.array(seconds) > 2.5, 0.1 if source == "calibrated" else 0.5
    return Cost(terms=terms, overlap_exponent=exponent, source=source, error_ratio=error_ratio, stack=stack, measured=measured)


def test_ranges_that_join_differently_keep_their_times_and_the_weakest_source():
    parts = [cost([1.0, 2.0], 2.0), cost([3.0], 5.0, "datasheet", "t"), cost([4.0], np.inf)]
    whole = merged(parts)
    np.testing.assert_allclose(whole.time_s, np.concatenate([part.time_s for part in parts]))
    assert (whole.overlap_exponent, whole.source, whole.error_ratio, whole.stack) == (2.0, "datasheet", 0.5, "s+t")
    assert whole.measured.tolist() == [False, False, True, True]


def test_disjoint_rows_come_back_in_their_order():
    whole = in_order([cost([1.0, 3.0], 2.0), cost([0.0, 2.0], 2.0)], [np.array([1, 3]), np.array([0, 2])])
    np.testing.assert_allclose(whole.terms.compute_s, np.arange(4) / 4)
    assert whole.measured.tolist() == [False, False, False, True]


def test_the_newest_stack_of_a_framework_is_found_by_its_prefix():
    found = library(kernel_fit(stack="vllm_0.9.1"), kernel_fit("other", stack="vllm_0.24.0"), kernel_fit(stack="sglang_1.0"))
    assert found.newest("vllm_") == "vllm_0.24.0"
    assert found.newest("trtllm_") == ""


def test_a_whole_is_as_trusted_as_the_weakest_source_that_nine_tenths_of_it_need():
    assert weakest_needed({"measured": 0.0, "calibrated": 0.91, "datasheet": 0.09}) == "calibrated"
    assert weakest_needed({"calibrated": 0.8, "datasheet": 0.2}) == "datasheet"
    assert weakest_needed({"measured": 1.0}) == "measured"
