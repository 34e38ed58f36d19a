"""The fastest dataflow, tile and loop order of every product, and what it costs.

Parts of a product overlap as far as the device lets them::

    arrays    = cycles (see `dataflow`) / clock, at least what the slowest buffer's banks need for what passes them
    memory    = bytes between device memory and buffers (see `traffic`) / rate
    time      = max(floor + arrays, floor + memory less its exposed part) + exposed part     with double buffers
              = arrays + memory + floor                                                      without

The exposed part is the first stationary values, which the arrays wait for (with results in place: the last ones, written after all
else). Floor and share of the memory rate are those of the device's matrix kernels. A tile whose load takes longer than the tile before
it computes would wait even where the sums fit: the times are those of a device that looks ahead far enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from replay.errors import SpecError, nearest
from replay.specs.hardware import HardwareSpec, SpatialSpec
from replay.tiling.spatial.cost import Cost, Rates
from replay.tiling.spatial.dataflow import Product, granules
from replay.tiling.spatial.formats import spatial_of
from replay.tiling.spatial.search import Mapped, Tile, fastest
from replay.tiling.terms import Array, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialChoice:
    """What the chosen mappings of many shapes cost and look like [rows]."""

    terms: Terms
    overlap_exponent: float
    """Joins the terms (`Terms.time_s`): infinity with double buffers, 1 without."""
    dataflow: npt.NDArray[np.str_]
    loop_order: npt.NDArray[np.str_]
    """Dimensions of the loops over tiles, the outermost first: ``rows, columns, depth``."""
    held_whole: npt.NDArray[np.str_]
    """Operands held for more than a tile, with the dimensions of which all is held: ``inputs (depth)``; empty where none is."""
    tile: npt.NDArray[np.int64]
    """Rows, columns and depth of the tiles in the buffers [rows, 3]."""
    cycles: Array
    """Clock cycles of the arrays, stalls not counted."""
    utilisation_ratio: Array
    """Multiplies that the definition needs over those that all cells could do in these cycles."""
    dram_bytes: Array
    sram_bytes: Array
    """Between buffers and arrays, and between buffers and device memory."""
    energy_j: dict[str, Array]
    """By `mac`, `sram` and `dram`; a level that the description has no energy for is absent."""

    @property
    def seconds(self) -> Array:
        """The joined terms [rows]."""
        return self.terms.time_s(self.overlap_exponent)


def choose(device: HardwareSpec, product: Product, *, dataflow: str | None, tile: Tile | None) -> SpatialChoice:
    """Return the fastest mapping of each product [rows], among all or with what is asked for.

    Raises:
        SpecError: as `spatial_product`.
    """
    spatial = spatial_of(device)
    _check_sizes(product)
    names = _dataflows(device, spatial, dataflow)
    if tile is not None:
        names = _knowing(names, spatial, product, tile)
    memory_bytes_per_s = spatial.memory_efficiency_ratio * device.memory_bytes_per_s
    rates = Rates(spatial=spatial, clock_hz=device.clock_hz, memory_bytes_per_s=memory_bytes_per_s)
    best = reduce(Mapped.better, (fastest(product, name, rates, tile) for name in names))
    if np.isinf(best.joined_s).any():
        raise _nothing_fits(device, product, int(np.argmax(best.joined_s)), tile)
    cells = float(spatial.arrays_count * spatial.array_rows_count * spatial.array_columns_count)
    return SpatialChoice(
        terms=_terms(best, device),
        overlap_exponent=overlap_exponent(device),
        dataflow=best.dataflow,
        loop_order=best.loop_order,
        held_whole=best.held_whole,
        tile=best.tile,
        cycles=best.cycles,
        utilisation_ratio=product.multiplies / (best.cycles * cells * product.format.lanes),
        dram_bytes=best.dram_bytes,
        sram_bytes=best.sram_bytes,
        energy_j=_energy(spatial, product, best),
    )


def overlap_exponent(device: HardwareSpec) -> float:
    """Return the p that joins execution and memory time: infinity (the larger one) where buffers are double, else 1 (their sum)."""
    return np.inf if spatial_of(device).double_buffered else 1.0


def _terms(cost: Cost, device: HardwareSpec) -> Terms:
    """Return pure terms. A sum of both branches would charge a launch floor twice, so without double buffers it stands in `sync_s`."""
    floor, nothing = np.full(len(cost.cycles), spatial_of(device).kernel_floor_s), np.zeros(len(cost.cycles))
    doubled = spatial_of(device).double_buffered
    return Terms(
        compute_s=cost.compute_s,
        memory_s=cost.memory_s,
        launch_s=floor if doubled else nothing,
        sync_s=cost.exposed_s if doubled else floor,
        bytes=cost.dram_bytes,
    )


def _energy(spatial: SpatialSpec, product: Product, cost: Cost) -> dict[str, Array]:
    energy: dict[str, Array] = {}
    if product.format.name in spatial.mac_energy_j:
        energy["mac"] = product.multiplies * spatial.mac_energy_j[product.format.name]
    if all(buffer.energy_j_per_byte is not None for buffer in spatial.buffers.values()):
        energy["sram"] = cost.sram_energy_j
    if spatial.memory_energy_j_per_byte is not None:
        energy["dram"] = cost.dram_bytes * spatial.memory_energy_j_per_byte
    return energy


def _check_sizes(product: Product) -> None:
    if not len(product.rows):
        raise SpecError("spatial product", "no product", "at least one shape", "ask for none")
    for name in ("rows", "columns", "depth", "repeats"):
        sizes = getattr(product, name)
        if not sizes.min() >= 1:
            raise SpecError(f"spatial product {name}", f"{sizes.min():g}", "at least 1", "drop the empty product")


def _dataflows(device: HardwareSpec, spatial: SpatialSpec, asked: str | None) -> tuple[str, ...]:
    if asked is not None and asked not in spatial.dataflows:
        known = ", ".join(spatial.dataflows)
        raise SpecError(
            "spatial dataflow",
            f"{asked!r}, which the arrays of {device.name} do not know{nearest(asked, spatial.dataflows)}",
            f"one of {known}",
            "take one of them, or leave the choice open",
        )
    return spatial.dataflows if asked is None else (asked,)


def _knowing(names: tuple[str, ...], spatial: SpatialSpec, product: Product, tile: Tile) -> tuple[str, ...]:
    """Return the dataflows whose edges a tile is a multiple of, wherever it does not cover the whole."""
    sizes = (product.rows, product.columns, product.depth)
    wants = {name: granules(name, spatial, product.format) for name in names}

    def legal(name: str) -> bool:
        parts = zip(tile, wants[name], sizes, strict=True)
        return all(part >= 1 and (part % edge == 0 or part >= size.max()) for part, edge, size in parts)

    known = tuple(name for name in names if legal(name))
    if not known:
        edges = ", or ".join(f"{' x '.join(map(str, edges))} ({name})" for name, edges in wants.items())
        raise SpecError(
            "spatial tile", f"{' x '.join(map(str, tile))} is cut inside an array", f"multiples of {edges}, or the whole", "round the tile"
        )
    return known


def _nothing_fits(device: HardwareSpec, product: Product, row: int, tile: Tile | None) -> SpecError:
    sizes = " x ".join(f"{column[row]:g}" for column in (product.rows, product.columns, product.depth))
    held = ", ".join(f"{name} {buffer.bytes:g}" for name, buffer in spatial_of(device).buffers.items())
    return SpecError(
        f"{device.name}: spatial.buffers",
        f"{'no tile' if tile is None else 'not this tile'} of a product of {sizes} fits ({held} bytes)",
        "room for the tiles of all operands, twice where they are double-buffered",
        "take larger buffers or smaller arrays" if tile is None else "take a smaller tile, or leave the choice open",
    )
