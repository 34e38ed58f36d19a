"""Pure terms of kernel families: they join to the family's time, and each scales with what it is named after."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.families import stream_shapes
from replay.tiling.families.arithmetic import FP16_MATRIX
from replay.tiling.families.collectives import OPERATIONS, RING_COLLECTIVE, collective_shapes
from replay.tiling.families.convolution import ConvolutionFamily, convolution_shapes
from replay.tiling.families.experts import EXPERTS
from replay.tiling.families.peer_all_reduce import FASTEST, ONE_SHOT, THRESHOLDS, PeerAllReduceFamily
from replay.tiling.families.scales import SCALE_INCREMENT
from replay.tiling.families.streams import ACTIVATION, EMBEDDING, NORM, SOFTMAX
from replay.tiling.families.vector_gemm import VectorGemmFamily, gemm_shapes
from replay.tiling.terms import TERM_NAMES, Terms, in_sequence, nothing
from tests.models import round_hardware

DEVICE = round_hardware(matrix_flops_per_s={"bf16": 100e12, "fp16": 100e12})
COLD = replace(DEVICE, cache_bytes=1e-3)
"""Nothing stays in its cache."""
SLOWER_MEMORY = replace(DEVICE, memory_bytes_per_s=DEVICE.memory_bytes_per_s / 2)


def stream_cases(rng, rows):
    columns = np.round(np.exp(rng.uniform(np.log(16), np.log(130000), len(rows))))
    activated = stream_shapes.gated_activation(rows, columns, element_bytes=2.0)
    return {
        "embedding": (EMBEDDING, stream_shapes.embedding(rows, columns, element_bytes=2.0), 4.0 * rows * columns),
        "norm": (NORM, stream_shapes.norm(rows, columns, element_bytes=2.0), 4.0 * rows * columns),
        "softmax": (SOFTMAX, stream_shapes.softmax(rows, columns, element_bytes=4.0), 8.0 * rows * columns),
        "activation": (ACTIVATION, activated, 6.0 * rows * columns),
        "quantise_scale": (SCALE_INCREMENT, stream_shapes.quantise(rows, columns, from_bytes=2.0, to_bytes=1.0), 0.0 * rows),
    }


def expert_case(rng, rows):
    count, (hidden, inter) = len(rows), rng.choice([128.0, 768.0, 2048.0], (2, len(rows)))
    choices, experts = rng.choice([1.0, 2.0, 8.0], count), rng.choice([8.0, 64.0], count)
    active = np.minimum(rows * choices, experts)
    shapes = {
        "tokens": rows, "choices": choices, "hidden": hidden, "inter": inter, "matrices": rng.choice([2.0, 3.0], count),
        "rows": rows * choices, "active_experts": active, "row_tiles": np.maximum(active, np.ceil(rows * choices / 64)),
        "tile_rows": np.full(count, 64.0), "tile_columns": np.full(count, 128.0), "tile_depth": np.full(count, 64.0),
        "tile_group": rng.choice([1.0, 8.0], count), "tuned": np.zeros(count), "weight_bytes": rng.choice([1.0, 2.0], count),
        "activation_bytes": np.full(count, 2.0),
    }  # fmt: skip
    weights = active * shapes["matrices"] * hidden * inter * shapes["weight_bytes"]
    return EXPERTS, shapes, weights + 4.0 * rows * hidden


def product_cases(rng, rows):
    columns, depth = (np.round(np.exp(rng.uniform(np.log(16), np.log(4096), len(rows)))) for _ in range(2))
    once = 4.0 * (rows * depth + columns * depth + rows * columns)
    side = rng.choice([7.0, 14.0, 56.0], len(rows))
    channels, filters = rng.choice([3.0, 64.0, 256.0], (2, len(rows)))
    images = np.minimum(np.maximum(rows, 1.0), 64.0)
    shapes = convolution_shapes(
        images=images, channels=channels, filters=filters, rows=side, columns=side, filter_rows=np.full(len(rows), 3.0),
        filter_columns=np.full(len(rows), 3.0), row_padding=1.0, column_padding=1.0, channels_last=rng.choice([0.0, 1.0], len(rows)),
    )  # fmt: skip
    pixels = 2.0 * (images * side**2 * (channels + filters) + 9.0 * channels * filters)
    return {
        "vector_gemm": (VectorGemmFamily(), gemm_shapes(rows, columns, depth), once),
        "convolution": (ConvolutionFamily(arithmetic=FP16_MATRIX), shapes, pixels),
    }


def collective_cases(rng, rows):
    ranks, hops = rng.choice([2.0, 4.0, 8.0], len(rows)), rng.choice([0.0, 1.0, 2.0], len(rows))
    reduces = collective_shapes(np.zeros(len(rows)), 8192.0 * rows, ranks, ranks, hops)
    mixed = collective_shapes(rng.choice(list(OPERATIONS.values()), len(rows)), 8192.0 * rows, ranks, ranks, hops)
    found = {"ring": (RING_COLLECTIVE, mixed, mixed["payload_bytes"])}
    for rule in (THRESHOLDS, ONE_SHOT, FASTEST):
        for eager in (False, True):
            family = PeerAllReduceFamily(rule=rule, eager=eager)
            found[f"peers {rule}{' eager' if eager else ''}"] = (family, reduces, 2.0 * reduces["payload_bytes"])
    return found


STREAMS = ("embedding", "norm", "softmax", "activation")
PEERS = tuple(f"peers {rule}{how}" for rule in (THRESHOLDS, ONE_SHOT, FASTEST) for how in ("", " eager"))
SERVING = (*STREAMS, "quantise_scale", "experts", "ring", *PEERS)
ALL = (*SERVING, "vector_gemm", "convolution")


def case(name, seed, *, rows=None):
    """Return (family, shapes, compulsory bytes, parameters) of drawn shapes and parameters."""
    rng = np.random.default_rng(seed)
    rows = np.round(np.exp(rng.uniform(0, np.log(1e5), 20))) if rows is None else rows
    family, shapes, compulsory = {
        **stream_cases(rng, rows), "experts": expert_case(rng, rows), **product_cases(rng, rows), **collective_cases(rng, rows)
    }[name]  # fmt: skip
    return family, shapes, compulsory, {part.name: rng.uniform(part.lower, part.upper) for part in family.parameters}


SEEDS = given(seed=st.integers(0, 2**32))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@SEEDS
def test_terms_join_to_the_time_and_none_is_negative(name, seed):
    family, shapes, _, parameters = case(name, seed)
    found = family.terms(shapes, DEVICE, parameters)
    for term in TERM_NAMES:
        values = getattr(found, term)
        assert values.shape == (20,)
        assert np.isfinite(values).all()
        assert (values >= 0).all(), term
    bound, seconds = family.bound_s(shapes, DEVICE), family.seconds(shapes, DEVICE, parameters)
    assert (seconds >= bound).all()
    joined = found.time_s(family.overlap_exponent(parameters))
    assert seconds == pytest.approx(np.maximum(joined, bound), rel=1e-12)


@pytest.mark.parametrize("name", SERVING)
def test_no_rows_cost_nothing(name):
    family, shapes, _, parameters = case(name, 7, rows=np.array([0.0, 3.0]))
    with np.errstate(all="raise"):
        found = family.terms(shapes, DEVICE, parameters)
        assert np.isfinite(family.features(shapes)).all()
    assert [getattr(found, term)[0] for term in TERM_NAMES] == [0.0] * len(TERM_NAMES)
    assert found.time_s(family.overlap_exponent(parameters))[1] > 0


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@SEEDS
def test_a_cold_call_moves_at_least_the_compulsory_bytes(name, seed):
    family, shapes, compulsory, parameters = case(name, seed)
    assert (family.terms(shapes, COLD, parameters).bytes >= compulsory * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=15, deadline=None)
@SEEDS
def test_cached_bytes_are_no_traffic_and_large_streams_pass_whole(name, seed):
    family, shapes, compulsory, parameters = case(name, seed)
    found = family.terms(shapes, DEVICE, parameters).bytes
    assert (found >= compulsory - parameters["cache_share_ratio"] * DEVICE.cache_bytes).all()
    fits = compulsory < 0.01 * parameters["cache_share_ratio"] * DEVICE.cache_bytes
    again = shapes["passes"] * shapes["rows"] * shapes["columns"] * shapes["read_bytes"] if "passes" in shapes else 0.0
    assert (found <= 1e-6 * compulsory + again)[fits].all()


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=15, deadline=None)
@SEEDS
def test_memory_rate_scales_memory_time_and_the_clock_scales_compute(name, seed):
    family, shapes, _, parameters = case(name, seed)
    base, slow = (family.terms(shapes, device, parameters) for device in (DEVICE, SLOWER_MEMORY))
    fast = family.terms(shapes, replace(DEVICE, clock_hz=2 * DEVICE.clock_hz), parameters)
    assert slow.memory_s == pytest.approx(2 * base.memory_s, rel=1e-12)
    assert fast.compute_s == pytest.approx(base.compute_s / 2, rel=1e-12)
    for changed, same in ((slow, ("compute_s", "launch_s", "sync_s", "bytes")), (fast, ("memory_s", "launch_s", "sync_s", "bytes"))):
        assert all(np.array_equal(getattr(changed, term), getattr(base, term)) for term in same)


@settings(max_examples=25, deadline=None)
@SEEDS
def test_memory_rate_leaves_the_compute_time_of_a_product_that_keeps_its_tile(seed):
    rng = np.random.default_rng(seed)
    rows, columns, depth = np.round(np.exp(rng.uniform(np.log(16), np.log((8192, 8192, 127)), (10, 3)))).T  # too shallow to split
    family, shapes = VectorGemmFamily(), gemm_shapes(rows, columns, depth)
    parameters = {part.name: rng.uniform(part.lower, part.upper) for part in family.parameters} | {"reread_ratio": 0.0}
    base, slow = (family.terms(shapes, device, parameters) for device in (DEVICE, SLOWER_MEMORY))
    assert slow.memory_s == pytest.approx(2 * base.memory_s, rel=1e-12)
    assert slow.compute_s == pytest.approx(base.compute_s, rel=1e-12)
    assert slow.sync_s == pytest.approx(parameters["floor_s"])


@settings(max_examples=25, deadline=None)
@SEEDS
def test_experts_share_one_factor_and_their_floor_none(seed):
    family, shapes, _, parameters = case("experts", seed)
    base, slow = (family.terms(shapes, device, parameters) for device in (DEVICE, SLOWER_MEMORY))
    assert base.compute_s / base.launch_s == pytest.approx(slow.compute_s / slow.launch_s, rel=1e-9)
    assert 2 * base.memory_s / base.launch_s == pytest.approx(slow.memory_s / slow.launch_s, rel=1e-9)
    assert (base.launch_s >= 2 * parameters["multiply_floor_s"] * (1 - 1e-12)).all()
    assert base.sync_s == pytest.approx(np.full(20, parameters["floor_s"]))


def test_only_an_eager_collective_has_memory_time_and_waits_for_its_host():
    _, shapes, _, parameters = case("peers thresholds", 3, rows=np.array([1.0, 1024.0]))
    parameters = parameters | {"host_s": 1.0}
    graph, eager = (PeerAllReduceFamily(eager=how).terms(shapes, DEVICE, parameters) for how in (False, True))
    assert graph.memory_s.tolist() == [0.0, 0.0]
    assert eager.memory_s == pytest.approx(2 * 8192 * np.array([1.0, 1024.0]) / DEVICE.memory_bytes_per_s)
    assert np.array_equal(eager.sync_s, graph.sync_s)
    assert eager.launch_s + eager.memory_s + eager.sync_s == pytest.approx([1.0, 1.0])


def terms(**values):
    return replace(nothing(1), **{name: np.array([value]) for name, value in values.items()})


def test_scaled_terms_join_to_the_time_asked_for():
    whole = terms(compute_s=3.0, memory_s=4.0, sync_s=1.0, bytes=7.0)
    assert whole.time_s(2.0) == pytest.approx([6.0])
    scaled = whole.scaled_to(np.array([12.0]), 2.0)
    assert [getattr(scaled, name)[0] for name in TERM_NAMES] == pytest.approx([6.0, 8.0, 0.0, 2.0, 7.0])
    assert nothing(1).scaled_to(np.array([2.0]), 2.0).sync_s.tolist() == [2.0]


def test_parts_in_sequence_take_the_sum_of_their_times():
    parts = (terms(compute_s=3.0, memory_s=4.0, sync_s=1.0), terms(memory_s=2.0, bytes=5.0))
    found = in_sequence(parts, 2.0)
    factor = 7.0 / np.hypot(3.0, 6.0)
    assert isinstance(found, Terms)
    assert found.time_s(2.0) == pytest.approx([5.0 + 1.0 + 2.0])
    assert [getattr(found, name)[0] for name in TERM_NAMES] == pytest.approx([3.0 * factor, 6.0 * factor, 0.0, 1.0, 5.0])
