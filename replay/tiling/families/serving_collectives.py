"""Collectives of a serving step: which kernel runs for which rows, and which calibrations stand for it.

An all-reduce up to the mapping's threshold (`all_reduce.one_shot_max_bytes`) is one shot of a kernel that reads its peers, where
every rank has a link to every other; larger ones, and those without links, are the communication library's. Everything else is always
the library's. A tensor-parallel group fills nodes of eight; more ranks meet over the network, as do pipeline stages of two nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES
from replay.lowering.op_graph import CollectiveShape
from replay.lowering.stages import NODE_RANKS
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.collectives import ALL_GATHER, ALL_REDUCE, OPERATIONS, RING_COLLECTIVE, RingCollectiveFamily, collective_shapes
from replay.tiling.families.family import Shapes
from replay.tiling.families.node_paths import SWITCHED, own_topology, slowest_hop
from replay.tiling.families.peer_all_reduce import FASTEST, ONE_SHOT, THRESHOLDS, PeerAllReduceFamily, reaches_peers

SWITCHED_NODES = "dgx"
"""Name of switched nodes in the variants that the network tables make (`all_reduce-dgx`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePath:
    """One of the kernels of a collective: the rows it runs for, and the variants that stand for it, in order of preference."""

    family: RingCollectiveFamily | PeerAllReduceFamily
    variants: tuple[str, ...]
    rows: npt.NDArray[np.bool_]
    """Where it runs; every row has one path."""


def serving_collective(
    shape: CollectiveShape, rows: npt.NDArray[np.int64], one_shot_max_bytes: int, device: HardwareSpec
) -> tuple[Shapes, tuple[CollectivePath, ...]]:
    """Return (shapes, paths) of a collective for each row count [rows], 0 included: two paths of an all-reduce, one of all others.

    The shapes are for all rows and both families. Payloads are what a rank holds or sends, or what a gather brings together.
    """
    message = rows.astype(np.float64) * shape.elements * FORMAT_BYTES["bf16"]
    like = np.ones(len(rows))
    operation, ranks = OPERATIONS[shape.kind], shape.ranks * like
    local = (1.0 if shape.across_nodes else NODE_RANKS) * like
    hop = slowest_hop(own_topology(device), ranks, local)
    payload = message * shape.ranks if operation == ALL_GATHER else message
    shapes = collective_shapes(operation * like, payload, ranks, local, hop.astype(np.float64))
    names: tuple[str, ...] = (shape.kind,)
    if own_topology(device) == SWITCHED:
        across = shape.across_nodes or shape.ranks > NODE_RANKS  # only the network tables have rows between nodes
        names = (f"{shape.kind}-{SWITCHED_NODES}", shape.kind) if across else (shape.kind, f"{shape.kind}-{SWITCHED_NODES}")
    if operation != ALL_REDUCE:
        return shapes, (CollectivePath(family=RING_COLLECTIVE, variants=names, rows=like > 0),)
    peers = reaches_peers(shapes) & (message <= one_shot_max_bytes)
    return shapes, (
        CollectivePath(family=PeerAllReduceFamily(rule=ONE_SHOT), variants=PEER_VARIANTS, rows=peers),
        CollectivePath(family=RING_COLLECTIVE, variants=names, rows=~peers),
    )


PEER_VARIANTS = tuple(f"all_reduce-{rule}" for rule in (THRESHOLDS, FASTEST))
"""Calibrations of kernels between peers from captured graphs: eager ones hide the kernel behind the host."""
