"""Features of the residual of dense multiplies: sizes, how tiles fill units and edges, and where libraries switch kernels.

What physics leaves is mostly which kernel a library's heuristic takes. That turns with the number of rows at powers of two, with
how full the last wave of its large tiles is, and with the bytes in play; nothing here knows a rate of the device.
"""

from __future__ import annotations

import numpy as np

from replay.tiling.terms import Array

WAVE_TILES = ((64, 128), (128, 128), (128, 256), (256, 128))
EDGES = (16, 64, 128, 256)
ROW_THRESHOLDS = (1, 8, 16, 32, 64, 128, 256, 512)
ALIGNED_ROWS = 8
"""Rows come in 16-byte loads of 8 elements where results are stored transposed."""
WAVE_OCTAVES = 3.0
"""Waves further than this from one look alike."""
THRESHOLD_SHARPNESS = 4.0

FEATURES = (
    "log2_rows",
    "log2_columns",
    "log2_depth",
    "log2_bytes",
    "unaligned_rows",
    *(f"idle_{rows}x{columns}" for rows, columns in WAVE_TILES),
    *(f"waves_{rows}x{columns}" for rows, columns in WAVE_TILES),
    *(f"padding_{edge}" for edge in EDGES),
    *(f"rows_over_{rows}" for rows in ROW_THRESHOLDS),
)


def gemm_features(rows: Array, columns: Array, depth: Array, moved_bytes: Array, units_count: int) -> Array:
    """Return the features [rows, features] in the order of `FEATURES`; waves are counted over `units_count` units."""
    log_rows = np.log2(rows)
    waves = [np.ceil(rows / r) * np.ceil(columns / c) / units_count for r, c in WAVE_TILES]
    found = [
        log_rows,
        np.log2(columns),
        np.log2(depth),
        np.log2(moved_bytes),
        np.where(rows % ALIGNED_ROWS > 0, 1.0, 0.0),
        *(np.where(wave <= 1.0, 0.0, np.log2(np.ceil(wave) / wave)) for wave in waves),
        *(np.clip(np.log2(wave), -WAVE_OCTAVES, WAVE_OCTAVES) for wave in waves),
        *(np.log2(edge * np.ceil(rows / edge) / rows) for edge in EDGES),
        *(np.tanh(THRESHOLD_SHARPNESS * (log_rows - np.log2(limit + 0.5))) for limit in ROW_THRESHOLDS),
    ]
    return np.stack(found, axis=1)
