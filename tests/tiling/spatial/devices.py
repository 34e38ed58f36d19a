"""Devices with systolic arrays for tests: small ones that can be worked by hand, and the first TPU."""

from dataclasses import replace
from typing import Any

from replay.specs.hardware import DATAFLOWS, BufferSpec, HardwareSpec, SpatialSpec
from tests.models import round_hardware

PLENTY = 1e12
ROUND_SPATIAL = SpatialSpec(
    arrays_count=1,
    array_rows_count=4,
    array_columns_count=4,
    cell_format="bf16",
    dataflows=DATAFLOWS,
    folds_overlap=False,
    double_buffered=True,
    accumulator_bytes=4.0,
    buffers={"shared": BufferSpec(bytes=PLENTY)},
    mac_energy_j={},
)


def small_device(*, memory_bytes_per_s: float = 1e12, clock_hz: float = 1e9, **changes: Any) -> HardwareSpec:
    """Return one array of 4 x 4 cells at 1 GHz with 1 TB/s and endless buffers, changed as asked; the peak follows."""
    spatial = replace(ROUND_SPATIAL, **changes)
    cells = spatial.arrays_count * spatial.array_rows_count * spatial.array_columns_count
    peak = 2.0 * cells * clock_hz
    others = {"int8": 2.0 * peak, "tf32": peak / 4.0} if spatial.cell_format == "bf16" else {}
    return round_hardware(
        name="small",
        clock_hz=clock_hz,
        matrix_flops_per_s={spatial.cell_format: peak, **others},
        memory_bytes_per_s=memory_bytes_per_s,
        spatial=spatial,
    )


def shared(size: float, **figures: Any) -> dict[str, BufferSpec]:
    """Return one buffer for all operands."""
    return {"shared": BufferSpec(bytes=size, **figures)}


def tpu_v1() -> HardwareSpec:
    """Return the TPU of Jouppi et al. 2017 (ISCA), without floors: its figures are those of section 2 and table 2.

    256 x 256 cells of 8 bits at 700 MHz, 92 TOP/s, a quarter of that for 16 bits; weights from 8 GiB at 34 GB/s through a FIFO of four
    tiles; a unified buffer of 24 MiB for activations and 4 MiB of 32-bit accumulators; a second tile of weights in the matrix unit.
    """
    spatial = replace(
        ROUND_SPATIAL,
        array_rows_count=256,
        array_columns_count=256,
        cell_format="int8",
        dataflows=("weight_stationary",),
        folds_overlap=True,
        buffers={
            "inputs": BufferSpec(bytes=24.0 * 2**20),
            "weights": BufferSpec(bytes=4.0 * 2**16),
            "outputs": BufferSpec(bytes=4.0 * 2**20),
        },
    )
    return round_hardware(
        name="tpu-v1",
        clock_hz=700e6,
        matrix_flops_per_s={"int8": 92e12, "bf16": 23e12},
        memory_bytes=8.0 * 2**30,
        memory_bytes_per_s=34e9,
        spatial=spatial,
    )


def zigzag_tpu_like() -> HardwareSpec:
    """Return the accelerator `tpu_like` of ZigZag 3.9.1 at a clock of 1 GHz.

    32 x 32 cells of 8 bits with 128 bytes of weights each, 2 MB for inputs and results, 2048 bits a cycle each way, 64 from memory.
    """
    return small_device(
        array_rows_count=32,
        array_columns_count=32,
        cell_format="int8",
        dataflows=("weight_stationary",),
        folds_overlap=True,
        accumulator_bytes=2.0,
        buffers={
            "shared": BufferSpec(bytes=2.0 * 2**20, banks_count=2, bank_bytes_per_s=256e9),
            "weights": BufferSpec(bytes=128.0 * 32 * 32),
        },
        memory_bytes_per_s=8e9,
    )
