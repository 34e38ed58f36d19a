"""Prices of single steps against figures worked by hand."""

import math

import numpy as np
import pyarrow as pa
import pytest

from replay.errors import InvariantError
from replay.execution.step_costs import covered_steps, price_kernels, step_seconds
from replay.execution.tables import SHAPE_COLUMNS
from tests.step_tables import assemble_table, captured_table, linear_table, make_kernel, make_limits


def shapes(*rows):
    """Steps given as (decode sequences, decode context, prefill tokens, pairs); one sequence a prefill."""
    columns = {name: [] for name in SHAPE_COLUMNS}
    for decodes, context, prefill, pairs in rows:
        values = (decodes + prefill, decodes + (prefill > 0), decodes, context, prefill, pairs)
        for name, value in zip(SHAPE_COLUMNS, values, strict=True):
            columns[name].append(value)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def attention_table(knots, terms, **kernel):
    return assemble_table([make_kernel("decode", "decode_attention", "attention", **kernel)], terms, knots)


def test_decode_terms_are_interpolated_in_the_mean_context_and_then_joined():
    knots = [10.0, 20.0, 40.0]
    compute_s, memory_s = np.zeros(9 * 3), np.zeros(9 * 3)
    compute_s[2 * 3 : 3 * 3] = [8.0, 6.0, 4.0]  # two sequences
    memory_s[2 * 3 : 3 * 3] = [1.0, 5.0, 9.0]
    table = attention_table(knots, {"decode.compute_s": compute_s, "decode.memory_s": memory_s}, calls_count=3)
    steps = shapes((2, 2 * 5, 0, 0), (2, 2 * 10, 0, 0), (2, 2 * 15, 0, 0), (2, 2 * 30, 0, 0), (2, 2 * 40, 0, 0), (2, 100, 0, 0))
    expected = [8.0, 8.0, max(7.0, 3.0), max(5.0, 7.0), 9.0, max(3.0, 11.0)]  # constant below the first knot, straight beyond the last
    np.testing.assert_allclose(step_seconds(table, steps).device_s, 3 * np.array(expected), rtol=1e-15)


def test_a_term_that_falls_never_falls_below_zero_beyond_the_last_knot():
    table = attention_table([10.0, 20.0], {"decode.compute_s": np.tile([3.0, 1.0], 9)})
    np.testing.assert_allclose(step_seconds(table, shapes((1, 25, 0, 0), (1, 90, 0, 0))).device_s, [0.0, 0.0])


def test_a_single_knot_holds_for_every_context():
    table = attention_table([10.0], {"decode.compute_s": np.full(9, 2.0)})
    np.testing.assert_allclose(step_seconds(table, shapes((1, 3, 0, 0), (3, 3000, 0, 0))).device_s, [2.0, 2.0])


def test_terms_join_by_the_overlap_exponent_and_sync_comes_on_top():
    rows = 2 * 65
    terms = {"k.launch_s": np.full(rows, 1.0), "k.compute_s": np.full(rows, 2.0), "k.memory_s": np.full(rows, 3.0)}
    terms["k.sync_s"] = np.full(rows, 0.5)
    for exponent, joined in ((1.0, 3.0 + 4.0), (2.0, 5.0), (math.inf, 4.0)):
        table = assemble_table([make_kernel("k", "tokens", "mlp", overlap_exponent=exponent, calls_count=2)], terms, [1.0])
        np.testing.assert_allclose(step_seconds(table, shapes((1, 4, 0, 0))).device_s, [2 * (joined + 0.5)], rtol=1e-15)


def test_prefill_terms_are_interpolated_in_tokens_and_mean_keys():
    corners = {"prefill.compute_s": np.array([1.0, 3.0, 5.0, 11.0]), "prefill.bytes": np.array([0.0, 0.0, 8.0, 8.0])}
    table = assemble_table([make_kernel("prefill", "prefill_attention", "attention")], corners, [1.0], grid=([4.0, 8.0], [10.0, 20.0]))
    steps = shapes((2, 20, 4, 40), (2, 20, 8, 160), (0, 0, 6, 90), (0, 0, 8, 40), (0, 0, 12, 240), (2, 20, 0, 0))
    # corners exactly; the middle of all four; constant below the first knot; straight on beyond the last; nothing without prefill
    expected = [1.0, 11.0, 5.0, 5.0, 19.0, 0.0]
    np.testing.assert_allclose(step_seconds(table, steps).device_s, expected)
    [kernel] = price_kernels(table, steps)
    np.testing.assert_allclose(kernel.bytes[kernel.row], [0.0, 8.0, 4.0, 8.0, 16.0, 0.0])


def test_a_captured_step_pays_for_the_padding_of_its_graph_and_keeps_its_sequences():
    limits = make_limits(max_batched_tokens=16)
    table = linear_table(per_token_s=1.0, per_sequence_s=100.0, limits=limits, capture=captured_table(limits, [4, 8], decode_only=True))
    seconds = step_seconds(table, shapes((3, 3, 0, 0), (5, 5, 0, 0), (3, 3, 2, 3)))
    np.testing.assert_array_equal(seconds.captured_tokens, [4, 8, 0])
    np.testing.assert_allclose(seconds.device_s, [4 + 300, 8 + 500, 5 + 400])


def test_the_two_phases_have_rows_of_their_own():
    terms = {"k.compute_s": np.concatenate([np.arange(65.0), 100 + np.arange(65.0)])}
    table = assemble_table([make_kernel("k", "tokens", "mlp")], terms, [1.0])
    np.testing.assert_allclose(step_seconds(table, shapes((3, 9, 0, 0), (2, 9, 1, 1))).device_s, [3.0, 103.0])


def test_a_factor_scales_the_whole_time_of_its_kernel_only():
    table = linear_table(per_token_s=1.0, per_sequence_s=10.0, host_launch_s=2.0)
    seconds = step_seconds(table, shapes((1, 1, 0, 0)), kernel_factors={"body": 3.0})
    np.testing.assert_allclose(seconds.device_s, [13.0])
    np.testing.assert_allclose(seconds.host_s, [2.0])


def test_the_memory_stall_is_the_time_that_infinite_bandwidth_would_save():
    table = linear_table(step_s=2.0, memory_step_s=5.0)
    kernel = next(price_kernels(table, shapes((1, 1, 0, 0))))
    assert (kernel.stall_s[kernel.row], kernel.time_s[kernel.row]) == (3.0, 5.0)


def test_steps_beyond_the_limits_have_no_price_and_say_so():
    table = linear_table(per_token_s=1.0, limits=make_limits(max_running=4, max_batched_tokens=8))
    steps = shapes((4, 4, 0, 0), (5, 5, 0, 0), (1, 1, 8, 36))
    assert covered_steps(table, steps).tolist() == [True, False, False]
    with pytest.raises(InvariantError, match="8 tokens or 4 sequences"):
        step_seconds(table, steps)
    assert step_seconds(table, steps.filter(pa.array(covered_steps(table, steps)))).device_s.tolist() == [4.0]


def test_no_steps_cost_nothing():
    assert step_seconds(linear_table(per_token_s=1.0), shapes()).duration_s.tolist() == []
