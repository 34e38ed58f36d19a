"""Speed of mapping search: one product alone, many at once, and a whole network, on a systolic array and on a GPU.

    python bench/mapping_search.py

Each figure is processor time, the best of several repetitions in one process; the first ones, which load code, are left out. What peers
take is printed as a ratio: their figures are processor seconds of single runs on another machine with two x86-64 cores, so read it
to an order of magnitude.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from replay.catalog.hardware import read_hardware
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.convolution import convolution_shapes
from replay.tiling.families.family import Shapes
from replay.tiling.families.gemm import gemm_family, gemm_shapes
from replay.tiling.spatial.product import spatial_convolution, spatial_product

REPETITIONS = 20
ARRAY, GPU = "tpu-v5e", "h100-sxm"
BATCH = 512
RESNET_18 = (
    # channels, filters, input edge, filter edge, stride, times (He et al. 2016, table 1)
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 3, 1, 4), (64, 128, 56, 3, 2, 1), (128, 128, 28, 3, 1, 3), (64, 128, 56, 1, 2, 1),
    (128, 256, 28, 3, 2, 1), (256, 256, 14, 3, 1, 3), (128, 256, 28, 1, 2, 1), (256, 512, 14, 3, 2, 1), (512, 512, 7, 3, 1, 3),
    (256, 512, 14, 1, 2, 1),
)  # fmt: skip
PEERS = {
    "product": (("LLMCompass 2e015fd, the same product", 14.3, ""), ("SCALE-Sim 3.0.0, the same product, not done after", 100.0, ">")),
    "network": (("ZigZag 3.9.1, the same network on its tpu_like", 59.1, ""),),
}


def best_s(work: Callable[[], object]) -> float:
    """The processor seconds of the quickest repetition of some work."""
    quickest = float("inf")
    for _ in range(2 + REPETITIONS):
        start_s = time.process_time()
        work()
        quickest = min(quickest, time.process_time() - start_s)
    return quickest


def many_products() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows from 1 to 8192, columns and depth of layers from 128 to 28,672: a batch of shapes as models have them."""
    draw = np.random.default_rng(1)
    rows = np.floor(2.0 ** draw.uniform(0.0, 13.0, BATCH))
    return rows, 128.0 * draw.integers(1, 225, BATCH), 128.0 * draw.integers(1, 225, BATCH)


def resnet_18() -> Shapes:
    rows = np.array([layer[:5] for layer in RESNET_18 for _ in range(layer[5])], dtype=np.float64)
    channels, filters, edge, taps, stride = rows.T
    return convolution_shapes(
        images=np.ones(len(rows)), channels=channels, filters=filters, rows=edge, columns=edge, filter_rows=taps, filter_columns=taps,
        row_padding=taps // 2, column_padding=taps // 2, row_stride=stride, column_stride=stride,
    )  # fmt: skip


def report(what: str, taken_s: float, peers: str | None = None) -> None:
    print(f"  {what:<60} {taken_s * 1e3:9.3f} ms")
    for peer, peer_s, at_least in PEERS.get(peers or "", ()):
        print(f"    {peer:<58} {peer_s:7.1f} s   {at_least:>2}{peer_s / taken_s:12,.0f} x")


def report_array(device: HardwareSpec) -> None:
    one, every = tuple(np.array([size]) for size in (512.0, 4096.0, 4096.0)), many_products()
    tokens = np.arange(1.0, 8193.0)
    network = resnet_18()

    def whole_network() -> None:
        spatial_convolution(device, network, element_bytes=1.0)
        spatial_product(device, np.ones(1), np.array([1000.0]), np.array([512.0]), element_bytes=1.0)

    print(f"{device.name}: tiles, loop nests and dataflow")
    report("product of 512 x 4096 x 4096, alone", best_s(lambda: spatial_product(device, *one, element_bytes=2.0)), "product")
    report(
        f"{BATCH} products of different shapes, each", best_s(lambda: spatial_product(device, *every, element_bytes=2.0)) / BATCH, "product"
    )
    columns, depth = np.array([28672.0]), np.array([4096.0])
    report("1 to 8192 tokens of a layer, each", best_s(lambda: spatial_product(device, tokens, columns, depth, element_bytes=2.0)) / 8192)
    report("ResNet-18, one image, all layers", best_s(whole_network), "network")


def report_gpu(device: HardwareSpec) -> None:
    family = gemm_family("bf16", "vllm_0.24.0", device)
    parameters = {definition.name: definition.start for definition in family.parameters}
    one = gemm_shapes(np.array([512.0]), np.array([4096.0]), np.array([4096.0]))
    every = gemm_shapes(*many_products())
    print(f"{device.name}: tiles, splits and waves of the GEMM family")
    report("product of 512 x 4096 x 4096, alone", best_s(lambda: family.seconds(one, device, parameters)), "product")
    report(f"{BATCH} products of different shapes, each", best_s(lambda: family.seconds(every, device, parameters)) / BATCH, "product")


def main() -> None:
    report_array(read_hardware(ARRAY))
    report_gpu(read_hardware(GPU))


if __name__ == "__main__":
    main()
