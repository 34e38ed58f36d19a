"""The layers of ResNet-18 (He et al. 2016, table 1) on one image of 224 x 224: its convolutions, and its last product."""

import numpy as np

from replay.tiling.families.convolution import convolution_shapes
from replay.tiling.families.family import Shapes

MULTIPLIES = 1_814_073_344
WEIGHTS = 11_678_912

LAYERS = [
    # channels, filters, input edge, filter edge, stride, times
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 3, 1, 4),
    (64, 128, 56, 3, 2, 1), (128, 128, 28, 3, 1, 3), (64, 128, 56, 1, 2, 1),
    (128, 256, 28, 3, 2, 1), (256, 256, 14, 3, 1, 3), (128, 256, 28, 1, 2, 1),
    (256, 512, 14, 3, 2, 1), (512, 512, 7, 3, 1, 3), (256, 512, 14, 1, 2, 1),
]  # fmt: skip


def resnet18() -> tuple[Shapes, tuple[int, int]]:
    """Return the shapes of its 20 convolutions [20], and columns and depth of its last layer."""
    rows = np.array([layer[:5] for layer in LAYERS for _ in range(layer[5])], dtype=np.float64)
    channels, filters, edge, taps, stride = rows.T
    convolutions = convolution_shapes(
        images=np.ones(len(rows)),
        channels=channels,
        filters=filters,
        rows=edge,
        columns=edge,
        filter_rows=taps,
        filter_columns=taps,
        row_padding=(taps - 1) / 2,
        column_padding=(taps - 1) / 2,
        row_stride=stride,
        column_stride=stride,
    )
    return convolutions, (1000, 512)
