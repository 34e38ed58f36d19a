"""Timings of collectives between the accelerators of a node, and of a few nodes.

- collectives: ``gpu, stack, op_name, dtype, num_gpus, message_size, ms``; sizes are elements: what a rank holds, or for gathering and
  scattering what all ranks hold together;
- network: ``node, op, num_workers, size, devices_per_node, median_ms`` (and other statistics, unused); sizes are bytes; the node is
  ``<device>_dgx`` (a switch) or ``<device>_pairwise_nvlink`` (bridged pairs).

Accelerators without a link of their own are taken to sit in a two-socket PCIe server (`node_paths`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds import classic
from replay.calibration.kinds.cells import Cells, device_name, read_cells
from replay.calibration.measured import MeasuredSet
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError, nearest
from replay.tiling.families.collectives import OPERATIONS, RING_COLLECTIVE, collective_shapes
from replay.tiling.families.family import KernelFamily
from replay.tiling.families.node_paths import BRIDGED_PAIRS, SWITCHED, own_topology, slowest_hop
from replay.tiling.families.peer_all_reduce import FASTEST, THRESHOLDS, PeerAllReduceFamily
from replay.tiling.terms import Array

NAMES = {**{name: name for name in OPERATIONS}, "alltoall": "all_to_all", "send_recv": "send_receive"}
ELEMENT_BYTES = {"half": 2.0, "float16": 2.0, "bfloat16": 2.0, "float": 4.0, "float32": 4.0, "int8": 1.0, "fp8": 1.0}
TOPOLOGIES = {"dgx": SWITCHED, "pairwise_nvlink": BRIDGED_PAIRS}
PROFILER = "vidur"
"""Stack of the network tables: they name no library version."""
ALL_REDUCE_ONLY = "all_reduce"
IMPOSSIBLE_SHARE_RATIO = 0.01
"""A set with more rows than this below the physical bound was not measured on the device that it names."""

Texts = npt.NDArray[np.str_]
_Value = TypeVar("_Value", str, float)


@dataclass(frozen=True, slots=True)
class CollectivesKind:
    """Collectives of one node by libraries and by serving stacks' own kernels."""

    name: str = "collectives"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of collectives."""
        return {"gpu", "stack", "op_name", "num_gpus", "message_size"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set per device, stack and operation; the rule of kernels between peers is part of the variant.

        Raises:
            SpecError: columns, operations, formats, devices or times that cannot be.
        """
        cells = read_cells(table, ("gpu", "stack", "op_name", "dtype", "num_gpus", "message_size", "ms"), (), where)
        hardware, undescribed = classic.devices(cells)
        operations, stacks = _named(cells, "op_name", NAMES), cells.text("stack")
        ranks = cells.whole("num_gpus").astype(np.float64)
        payload = cells.whole("message_size") * np.array(_named(cells, "dtype", ELEMENT_BYTES))
        hops = np.zeros(len(ranks))
        for device in set(hardware.tolist()) - {""}:
            rows = hardware == device
            hops[rows] = slowest_hop(own_topology(read_hardware(device)), ranks[rows], ranks[rows])
        for stack, operation in sorted(set(zip(stacks.tolist(), operations, strict=True))):
            _check_library(stack, operation, where)
        variants = np.array([_variant(stack, operation) for stack, operation in zip(stacks.tolist(), operations, strict=True)])
        return _sets(cells, "ms", (hardware, stacks, variants), (payload, ranks, ranks, hops), undescribed)


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """Collectives within and between nodes of a described layout."""

    name: str = "network"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of network timings."""
        return {"node", "op", "num_workers", "devices_per_node", "size"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set per device, layout and operation.

        Raises:
            SpecError: columns, nodes, operations, sizes or times that cannot be.
        """
        statistics = ("min_ms", "max_ms", "std_ms", "ranks")
        cells = read_cells(table, ("node", "op", "num_workers", "size", "devices_per_node", "median_ms"), statistics, where)
        ranks, local = (cells.whole(name).astype(np.float64) for name in ("num_workers", "devices_per_node"))
        nodes = cells.text("node")
        hardware, layouts = np.array(nodes, dtype=object), np.array(nodes, dtype=object)
        hops = np.zeros(len(ranks))
        for node in np.unique(nodes).tolist():
            rows = nodes == node
            hardware[rows], layouts[rows] = _device_and_layout(node, f"{where}: node")
            hops[rows] = slowest_hop(TOPOLOGIES[layouts[rows][0]], ranks[rows], local[rows])
        operations = _named(cells, "op", NAMES)
        variants = np.array([f"{name}-{layout}" for name, layout in zip(operations, layouts.tolist(), strict=True)])
        places = hardware.astype(np.str_), np.full(len(ranks), PROFILER), variants
        return _sets(cells, "median_ms", places, (cells.whole("size").astype(np.float64), ranks, local, hops), ())


COLLECTIVES_KIND, NETWORK_KIND = CollectivesKind(), NetworkKind()


def library_family(stack: str, operation: str) -> KernelFamily:
    """Return the family of the kernels that a stack runs for an operation."""
    name = stack.lower()
    if operation == ALL_REDUCE_ONLY and "custom" in name:
        return PeerAllReduceFamily(rule=THRESHOLDS, eager=name.endswith("_eager"))
    if operation == ALL_REDUCE_ONLY and "trtllm" in name:
        return PeerAllReduceFamily(rule=FASTEST, eager=name.endswith("_eager"))
    return RING_COLLECTIVE


def _variant(stack: str, operation: str) -> str:
    """Return the operation, with the rule and launch of kernels between peers: their calibrations do not stand for each other."""
    family = library_family(stack, operation)
    if not isinstance(family, PeerAllReduceFamily):
        return operation
    return f"{operation}-{family.rule}{'-eager' if family.eager else ''}"


def _operation(variant: str) -> str:
    return variant.partition("-")[0]


def _sets(
    cells: Cells,
    times: str,
    places: tuple[Texts, Texts, Texts],
    columns: tuple[Array, Array, Array, Array],
    skipped: tuple[tuple[str, int], ...],
) -> tuple[MeasuredSet, ...]:
    """Return the sets of rows with (payload bytes, ranks, ranks per node, slowest hop)."""
    payload, ranks, local, hops = columns
    alone = np.flatnonzero(ranks < 2)
    if len(alone):
        raise SpecError(f"{cells.where}: row {alone[0] + 2}", "one rank", "at least two ranks", "drop the row")
    operations = np.array([OPERATIONS[_operation(variant)] for variant in places[2].tolist()])
    shapes = collective_shapes(operations, payload, ranks, local, hops)
    key = tuple(np.asarray(column, dtype=np.int64) for column in (ranks, payload))
    found = classic.split_sets(cells, times, places, lambda place: library_family(place[1], _operation(place[2])), (shapes, key), skipped)
    return _credible(found, cells.where)


def _credible(sets: Sequence[MeasuredSet], where: str) -> tuple[MeasuredSet, ...]:
    """Return the sets that the links of their device allow, with the others counted at the first.

    Raises:
        SpecError: none of them does.
    """
    kept, lost = list[MeasuredSet](), list[tuple[str, int]]()
    for measured in sets:
        beaten = measured.seconds < measured.family.bound_s(measured.shapes, read_hardware(measured.hardware))
        if beaten.mean() > IMPOSSIBLE_SHARE_RATIO:
            reason = f"{measured.variant} faster than the links of {measured.hardware}: measured on another device"
            lost += [(reason, len(beaten)), *measured.skipped]
        else:
            kept.append(measured)
    if not kept:
        raise SpecError(where, "; ".join(f"{reason} ({count} rows)" for reason, count in lost), "possible times", "name the right device")
    return (replace(kept[0], skipped=(*kept[0].skipped, *lost)), *kept[1:])


def _named(cells: Cells, column: str, known: Mapping[str, _Value]) -> list[_Value]:
    """Return what a column's names stand for [rows].

    Raises:
        SpecError: an unknown name.
    """
    names = cells.text(column).tolist()
    for name in dict.fromkeys(names):
        if name not in known:
            got = f"unknown name {name!r}{nearest(name, known)}"
            raise SpecError(f"{cells.where}: {column}", got, "one of " + ", ".join(known), "correct the cells")
    return [known[name] for name in names]


def _device_and_layout(node: str, where: str) -> tuple[str, str]:
    """Return (catalog name, layout) of a node's name.

    Raises:
        SpecError: an unknown device or layout.
    """
    device, _, layout = node.partition("_")
    if layout not in TOPOLOGIES:
        want = "a device and one of " + ", ".join(f"_{known}" for known in TOPOLOGIES)
        raise SpecError(where, f"a node {node!r} of no known layout", want, "name the layout")
    return device_name(device, where), layout


def _check_library(stack: str, operation: str, where: str) -> None:
    if library_family(stack, ALL_REDUCE_ONLY) is not RING_COLLECTIVE and operation != ALL_REDUCE_ONLY:
        raise SpecError(f"{where}: op_name", f"{operation} of {stack}", "all_reduce, the only operation of its kernels", "correct the row")
