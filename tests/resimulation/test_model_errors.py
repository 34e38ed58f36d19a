"""Errors of the hardware model in a comparison: which kernels changed, what is known of their ratio, and how it is drawn."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gates.resimulation.errors import MEAN_TO_SD, Arm, KernelError, draw_errors, kernel_errors
from replay.execution.engine import replay
from replay.specs.calibration import ErrorFigures, FamilyCalibration, PairError
from replay.specs.hardware import KernelFit
from replay.tiling.step_table import MEASURED_ERROR_RATIO, MEASURED_REPEAT_RATIO, MEASURED_SCHEMA
from tests.models import round_hardware
from tests.step_tables import linear_table, make_limits, make_trace, random_table

KERNELS = ("body", "head", "attention_decode", "attention_prefill")
TRACE = make_trace([0.0, 0.1, 0.2], [20, 5, 9], [4, 6, 1])
NO_DEVICE = round_hardware()


def table_of(body_s=0.01, **more):
    """A server whose step takes some time in `body` and as much in the other kernels."""
    return linear_table(step_s=body_s, per_token_s=1e-4, per_sequence_s=1e-3, per_context_token_s=1e-6, per_pair_s=1e-6, **more)


def with_kernel(table, kernel, **fields):
    """The table with other fields of one kernel."""
    rows = [row | (fields if row["kernel"] == kernel else {}) for row in table.kernels.to_pylist()]
    return replace(table, kernels=pa.Table.from_pylist(rows, schema=table.kernels.schema))


def timed(table, kernel, first_row, last_row):
    """The table with rows of one kernel that timings decide."""
    rows = [{"kernel": kernel, "first_row": first_row, "last_row": last_row}]
    return replace(table, measured=pa.Table.from_pylist(rows, schema=MEASURED_SCHEMA))


def errors_of(baseline, candidate, device=NO_DEVICE, **more):
    """Return the errors by kernel."""
    arms = (Arm.of(table, replay(TRACE, table).steps) for table in (baseline, candidate))
    return {error.kernel: error for error in kernel_errors(*arms, device, **more)}


def changed(errors):
    return [kernel for kernel, error in errors.items() if error.changed]


def calibration(stack, variant="bf16", family="gemm", pairs=()):
    """A calibration of which only its name and its pairs matter."""
    figures = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.5, median_ratio=0.5, p90_ratio=0.5, bias_ratio=0.0)
    told = tuple(PairError(stack=other, variant=kind, n=99, log_ratio_error=error) for other, kind, error in pairs)
    return FamilyCalibration(family=family, stack=stack, variant=variant, parameters={}, residual=None, error=figures, pairs=told)


def device_of(*fits, hardware=NO_DEVICE.name):
    """A device with calibrated kernels."""
    return replace(NO_DEVICE, kernels=tuple(KernelFit(hardware=hardware, units_count=1, fit=fit) for fit in fits))


def calibrated(table, label, kernel="body"):
    return with_kernel(table, kernel, source="calibrated", calibration=label, stack=label.split("/")[1])


def test_of_equal_tables_nothing_changed_and_every_error_is_shared():
    errors = errors_of(table_of(), table_of())
    assert tuple(errors) == KERNELS
    for error in errors.values():
        assert (error.changed, error.specific_sd, error.estimated) == (False, 0.0, True)
        assert error.shared_sd == pytest.approx(0.5 * math.sqrt(math.pi / 2))


def test_of_random_tables_nothing_changed_against_themselves_and_each_kernel_with_other_terms_did():
    for seed in range(5):
        table, other = random_table(seed), random_table(seed + 100)
        assert changed(errors_of(table, table)) == []
        differing = [
            row["kernel"]
            for row, theirs in zip(table.kernels.to_pylist(), other.kernels.to_pylist(), strict=True)
            if (row["calls_count"], row["overlap_exponent"]) != (theirs["calls_count"], theirs["overlap_exponent"])
        ]
        assert set(differing) <= set(changed(errors_of(table, other)))


def test_a_kernel_with_another_tile_changed_alone_and_by_its_full_error():
    errors = errors_of(table_of(), table_of(body_s=0.0101))
    assert changed(errors) == ["body"]
    assert errors["body"].specific_sd == pytest.approx(MEAN_TO_SD * 0.5)
    assert not errors["body"].estimated


@pytest.mark.parametrize(
    "fields", [{"calls_count": 2}, {"overlap_exponent": 4.0}, {"calibration": "gemm/b/bf16"}, {"stack": "b"}, {"source": "calibrated"}]
)
def test_a_kernel_that_is_told_otherwise_changed(fields):
    assert changed(errors_of(table_of(), with_kernel(table_of(), "body", **fields))) == ["body"]


def test_a_kernel_whose_one_row_differs_changed():
    table = table_of()
    values = table.token_terms["body.memory_s"].to_numpy().copy()
    values[5] += 1e-9
    place = table.token_terms.column_names.index("body.memory_s")
    other = replace(table, token_terms=table.token_terms.set_column(place, "body.memory_s", pa.array(values)))
    assert changed(errors_of(table, other)) == ["body"]


def test_the_same_kernels_tabulated_for_other_limits_did_not_change():
    small, large = (table_of(limits=make_limits(max_running=run, max_batched_tokens=tokens)) for run, tokens in ((8, 64), (12, 100)))
    assert changed(errors_of(small, large)) == []
    assert changed(errors_of(large, small)) == []
    assert changed(errors_of(small, table_of(body_s=0.02, limits=large.limits))) == ["body"]


def test_a_kernel_that_rounding_alone_tells_apart_did_not_change():
    assert changed(errors_of(table_of(), table_of(body_s=0.01 * (1 + 1e-15)))) == []


def test_a_kernel_of_one_arm_alone_has_its_full_error_there_once():
    table = table_of()
    names = [name for name in table.sequence_terms.column_names if not name.startswith("head.")]
    without = replace(
        table,
        kernels=table.kernels.filter(pa.compute.not_equal(table.kernels["kernel"], "head")),
        sequence_terms=table.sequence_terms.select(names),
    )
    gone, come = errors_of(table, without)["head"], errors_of(without, table)["head"]
    full = MEAN_TO_SD * 0.5
    assert (gone.changed, gone.shared_sd, gone.specific_sd) == (False, pytest.approx(full), 0.0)
    assert (come.changed, come.shared_sd, come.specific_sd, come.estimated) == (True, 0.0, pytest.approx(full), False)


def test_pairs_of_timings_say_the_error_of_a_ratio_and_are_asked_of_the_candidate_s_calibration():
    old, new = calibrated(table_of(), "gemm/a/bf16"), calibrated(table_of(0.011), "gemm/b/bf16")
    device = device_of(calibration("a", pairs=[("b", "bf16", 0.9)]), calibration("b", pairs=[("a", "bf16", 0.07)]))
    error = errors_of(old, new, device)["body"]
    assert (error.changed, error.estimated, error.specific_sd) == (True, True, 0.07)
    assert error.shared_sd == pytest.approx(MEAN_TO_SD * 0.5)


def test_without_pairs_of_these_two_the_full_error_counts():
    old, new = calibrated(table_of(), "gemm/a/bf16"), calibrated(table_of(0.011), "gemm/b/bf16")
    pairs = [("a", "bf16", 0.07)]
    for device in (
        device_of(calibration("a"), calibration("b", pairs=[("c", "bf16", 0.07), ("a", "fp8", 0.07)])),
        device_of(calibration("b", pairs=pairs)),
        device_of(calibration("a"), calibration("b", pairs=pairs), hardware="another"),
    ):
        error = errors_of(old, new, device)["body"]
        assert (error.estimated, error.specific_sd) == (False, pytest.approx(MEAN_TO_SD * 0.5))
    device = device_of(calibration("a"), calibration("b", pairs=pairs))
    assert not errors_of(table_of(), new, device)["body"].estimated  # the baseline's is of the data sheet
    assert not errors_of(
        calibrated(table_of(), "experts/a/bf16"), new, device_of(calibration("a", family="experts"), calibration("b", pairs=pairs))
    )["body"].estimated


def test_pairs_within_one_calibration_are_of_shapes_that_ranks_split_and_of_nothing_else():
    old, new = (calibrated(table_of(body_s), "gemm/a/bf16") for body_s in (0.01, 0.011))
    device = device_of(calibration("a", pairs=[("a", "bf16", 0.04)]))
    assert errors_of(old, new, device, split=True)["body"].specific_sd == 0.04
    assert errors_of(old, new, device)["body"].specific_sd == pytest.approx(MEAN_TO_SD * 0.5)


def test_a_changed_kernel_that_both_arms_measured_has_the_error_of_repeats_alone():
    rows = table_of().token_terms.num_rows - 1
    old, new = timed(table_of(), "body", 0, rows), timed(table_of(0.011), "body", 0, rows)
    error = errors_of(old, new)["body"]
    assert (error.changed, error.estimated) == (True, True)
    assert error.specific_sd == pytest.approx(MEAN_TO_SD * MEASURED_REPEAT_RATIO)
    assert error.shared_sd == pytest.approx(MEAN_TO_SD * MEASURED_ERROR_RATIO)


def test_a_changed_kernel_that_one_arm_measured_has_its_full_error():
    rows = table_of().token_terms.num_rows - 1
    for old, new in ((timed(table_of(), "body", 0, rows), table_of(0.011)), (table_of(), timed(table_of(0.011), "body", 0, rows))):
        error = errors_of(old, new)["body"]
        assert (error.estimated, error.specific_sd) == (False, pytest.approx(MEAN_TO_SD * 0.5))


def test_where_the_arms_expect_different_errors_of_a_kernel_the_larger_counts():
    known, unknown = with_kernel(table_of(), "body", error_ratio=0.1), with_kernel(table_of(0.011), "body", error_ratio=0.4)
    for old, new in ((known, unknown), (unknown, known)):
        error = errors_of(old, new)["body"]
        assert (error.shared_sd, error.specific_sd) == (pytest.approx(MEAN_TO_SD * 0.4), pytest.approx(MEAN_TO_SD * 0.4))


def test_a_kernel_measured_for_part_of_its_time_has_that_part_of_each_error():
    table = table_of(limits=make_limits(max_batched_tokens=20))
    decode_rows = 21  # of the first phase; steps with prefill tokens are in the second, and not measured
    old, new = timed(table, "body", 0, decode_rows - 1), timed(table_of(0.011, limits=table.limits), "body", 0, decode_rows - 1)
    shares = []
    for one in (old, new):
        steps = replay(TRACE, one).steps
        prefills = steps["prefill_tokens"].to_numpy() > 0
        tokens = steps["prefill_tokens"].to_numpy() + steps["decode_sequences"].to_numpy()
        seconds = one.token_terms["body.compute_s"].to_numpy()[tokens + decode_rows * prefills]
        shares.append(seconds[~prefills].sum() / seconds.sum())
    share = min(shares)
    assert 0.1 < share < 0.9
    error = errors_of(old, new)["body"]
    assert error.specific_sd == pytest.approx(MEAN_TO_SD * (share * MEASURED_REPEAT_RATIO + (1 - share) * 0.5))
    assert error.shared_sd == pytest.approx(MEAN_TO_SD * (share * MEASURED_ERROR_RATIO + (1 - share) * 0.5))


def error(kernel, shared_sd=0.1, specific_sd=0.0):
    return KernelError(kernel=kernel, shared_sd=shared_sd, specific_sd=specific_sd, changed=specific_sd > 0, estimated=True)


def test_both_arms_share_the_draws_and_the_candidate_alone_has_its_own():
    drawn = draw_errors([error("body", 0.1, 0.02), error("head", 0.3)], 4, 7)
    table = table_of()
    for replicate in range(4):
        baseline, candidate = (drawn.factors(replicate, table, candidate=side) for side in (False, True))
        assert baseline["head"] == candidate["head"] == pytest.approx(math.exp(0.3 * drawn.shared[replicate, 1]))
        assert baseline["body"] == pytest.approx(math.exp(0.1 * drawn.shared[replicate, 0]))
        assert candidate["body"] / baseline["body"] == pytest.approx(math.exp(0.02 * drawn.specific[replicate, 0]))
        assert set(baseline) == {"body", "head"}


def test_factors_are_of_kernels_that_the_table_has():
    drawn = draw_errors([error("body"), error("all_reduce")], 1, 7)
    assert set(drawn.factors(0, table_of(), candidate=True)) == {"body"}


def test_the_draws_of_a_kernel_do_not_depend_on_the_others_nor_on_how_many_are_drawn():
    alone, beside = draw_errors([error("body", 0.1, 0.1)], 5, 7), draw_errors([error("head"), error("body", 0.2)], 9, 7)
    assert np.array_equal(alone.shared[:, 0], beside.shared[:5, 1])
    assert np.array_equal(alone.specific[:, 0], beside.specific[:5, 1])
    assert not np.array_equal(alone.shared, draw_errors([error("body")], 5, 8).shared)


def test_draws_are_standard_normal_and_independent():
    drawn = draw_errors([error("body"), error("head")], 4000, 1)
    columns = np.column_stack([drawn.shared, drawn.specific])
    assert np.abs(columns.mean(axis=0)).max() < 0.06
    assert np.abs(np.cov(columns.T) - np.eye(4)).max() < 0.1


def test_without_kernels_nothing_is_drawn():
    assert draw_errors([], 3, 7).factors(2, table_of(), candidate=True) == {}
