"""Calibrated parameters and the tiling stage's forms belong together: what they predict for public kernel timings of the same device."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from replay.catalog.hardware import read_hardware
from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import AttentionShape, MatmulShape
from replay.tiling import attention, gemm

# The L40S is not here: its small kernels run from a cache larger than their operands, which the forms do not model (its notes say so).
GEMM = {
    "a100-sxm-80gb": ("gemm_a100_bf16.csv", "ms_vllm_0.14.0"),
    "h100-sxm": ("gemm_h100_bf16.csv", "ms_vllm_0.24.0"),
    "b200-sxm": ("gemm_b200_bf16.csv", "ms_vllm_0.24.0"),
}
DECODE = {
    "a100-sxm-80gb": ("attention_generation_a100.csv", "ms_vllm_0.14.0"),
    "h100-sxm": ("attention_generation_h100.csv", "ms_vllm_0.24.0"),
    "b200-sxm": ("attention_generation_b200.csv", "ms_vllm_0.24.0"),
}
EVERY_NTH_GROUP = 8

Groups = dict[tuple[int, int], npt.NDArray[np.float64]]


def groups(path: Path, column: str, key: tuple[str, str], value: tuple[str, ...], only: dict[str, tuple[str, ...]]) -> Groups:
    """Return rows (value columns, then seconds) of every n-th shape group that a stack measured."""
    found: dict[tuple[int, int], list[list[float]]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row[column] and all(row[name] in allowed for name, allowed in only.items()):
                found[int(row[key[0]]), int(row[key[1]])].append([*(float(row[name]) for name in value), float(row[column]) * 1e-3])
    return {shape: np.array(found[shape]) for shape in sorted(found)[::EVERY_NTH_GROUP]}


@pytest.mark.parametrize(("name", "most_median_error"), [("a100-sxm-80gb", 0.10), ("h100-sxm", 0.07), ("b200-sxm", 0.08)])
def test_matrix_multiplies_are_predicted_without_gross_bias(name: str, most_median_error: float, shared: Path) -> None:
    hardware = read_hardware(name)
    file, column = GEMM[name]
    tiles, _ = gemm.candidate_tiles("auto", 2.0, hardware)
    errors = []
    for (columns, depth), rows in groups(shared / "data" / "measurements" / file, column, ("n", "k"), ("m",), {}).items():
        kernel = Kernel(id="mlp", layer_type="mlp", ops=(), shape=MatmulShape(columns=columns, depth=depth), axis="tokens", calls_count=1)
        terms = gemm.choose(kernel, rows[:, 0].astype(np.int64), "matrix", tiles, "auto", hardware).terms
        errors.append(terms.time_s(hardware.gemm.overlap_exponent) / rows[:, 1] - 1)
    joined = np.concatenate(errors)
    assert len(joined) > 300
    assert np.median(np.abs(joined)) < most_median_error
    assert abs(np.median(joined)) < 0.06


@pytest.mark.parametrize(("name", "most_median_error"), [("a100-sxm-80gb", 0.20), ("h100-sxm", 0.08), ("b200-sxm", 0.11)])
def test_decode_attention_is_predicted_without_gross_bias(name: str, most_median_error: float, shared: Path) -> None:
    hardware = read_hardware(name)
    file, column = DECODE[name]
    only = {"kv_dtype": ("bfloat16", "float16"), "head_dim": ("128",)}
    path, value = shared / "data" / "measurements" / file, ("batch_size", "kv_len")
    errors = []
    for (heads, kv_heads), rows in groups(path, column, ("num_heads", "num_kv_heads"), value, only).items():
        shape = AttentionShape(query_heads=heads, kv_heads=kv_heads, head_size=128)
        kernel = Kernel(id="attention", layer_type="attention", ops=(), shape=shape, axis="attention", calls_count=1)
        terms = attention.decode_terms(kernel, rows[:, 0], rows[:, 1], attention.DECODE_TILE, "auto", hardware)
        errors.append(terms.time_s(hardware.gemm.overlap_exponent) / rows[:, 2] - 1)
    joined = np.concatenate(errors)
    assert len(joined) > 200
    assert np.median(np.abs(joined)) < most_median_error
    assert abs(np.median(joined)) < 0.06
