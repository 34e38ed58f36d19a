"""Emulated formats against `ml_dtypes` bit by bit, and scaled ones against loops over single values."""

import math

import ml_dtypes
import numpy as np
import pytest

from replay.quality.elements import ELEMENTS
from replay.quality.products import Accumulation, product
from replay.quality.tensor_formats import TensorFormat, two_of_four

ALL_BF16 = (np.arange(2**16, dtype=np.uint32) << 16).astype(np.uint32).view(np.float32)
"""Every sign and exponent of float32, with 7 bits of fraction: ties and halves of all narrower formats are among them."""
RANDOM = np.random.default_rng(0)


def bits(values):
    return np.asarray(values, dtype=np.float32).view(np.uint32)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16), ("fp8_e4m3", ml_dtypes.float8_e4m3fn),
                        ("fp8_e5m2", ml_dtypes.float8_e5m2), ("fp4_e2m1", ml_dtypes.float4_e2m1fn)]
)  # fmt: skip
def test_floating_elements_are_those_of_ml_dtypes_bit_by_bit(name, dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    assert ELEMENTS[name].largest == largest
    fine = (RANDOM.normal(size=100_000) * 10.0 ** RANDOM.uniform(-9, 6, size=100_000)).astype(np.float32)
    values = np.concatenate([ALL_BF16[np.isfinite(ALL_BF16)], fine])
    if ELEMENTS[name].saturates:
        inside = values[np.abs(values) <= largest]
        assert (ELEMENTS[name].stored(values[np.abs(values) > largest]) == np.sign(values[np.abs(values) > largest]) * largest).all()
    else:
        inside = values
    with np.errstate(over="ignore"):
        expected = inside.astype(dtype).astype(np.float32)
    assert (bits(ELEMENTS[name].stored(inside)) == bits(expected)).all()


def test_bf16_against_arithmetic_on_bits():
    values = RANDOM.normal(size=50_000).astype(np.float32)
    raw = values.view(np.uint32).astype(np.uint64)
    rounded = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    assert (bits(ELEMENTS["bf16"].stored(values)) == rounded).all()


@pytest.mark.parametrize(("name", "dtype"), [("int8", np.int8), ("int4", ml_dtypes.int4)])
def test_whole_elements_survive_the_integer_type(name, dtype):
    values = np.linspace(-200, 200, 4001).astype(np.float32)
    stored = ELEMENTS[name].stored(values)
    assert (stored.astype(dtype).astype(np.float32) == stored).all()
    inside = np.abs(values) <= ELEMENTS[name].largest
    assert (np.abs(stored - values)[inside] <= 0.5).all()


def slow_scale(values, whole, form):
    largest = max(abs(float(value)) for value in values)
    top = form.element.largest
    if form.scale == "nvfp4":
        tensor = np.float32(np.abs(whole).max()) / np.float32(448 * top)
        inner = np.float32(largest) / np.float32(top) / tensor
        scale = float(np.float32(ml_dtypes.float8_e4m3fn(inner)) * tensor)
    elif form.scale == "mx":
        scale = 2.0 ** (math.floor(math.log2(largest)) - math.floor(math.log2(top))) if largest else 0.0
    elif form.scale == "power_of_two":
        scale = 2.0 ** math.ceil(math.log2(np.float32(largest) / np.float32(top))) if largest else 0.0
    else:
        scale = float(np.float32(largest) / np.float32(top))
        scale = float(np.float16(scale)) if form.scale == "fp16" else scale
    return np.float32(scale if scale > 0 else 1.0)


def slow(values, form):
    """Store a matrix value by value."""
    rows, columns = values.shape
    high = {"tensor": rows, "channel": 1, "group": 1, "block": form.size}[form.shared_by]
    wide = {"tensor": columns, "channel": columns, "group": form.size, "block": form.size}[form.shared_by]
    out = np.zeros_like(values)
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            place = np.s_[top : top + high, left : left + wide]
            scale = slow_scale(values[place].ravel(), values, form)
            grid = [[form.element.stored(np.float32(value) / scale) * scale for value in row] for row in values[place]]
            out[place] = np.array(grid, dtype=np.float32)
    return out


def scaled(name, shared_by, size=0, scale="fp32"):
    return TensorFormat(element=ELEMENTS[name], shared_by=shared_by, size=size, scale=scale)


FORMATS = [
    scaled("fp8_e4m3", "tensor"), scaled("fp8_e5m2", "tensor"), scaled("int8", "channel"), scaled("int4", "tensor"),
    scaled("int4", "group", 32, "fp16"),
    scaled("fp8_e4m3", "block", 8), scaled("fp8_e4m3", "block", 8, "power_of_two"), scaled("fp8_e4m3", "group", 32, "mx"),
    scaled("fp4_e2m1", "group", 32, "mx"), scaled("fp4_e2m1", "group", 16, "nvfp4"), scaled("int8", "group", 128, "power_of_two"),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_scaled_formats_are_those_of_a_loop_over_values(form):
    values = (RANDOM.normal(size=(21, 83)) * np.exp(RANDOM.normal(size=(21, 83)))).astype(np.float32)
    values[3] = 0.0
    values[:, :32] *= 1e-3
    assert (form.stored(values) == slow(values, form)).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_matrix_of_zeros_stays_one_and_nan_stays_visible(form):
    assert (form.stored(np.zeros((4, 64), dtype=np.float32)) == 0).all()
    broken = np.ones((4, 64), dtype=np.float32)
    broken[1, 2] = np.nan
    assert np.isnan(form.stored(broken)[1, 2])


def test_two_of_four_keeps_the_two_largest_and_of_equal_ones_the_first():
    weights = np.array([[1, -3, 2, 0, 5, 5, 5, 5, 1, 2]], dtype=np.float32)
    assert two_of_four(weights).tolist() == [[0, -3, 2, 0, 5, 5, 0, 0, 1, 2]]


def test_a_product_in_parts_is_the_same_up_to_the_order_of_sums():
    rows, weights = (RANDOM.normal(size=(count, 300)).astype(np.float32) for count in (5, 7))
    exact = rows.astype(np.float64) @ weights.astype(np.float64).T
    whole, split = product(rows, weights), product(rows, weights, parts=3)
    assert np.abs(whole - exact).max() < 1e-4
    assert np.abs(split - exact).max() < 1e-4
    assert (whole != split).any()


def slow_accumulation(row, weight, width, interval):
    """Sum a row's product step by step in a narrow accumulator."""
    kept, total = np.float32(0), np.float32(0)
    for start in range(0, len(row), 32):
        if start and start % interval == 0:
            total, kept = np.float32(total + kept), np.float32(0)
        kept = np.float32(
            kept + np.float32(np.dot(row[start : start + 32].astype(np.float64), weight[start : start + 32].astype(np.float64)))
        )
        if width == "fp22":
            mantissa, exponent = math.frexp(float(kept))
            kept = np.float32(math.trunc(mantissa * 2**14) / 2**14 * 2.0**exponent)
        else:
            kept = np.float32(np.float16(kept))
    return np.float32(total + kept)


@pytest.mark.parametrize("width", ["fp22", "fp16"])
@pytest.mark.parametrize("interval", [64, 128])
def test_narrow_accumulators_are_those_of_a_loop_over_steps(width, interval):
    rows, weights = (np.round(RANDOM.normal(size=(count, 320)) * 16).astype(np.float32) / 8 for count in (4, 6))  # sums of a step are exact
    found = product(rows, weights, Accumulation(width=width, interval=interval))
    expected = [[slow_accumulation(row, weight, width, interval) for weight in weights] for row in rows]
    assert (found == np.array(expected, dtype=np.float32)).all()


def test_a_shorter_interval_loses_less():
    rows, weights = (np.abs(RANDOM.normal(size=(count, 4096))).astype(np.float32) for count in (8, 8))
    exact = rows.astype(np.float64) @ weights.astype(np.float64).T
    errors = [
        np.abs(product(rows, weights, Accumulation(width="fp22", interval=interval)) / exact - 1).mean() for interval in (None, 512, 128)
    ]
    assert errors[0] > errors[1] > errors[2]
