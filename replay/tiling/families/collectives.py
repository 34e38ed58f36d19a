"""Collectives of a communication library (NCCL and its like): rings and trees, with three protocols.

For n ranks, a payload of b bytes, h hops in sequence and v bytes over the slowest hop of the ring::

    all-reduce      h = 2 (n - 1), or that of a tree between nodes where shorter    v = 2 (n - 1) / n b
    all-gather, reduce-scatter    h = n - 1                                         v = (n - 1) / n b
    all-to-all      h = 1                                                           v = (n - 1) / n b
    send and receive              h = 1                                             v = b

    latency   = floor + h hop
    flagged   = latency              (+) v / (flagged share x rate)       LL: every 4 bytes carry a flag, at most half the rate
    packed    = latency + its start  (+) v / (packed share x rate)        LL128: 8 of 128 bytes are a flag
    bulk      = latency + its start + h its hop  (+) v / (bulk share x rate)     Simple: whole chunks, a barrier of two ranks at each
    time      = the faster of the first two below the switch of payloads, bulk above; they blend within a factor of 1.3

``x (+) y`` is a p-norm with fitted p: below one it is more than the sum, which is what filling a pipeline of chunks costs. The switch
grows with a fitted power of the ranks. The rate is the link's, a share of PCIe through the host or across sockets, or the network's
times a power of the ranks per node (adapters in use). Payloads: what a rank holds for all-reduce and all-to-all and sends to a peer,
what all ranks hold together after gathering or before scattering.

After NCCL's own cost model (its source file tuning.cc) and "Demystifying NCCL" (Hu et al. 2025); trees after Sanders, Speck and
Traeff (2009), as NCCL has them since 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.node_paths import HOST, LINK, SOCKET, least_transfer_s
from replay.tiling.terms import Array, Terms, nothing

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECEIVE = 0, 1, 2, 3, 4
OPERATIONS = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "send_receive": SEND_RECEIVE,
}
SWITCH_SHARPNESS = 8.0

RING_PARAMETERS = (
    ParameterDefinition(name="floor_s", meaning="launch and the way in and out", start=6e-6, lower=1e-6, upper=1e-4),
    ParameterDefinition(name="hop_s", meaning="latency of a hop", start=1e-6, lower=1e-8, upper=1e-5),
    ParameterDefinition(name="flagged_rate_ratio", meaning="share of the rate with a flag per word", start=0.1, lower=0.01, upper=0.5),
    ParameterDefinition(name="packed_start_s", meaning="what packing adds to the latency", start=1e-6, lower=1e-8, upper=2e-5),
    ParameterDefinition(
        name="packed_rate_ratio", meaning="share of the rate with a flag per 128 bytes", start=0.4, lower=0.05, upper=0.9375
    ),
    ParameterDefinition(name="bulk_start_s", meaning="what whole chunks add to the latency", start=1e-5, lower=1e-8, upper=2e-4),
    ParameterDefinition(name="bulk_hop_s", meaning="what they add per hop", start=1e-6, lower=1e-9, upper=1e-4),
    ParameterDefinition(name="bulk_rate_ratio", meaning="share of the rate with whole chunks", start=0.7, lower=0.5, upper=1.0),
    ParameterDefinition(name="switch_bytes", meaning="payload of two ranks from which chunks are used", start=1e6, lower=2e4, upper=2e7),
    ParameterDefinition(
        name="switch_exponent", meaning="power of the ranks in the switch", start=0.3, lower=0.0, upper=1.5, logarithmic=False
    ),
    ParameterDefinition(name="pipeline_exponent", meaning="p of latency and transfer", start=0.8, lower=0.4, upper=3.0),
    ParameterDefinition(name="host_rate_ratio", meaning="share of PCIe by way of the host", start=0.2, lower=0.01, upper=1.0),
    ParameterDefinition(name="socket_rate_ratio", meaning="share of PCIe across sockets", start=0.05, lower=0.005, upper=1.0),
    ParameterDefinition(name="network_bytes_per_s", meaning="network rate of one rank a node", start=1e10, lower=1e9, upper=1e11),
    ParameterDefinition(name="network_exponent", meaning="power of the ranks per node", start=0.5, lower=0.0, upper=1.0, logarithmic=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingCollectiveFamily:
    """Collectives of a library; shapes: operation, payload_bytes, ranks, ranks_per_node and slowest_hop (`node_paths`)."""

    name: str = "ring_collective"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Latencies, rates and the switch; those of hops that no row takes stay where they start."""
        return RING_PARAMETERS

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_payload", "log_ranks", "hop")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time from the last rank's arrival to the end, for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of one call [rows]: the launch floor, and all else in `sync_s`. No payload costs nothing."""
        return waiting_terms(shapes, ring_s(shapes, device, parameters), parameters["floor_s"])

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return infinity: nothing overlaps with a collective."""
        return inf

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: what must come in over the slowest hop, at the rate of the links that carry it."""
        return collective_bound_s(shapes, device)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of payload and ranks, and the hop with the ranks per node [rows, 3]."""
        return collective_features(shapes)


RING_COLLECTIVE = RingCollectiveFamily()


def ring_s(shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the time of rings and trees [rows]."""
    hops = _hops(shapes)
    transfer_s = _slowest_bytes(shapes) / hop_rate(shapes, device, parameters)
    latency = parameters["floor_s"] + hops * parameters["hop_s"]

    def protocol_s(start_s: Array | float, rate_ratio: float) -> Array:
        exponent = parameters["pipeline_exponent"]
        parts = (latency + start_s) ** exponent + (transfer_s / rate_ratio) ** exponent
        return np.asarray(parts ** (1.0 / exponent))

    flagged = protocol_s(0.0, parameters["flagged_rate_ratio"])
    small = np.minimum(flagged, protocol_s(parameters["packed_start_s"], parameters["packed_rate_ratio"]))
    bulk = protocol_s(parameters["bulk_start_s"] + hops * parameters["bulk_hop_s"], parameters["bulk_rate_ratio"])
    switch = parameters["switch_bytes"] * (shapes["ranks"] / 2.0) ** parameters["switch_exponent"]
    share = 1.0 / (1.0 + (shapes["payload_bytes"] / switch) ** SWITCH_SHARPNESS)
    return np.asarray(small**share * bulk ** (1.0 - share))


def waiting_terms(shapes: Shapes, seconds: Array, floor_s: float) -> Terms:
    """Return the terms [rows] of collectives that take `seconds` [rows], of which a launch takes up to `floor_s`.

    Their bytes are what a rank reads of its own memory and writes to it, each once; a sender is also a receiver.
    """
    launch_s = np.minimum(floor_s, seconds)
    empty = nothing(len(seconds))
    found = replace(empty, launch_s=launch_s, sync_s=seconds - launch_s, bytes=_own_bytes(shapes))
    return found.where(shapes["payload_bytes"] > 0, empty)


def hop_rate(shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the rate of the slowest hop [rows], bytes per second in one direction."""
    host = device.host_link_bytes_per_s
    network = parameters["network_bytes_per_s"] * shapes["ranks_per_node"] ** parameters["network_exponent"]
    hop = shapes["slowest_hop"]
    inside = (device.link.bytes_per_s, parameters["host_rate_ratio"] * host, parameters["socket_rate_ratio"] * host)
    return np.select([hop == LINK, hop == HOST, hop == SOCKET], inside, network)


def collective_bound_s(shapes: Shapes, device: HardwareSpec) -> Array:
    """Return the least time [rows] that the links allow: a rank needs every byte it does not have, or the reduced one."""
    operation, ranks = shapes["operation"], shapes["ranks"]
    whole = (operation == ALL_REDUCE) | (operation == SEND_RECEIVE)
    side = np.where(shapes["slowest_hop"] == LINK, 1.0, np.minimum(shapes["ranks_per_node"], ranks / 2.0))
    part = np.where(whole, 1.0, (ranks - side) / ranks)
    return least_transfer_s(part * shapes["payload_bytes"], shapes, device)


def collective_features(shapes: Shapes) -> Array:
    """Return logarithms of payload and ranks, and the hop with the ranks per node [rows, 3]."""
    hop = 2.0 * shapes["slowest_hop"] + 0.5 * shapes["ranks_per_node"]
    return np.stack([np.log2(np.maximum(shapes["payload_bytes"], 1.0)), 2.0 * np.log2(shapes["ranks"]), hop], axis=1)


def collective_shapes(operation: Array, payload_bytes: Array, ranks: Array, ranks_per_node: Array, slowest_hop: Array) -> Shapes:
    """Return the shapes of collectives over `ranks` of them, at most `ranks_per_node` in a node [rows]."""
    columns = (operation, payload_bytes, ranks, np.minimum(ranks_per_node, ranks), slowest_hop)
    names = ("operation", "payload_bytes", "ranks", "ranks_per_node", "slowest_hop")
    return {name: np.asarray(column, dtype=np.float64) for name, column in zip(names, columns, strict=True)}


def after_barrier_s(arrivals_s: Array, duration_s: Array) -> Array:
    """Return when collectives end [rows] whose ranks arrive at `arrivals_s` [rows, ranks]: all wait for the last one."""
    return np.asarray(arrivals_s.max(axis=1) + duration_s)


def _hops(shapes: Shapes) -> Array:
    operation, ranks, local = shapes["operation"], shapes["ranks"], shapes["ranks_per_node"]
    ring = ranks - 1.0
    tree = np.ceil(np.log2(np.maximum(ranks / local, 1.0))) + local - 1.0
    reduce = 2.0 * np.where(ranks > local, np.minimum(ring, tree), ring)
    return np.select([operation == ALL_REDUCE, operation >= ALL_TO_ALL], [reduce, np.minimum(ring, 1.0)], ring)


def _own_bytes(shapes: Shapes) -> Array:
    operation, share = shapes["operation"], 1.0 / shapes["ranks"]
    gathers = (operation == ALL_GATHER) | (operation == REDUCE_SCATTER)
    return np.asarray(np.where(gathers, 1.0 + share, 2.0) * shapes["payload_bytes"])


def _slowest_bytes(shapes: Shapes) -> Array:
    operation, ranks = shapes["operation"], shapes["ranks"]
    part = (ranks - 1.0) / ranks
    ratio = np.select([operation == ALL_REDUCE, operation == SEND_RECEIVE], [2.0 * part, np.minimum(ranks - 1.0, 1.0)], part)
    return np.asarray(ratio * shapes["payload_bytes"])
