"""Errors of predicted ratios: pairs of timings of known error, which of them count, and when they are dropped."""

from dataclasses import dataclass

import numpy as np
import pytest

from replay.calibration.fit import predict
from replay.calibration.measured import MeasuredSet
from replay.calibration.pairing import equal_shapes, split_shapes
from replay.calibration.pairs import FEWEST_PAIRS, with_pairs
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration, PairError
from replay.tiling.families.gemm import gemm_family, gemm_shapes

DEVICE = "a100-sxm-80gb"
FAMILY = gemm_family("bf16", "", read_hardware(DEVICE))
START = {definition.name: definition.start for definition in FAMILY.parameters}
ROWS = 2.0 ** np.arange(13)
GRID = tuple(
    np.array(column)
    for column in zip(*((rows, columns, depth) for rows in ROWS for columns in (512, 2048, 6144) for depth in (96, 512, 4096)), strict=True)
)
FIGURES = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.1, median_ratio=0.1, p90_ratio=0.1, bias_ratio=0.0)


def calibrated(stack, *, log_errors, grid=GRID, hardware=DEVICE, family=FAMILY, variant="bf16"):
    """A set of timings that its calibration predicts exp(log error) times as long as they are."""
    shapes = gemm_shapes(*grid)
    seconds = predict(FAMILY, shapes, read_hardware(hardware), START, None) / np.exp(log_errors)
    key = tuple(column.astype(np.int64) for column in grid)
    measured = MeasuredSet(family=family, hardware=hardware, stack=stack, variant=variant, shapes=shapes, seconds=seconds, group_key=key)
    entry = FamilyCalibration(family="gemm", stack=stack, variant=variant, parameters=START, residual=None, error=FIGURES)
    return measured, entry


def noise(seed, sd=0.1):
    return sd * np.random.default_rng(seed).standard_normal(len(GRID[0]))


def other_pairs(entry):
    """Its pairs with other calibrations."""
    return [pair for pair in entry.pairs if (pair.stack, pair.variant) != (entry.stack, entry.variant)]


def unseen(grid=GRID):
    return ~fitted_mask(tuple(column.astype(np.int64) for column in grid))


def test_the_error_of_a_ratio_is_that_of_the_difference_over_shapes_that_no_fit_has_seen():
    before, later = noise(1), noise(2)
    found = with_pairs([calibrated("a", log_errors=before), calibrated("b", log_errors=later)])
    wanted = np.sqrt(np.mean((later - before)[unseen()] ** 2))
    seen_too = np.sqrt(np.mean((later - before) ** 2))
    [pair] = other_pairs(found[1])  # a pair stands with the later of the two
    assert other_pairs(found[0]) == []
    assert (pair.stack, pair.variant, pair.n) == ("a", "bf16", unseen().sum())
    assert pair.log_ratio_error == pytest.approx(wanted, abs=5e-5)
    assert abs(wanted - seen_too) > 1e-3  # or the shapes of the fit could have counted


def test_twins_that_err_alike_have_no_error_of_their_ratio():
    shared = noise(1, sd=0.4)
    found = with_pairs([calibrated("a", log_errors=shared), calibrated("b", log_errors=shared)])
    assert [pair.log_ratio_error for entry in found for pair in other_pairs(entry)] == [0.0]


def test_a_bias_of_one_calibration_is_an_error_of_the_ratio():
    found = with_pairs([calibrated("a", log_errors=np.zeros(117)), calibrated("b", log_errors=np.full(117, 0.07))])
    assert [pair.log_ratio_error for entry in found for pair in other_pairs(entry)] == [0.07]


def test_pairs_are_matched_by_their_shapes_in_whatever_order_they_stand():
    order = np.random.default_rng(3).permutation(117)
    shared = noise(1)
    moved = calibrated("b", log_errors=shared[order], grid=tuple(column[order] for column in GRID))
    [pair] = other_pairs(with_pairs([calibrated("a", log_errors=shared), moved])[1])
    assert (pair.n, pair.log_ratio_error) == (unseen().sum(), 0.0)


def test_other_devices_give_no_pairs():
    sets = [calibrated("a", log_errors=noise(1)), calibrated("b", log_errors=noise(2), hardware="h100-sxm")]
    assert [other_pairs(entry) for entry in with_pairs(sets)] == [[], []]


def test_other_families_give_no_pairs_even_of_equal_shapes():
    @dataclass
    class Renamed:
        name: str = "other"

        def __getattr__(self, attribute):
            return getattr(FAMILY, attribute)

    sets = [calibrated("a", log_errors=noise(1)), calibrated("b", log_errors=noise(2), family=Renamed())]
    assert [other_pairs(entry) for entry in with_pairs(sets)] == [[], []]


def test_too_few_pairs_say_nothing():
    rows = np.flatnonzero(unseen())
    few, enough = (tuple(column[rows[:count]] for column in GRID) for count in (FEWEST_PAIRS - 1, FEWEST_PAIRS))
    for grid, expected in ((few, 0), (enough, 1)):
        sets = [calibrated("a", log_errors=noise(1)), calibrated("b", log_errors=np.zeros(len(grid[0])), grid=grid)]
        assert [len(other_pairs(entry)) for entry in with_pairs(sets)] == [0, expected]


def test_within_a_calibration_the_pairs_are_a_shape_and_its_half():
    grid = tuple(
        np.array(column)
        for column in zip(
            *((rows, columns, depth) for rows in 3.0 * ROWS for columns in 256 * 2 ** np.arange(5) for depth in 256 * 2 ** np.arange(5)),
            strict=True,
        )
    )
    # Twice as wide errs by 0.03 more, twice as deep by 0.04 more.
    log_errors = 0.03 * np.log2(grid[1] / 256) + 0.04 * np.log2(grid[2] / 256)
    [entry] = with_pairs([calibrated("a", log_errors=log_errors, grid=grid)])
    [pair] = entry.pairs
    rows = split_shapes("gemm", gemm_shapes(*grid), unseen(grid))
    shares = np.mean(grid[1][rows[:, 0]] != grid[1][rows[:, 1]])
    assert (pair.stack, pair.variant, pair.n) == ("a", "bf16", len(rows))
    assert pair.log_ratio_error == pytest.approx(np.sqrt(shares * 0.03**2 + (1 - shares) * 0.04**2), abs=5e-5)
    assert 0.2 < shares < 0.8


def test_split_shapes_differ_in_one_split_alone_and_the_second_is_the_whole():
    shapes = {
        "rows": np.array([8.0, 8, 8, 8, 16]),
        "columns": np.array([64.0, 128, 64, 128, 64]),
        "depth": np.array([32.0, 32, 64, 64, 64]),
    }
    every = np.ones(5, dtype=bool)
    assert sorted(map(tuple, split_shapes("gemm", shapes, every))) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert sorted(map(tuple, split_shapes("gemm", shapes, np.array([True, True, False, True, True])))) == [(0, 1), (1, 3)]
    heads = {"query_heads": np.array([8.0, 16, 16]), "kv_heads": np.array([2.0, 4, 2]), "tokens": np.ones(3)}
    assert split_shapes("decode_attention", heads, np.ones(3, dtype=bool)).tolist() == [[0, 1]]
    assert len(split_shapes("norm", shapes, every)) == 0


def test_equal_shapes_are_of_chosen_rows_on_both_sides():
    before, later = {"rows": np.array([1.0, 2, 3])}, {"rows": np.array([3.0, 2, 9]), "other": np.zeros(3)}
    every = np.ones(3, dtype=bool)
    assert equal_shapes(before, later, (every, every)).tolist() == [[2, 0], [1, 1]]
    assert equal_shapes(before, later, (np.array([True, True, False]), every)).tolist() == [[1, 1]]
    assert equal_shapes(before, later, (every, np.array([True, False, True]))).tolist() == [[2, 0]]


def entry(stack, *pairs, family="gemm"):
    told = tuple(PairError(stack=other, variant="bf16", n=50, log_ratio_error=0.1) for other in pairs)
    return FamilyCalibration(family=family, stack=stack, variant="bf16", parameters=START, residual=None, error=FIGURES, pairs=told)


def document(*entries):
    return CalibrationDocument(hardware=DEVICE, families=entries, split="rule")


def test_an_update_drops_pairs_with_what_was_fitted_anew_and_keeps_the_others():
    known = document(entry("a", "a", "b", "c"), entry("b", "a", "c"), entry("c", "a", "b"), entry("b", "a", family="experts"))
    later = document(entry("b", "b"))
    updated = {found.key[:2]: [pair.stack for pair in found.pairs] for found in known.updated(later).families}
    assert updated == {("gemm", "a"): ["a", "c"], ("gemm", "b"): ["b"], ("gemm", "c"): ["a"], ("experts", "b"): ["a"]}


def test_pairs_survive_the_document():
    known = document(entry("a", "a", "b"))
    assert CalibrationDocument.from_document(known.to_document()) == known
    assert known.families[0].pair("b", "bf16").log_ratio_error == 0.1
    assert known.families[0].pair("b", "fp8") is None
