"""Published devices: the first TPU on its published workloads, and ResNet-18 on arrays like a TPU's."""

import time

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.tiling.spatial.product import spatial_convolution, spatial_product
from tests.tiling.spatial.devices import tpu_v1, zigzag_tpu_like
from tests.tiling.spatial.resnet18 import MULTIPLIES, WEIGHTS, resnet18


def row(value):
    return np.array([float(value)])


@pytest.mark.parametrize(
    ("layers", "weights", "batch", "flops_per_s"),
    [(5, 20e6, 200, 12.3e12), (4, 5e6, 168, 9.7e12), (24, 52e6, 64, 3.7e12)],
    ids=["MLP0", "MLP1", "LSTM0"],
)
def test_the_first_tpu_s_networks_that_are_bound_by_weights_run_as_fast_as_published(layers, weights, batch, flops_per_s):
    """Jouppi et al. 2017, tables 1 and 3: fully connected layers, weights, batch and TOP/s.

    The sizes of single layers are not published: square ones of the mean stand for them.
    """
    side = np.round(np.sqrt(weights / layers))
    found = spatial_product(tpu_v1(), row(batch), row(side), row(side), element_bytes=1.0)
    operations = 2.0 * batch * side**2
    assert operations / found.seconds[0] == pytest.approx(flops_per_s, rel=0.15)
    assert found.terms.memory_s[0] > 3.0 * found.terms.compute_s[0]


def test_the_first_tpu_hides_the_loading_of_weights_behind_256_rows():
    """Section 2: a second tile in the matrix unit hides the 256 cycles it takes to shift one in; fewer rows do not hide all of them."""
    few, all_hidden, twice = (
        spatial_product(tpu_v1(), row(rows), row(2560), row(2560), element_bytes=1.0).cycles[0] for rows in (32, 256, 512)
    )
    assert few == pytest.approx(all_hidden, rel=0.01)
    assert twice == pytest.approx(2 * all_hidden, rel=0.05)


def test_the_first_tpu_computes_as_long_as_it_loads_weights_at_1350_rows():
    """Section 4: the ridge of the roofline lies at 1350 multiplies per byte of weights."""
    device, edge = tpu_v1(), 8192
    below, above = (
        spatial_product(device, row(rows), row(edge), row(edge), element_bytes=1.0).terms.compute_s[0] * device.memory_bytes_per_s / edge**2
        for rows in (1350 * 0.98, 1350 * 1.02)
    )
    assert below < 1 < above


def test_the_layers_are_resnet_18():
    """1.814 billion multiply-accumulates and 11.68 million weights without biases and norms (torchvision's model)."""
    convolutions, (columns, depth) = resnet18()
    taps = convolutions["filter_rows"] * convolutions["filter_columns"] * convolutions["channels"] * convolutions["filters"]
    assert taps.sum() + columns * depth == WEIGHTS == 11_678_912
    assert (taps * convolutions["result_rows"] * convolutions["result_columns"]).sum() + columns * depth == MULTIPLIES == 1_814_073_344


@pytest.mark.parametrize(("element_bytes", "format_name"), [(2.0, "bf16"), (1.0, "int8")])
def test_resnet_18_on_a_tpu_v5e_is_searched_in_a_second_and_takes_plausible_time(element_bytes, format_name):
    device = read_hardware("tpu-v5e")
    convolutions, (columns, depth) = resnet18()
    start = time.process_time()
    layers = spatial_convolution(device, convolutions, element_bytes=element_bytes)
    last = spatial_product(device, row(1), row(columns), row(depth), element_bytes=element_bytes)
    assert time.process_time() - start < 1.0
    total_s = layers.seconds.sum() + last.seconds[0]
    weights_s = WEIGHTS * element_bytes / device.memory_bytes_per_s
    peak_s = 2.0 * MULTIPLIES / device.matrix_flops_per_s[format_name]
    floors_s = 21 * device.spatial.kernel_floor_s
    assert max(weights_s, peak_s) + floors_s < total_s < 4.0 * max(weights_s, peak_s) + floors_s
    # One image: late layers have 49 pixels for 128 rows of weights, so that the arrays wait for loads; middle ones run well.
    middle, late = (layers.utilisation_ratio[convolutions["rows"] == size].max() for size in (28, 7))
    assert 0.6 < middle <= 1
    assert late < 0.5


def test_resnet_18_takes_the_cycles_that_zigzag_reports_for_like_arrays_less_what_unrolled_taps_save():
    """ZigZag 3.9.1 reports 3.865 million cycles on its tpu_like, for the network with additions and pools.

    It unrolls channels only, so that the first layer's 3 leave 29 of 32 rows of cells idle: 2 x 49 x 112 x 112 cycles more than 5 x 2 folds
    of unfolded pixels.
    """
    device = zigzag_tpu_like()
    convolutions, (columns, depth) = resnet18()
    layers = spatial_convolution(device, convolutions, element_bytes=1.0)
    last = spatial_product(device, row(1), row(columns), row(depth), element_bytes=1.0)
    cycles = (layers.seconds.sum() + last.seconds[0]) * device.clock_hz
    saved = (2 * 49 - 2 * 5) * 112 * 112
    assert cycles == pytest.approx(3.865e6 - saved, rel=0.15)
