"""How the accelerators of a node reach each other: the slowest hop of a ring over some ranks, and what it can carry at most.

Topologies:

- `SWITCHED`: every rank on a switch at its link's rate (NVLink with NVSwitch);
- `BRIDGED_PAIRS`: two ranks share a bridge, pairs meet over the host's PCIe;
- `PCIE_SOCKETS`: no link of their own: two ranks below one PCIe switch, four below one socket, more across sockets (L40S servers);
- any of them, between nodes: the network.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import Shapes
from replay.tiling.terms import Array

SWITCHED, BRIDGED_PAIRS, PCIE_SOCKETS = "switched", "bridged_pairs", "pcie_sockets"
LINK, HOST, SOCKET, NETWORK = 0, 1, 2, 3
"""Kinds of the slowest hop: the accelerator's link, PCIe by way of the host, PCIe across sockets, the network between nodes."""
PAIR_RANKS, SOCKET_RANKS = 2, 4


def own_topology(device: HardwareSpec) -> str:
    """Return how a node of the device is taken to be wired: by its links where they outrun PCIe, else as a two-socket PCIe server."""
    return SWITCHED if device.link.bytes_per_s > device.host_link_bytes_per_s else PCIE_SOCKETS


def slowest_hop(topology: str, ranks: Array, ranks_per_node: Array) -> npt.NDArray[np.int64]:
    """Return the kind of the slowest hop of a ring over `ranks` of them [rows]."""
    over_nodes = ranks > ranks_per_node
    if topology == SWITCHED:
        inside = np.full(len(ranks), LINK)
    elif topology == BRIDGED_PAIRS:
        inside = np.where(ranks <= PAIR_RANKS, LINK, HOST)
    else:
        assert topology == PCIE_SOCKETS
        inside = np.select([ranks <= PAIR_RANKS, ranks <= SOCKET_RANKS], [LINK, HOST], SOCKET)
    return np.where(over_nodes, NETWORK, inside)


def least_transfer_s(crossing_bytes: Array, shapes: Shapes, device: HardwareSpec) -> Array:
    """Return the least time [rows] for each rank to take in `crossing_bytes` over the slowest hop.

    Over the link it is the rank's own; otherwise the ranks on one side of the hop take them in together, each over its host link: a
    pair, half of the ranks, or a node.
    """
    ranks, hop = shapes["ranks"], shapes["slowest_hop"]
    together = np.select([hop == HOST, hop == SOCKET, hop == NETWORK], [PAIR_RANKS, ranks / 2.0, shapes["ranks_per_node"]], 1.0)
    rate = np.where(hop == LINK, device.link.bytes_per_s, together * device.host_link_bytes_per_s)
    return np.asarray(crossing_bytes / rate)
