"""Cycles of the arrays: against an array simulated cell by cell, the published closed form, SCALE-Sim's results, and hand-worked cases."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.specs.hardware import DATAFLOWS
from replay.tiling.spatial.product import spatial_product
from tests.tiling.spatial.devices import ROUND_SPATIAL, small_device
from tests.tiling.spatial.systolic import product as simulated

assert ROUND_SPATIAL.array_rows_count == ROUND_SPATIAL.array_columns_count == 4


def cycles(shape, dataflow, *, element_bytes=2.0, **changes):
    rows, columns, depth = (np.array([float(size)]) for size in shape)
    return float(spatial_product(small_device(**changes), rows, columns, depth, element_bytes=element_bytes, dataflow=dataflow).cycles[0])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dataflow", DATAFLOWS)
@settings(max_examples=15, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 11), st.integers(1, 9), st.integers(1, 9)),
    edges=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_cycles_are_those_of_an_array_simulated_cell_by_cell(dataflow, overlap, shape, edges):
    rows, columns, depth = shape
    draw = np.random.default_rng(rows * 100 + columns * 10 + depth)
    inputs, weights = draw.normal(size=(rows, depth)), draw.normal(size=(depth, columns))
    clocks, result = simulated(inputs, weights, edges, dataflow, overlap=overlap)
    assert result == pytest.approx(inputs @ weights)
    array = {"array_rows_count": edges[0], "array_columns_count": edges[1], "folds_overlap": overlap}
    assert cycles(shape, dataflow, **array) == clocks


@pytest.mark.parametrize(
    ("dataflow", "down", "across", "stream"),
    [("weight_stationary", 2, 1, 0), ("output_stationary", 0, 1, 2), ("input_stationary", 2, 0, 1)],
)
@pytest.mark.parametrize("shape", [(3, 2, 4), (64, 64, 64), (1, 1000, 512), (200, 16, 48), (12544, 64, 147)])
@pytest.mark.parametrize("edges", [(4, 4), (8, 8), (16, 4), (128, 128)])
def test_folds_that_do_not_overlap_take_the_published_closed_form(dataflow, down, across, stream, shape, edges):
    # Samajdar et al. 2020: (2 R + C + T - 2) ceil(S_R / R) ceil(S_C / C), with rows, columns, depth as shape.
    published = (2 * edges[0] + edges[1] + shape[stream] - 2) * ceil(shape[down] / edges[0]) * ceil(shape[across] / edges[1])
    assert cycles(shape, dataflow, array_rows_count=edges[0], array_columns_count=edges[1]) == published


SCALE_SIM = {
    ((8, 8), "weight_stationary"): (5503, 383, 3049, 29, 2663),
    ((16, 4), "weight_stationary"): (6271, 439, 4019, 83, 2807),
    ((4, 4), "weight_stationary"): (18943, 799, 9899, 71, 10079),
    ((8, 8), "input_stationary"): (5503, 335, 4029, 29, 5699),
    ((16, 4), "input_stationary"): (6271, 323, 5549, 83, 7499),
    ((4, 4), "input_stationary"): (18943, 719, 11249, 71, 15599),
    ((8, 8), "output_stationary"): (4991, 263, 3054, 21, 3099),
    ((16, 4), "output_stationary"): (5247, 239, 3569, 51, 3431),
    ((4, 4), "output_stationary"): (17919, 539, 9749, 55, 10799),
}
"""Compute cycles that SCALE-Sim 3.0.0 reports for GEMMS: the index of its last cycle, without the draining of stationary outputs."""
GEMMS = ((64, 64, 64), (10, 20, 30), (100, 40, 33), (8, 8, 8), (200, 16, 48))  # rows, columns, depth


@pytest.mark.parametrize(("edges", "dataflow"), SCALE_SIM)
def test_cycles_are_those_of_scale_sim(edges, dataflow):
    for shape, reported in zip(GEMMS, SCALE_SIM[edges, dataflow], strict=True):
        folds = ceil(shape[0] / edges[0]) * ceil(shape[1] / edges[1])
        drained = folds * edges[0] if dataflow == "output_stationary" else 0
        assert cycles(shape, dataflow, array_rows_count=edges[0], array_columns_count=edges[1]) == reported + 1 + drained


def test_scale_sim_s_result_for_512_cubed_on_128_by_128():
    assert cycles((512, 512, 512), "weight_stationary", array_rows_count=128, array_columns_count=128) == 14303 + 1


def test_eight_cubed_on_four_by_four_by_hand():
    # Four folds of 2 x 4 + 4 + 8 - 2 = 18 cycles; overlapping, each further one takes as long as its stream of 8.
    for dataflow in DATAFLOWS:
        assert cycles((8, 8, 8), dataflow) == 4 * 18
        assert cycles((8, 8, 8), dataflow, folds_overlap=True) == 18 + 3 * 8


def test_a_stream_shorter_than_the_array_waits_for_the_next_load():
    # One row: each fold streams one value, but loading the next one takes 4 cycles.
    assert cycles((1, 4, 32), "weight_stationary", folds_overlap=True) == (2 * 4 + 4 + 1 - 2) + 7 * 4


def test_arrays_side_by_side_share_folds_and_where_those_are_few_their_streams():
    # 6 folds on 4 arrays are 2 rounds; one fold is shared by rows: 2 x 4 + 4 + 16 - 2 for a quarter of 64 rows.
    assert cycles((64, 24, 4), "weight_stationary", arrays_count=4) <= 2 * (10 + 64)
    assert cycles((64, 4, 4), "weight_stationary", arrays_count=4) == 10 + 16
    assert cycles((4, 64, 4), "input_stationary", arrays_count=4) == 10 + 16
    # Sums stay where they are: a fold of stationary outputs is not shared.
    assert cycles((4, 4, 64), "output_stationary", arrays_count=4) == 10 + 64


def test_narrow_elements_go_two_to_a_cell_and_wide_ones_take_turns():
    assert cycles((8, 8, 16), "weight_stationary", element_bytes=1.0) == cycles((8, 8, 8), "weight_stationary")
    assert cycles((8, 8, 16), "output_stationary", element_bytes=1.0) == cycles((8, 8, 8), "output_stationary")
    assert cycles((8, 8, 2), "weight_stationary", element_bytes=4.0) == cycles((8, 8, 8), "weight_stationary")
    assert cycles((8, 8, 9), "output_stationary", element_bytes=1.0) == cycles((8, 8, 5), "output_stationary")
