"""All-reduce by kernels that read their peers' memory (vLLM and SGLang's custom all-reduce, TensorRT-LLM's), and their fall-back.

For n ranks and a payload of b bytes::

    one shot   = floor + (n - 1) flag + (n - 1) b / (share x link)                     every rank reads all peers and reduces alone
    two shots  = floor + (n - 1) flag + its start + 2 (n - 1) / n b / (share x link)   reduce-scatter, barrier, all-gather
    ring       = that of `collectives`, with one protocol below its switch and one above
    eager      = max(host, device + a copy of b through memory)                        the payload goes to a registered buffer first

Which of them runs is the library's rule:

- `THRESHOLDS`, as in vLLM's custom_all_reduce (SGLang's is a copy): two ranks, or payloads below 512 KiB of up to four ranks and below
  256 KiB of up to eight, go in one shot; others in two, up to 8 MiB; beyond, and where more than two ranks have no link to each
  other, the ring;
- `ONE_SHOT`: one shot wherever peers can be read, whatever the payload - what a serving stack's own threshold decides on;
- `FASTEST`, as TensorRT-LLM's automatic strategy from tables of its own: whichever takes least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.collectives import RING_PARAMETERS, collective_bound_s, collective_features, ring_s, waiting_terms
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.node_paths import LINK
from replay.tiling.terms import Array, Terms

THRESHOLDS, ONE_SHOT, FASTEST = "thresholds", "one_shot", "fastest"
ONE_SHOT_BYTES = {4: 512 * 1024, 8: 256 * 1024}
"""Most ranks -> payloads below this go in one shot."""
MOST_PEER_BYTES = 8 * 1024**2

_OWN = (
    ParameterDefinition(name="peer_floor_s", meaning="launch, and the barriers at start and end", start=5e-6, lower=1e-6, upper=3e-5),
    ParameterDefinition(name="flag_s", meaning="what each peer adds to a barrier", start=1e-7, lower=1e-9, upper=3e-6),
    ParameterDefinition(name="one_shot_rate_ratio", meaning="share of the link in one shot", start=0.5, lower=0.05, upper=1.0),
    ParameterDefinition(name="two_shot_start_s", meaning="what the second shot adds", start=5e-6, lower=1e-7, upper=5e-5),
    ParameterDefinition(name="two_shot_rate_ratio", meaning="share of the link in two shots", start=0.5, lower=0.05, upper=1.0),
    ParameterDefinition(name="host_s", meaning="host time of an eager call", start=2e-5, lower=1e-6, upper=1e-4),
)
_RING = tuple(
    definition
    for definition in RING_PARAMETERS
    if definition.name
    in (
        "floor_s",
        "hop_s",
        "flagged_rate_ratio",
        "bulk_start_s",
        "bulk_rate_ratio",
        "switch_bytes",
        "pipeline_exponent",
        "host_rate_ratio",
        "socket_rate_ratio",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAllReduceFamily:
    """All-reduces of one library in one node; shapes as of `collectives`, all of them all-reduces over a node's ranks."""

    rule: str = THRESHOLDS
    eager: bool = False
    """Launched one by one by the host; otherwise from a captured graph."""
    name: str = "peer_all_reduce"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Those of the kernels, and of the ring they fall back to."""
        return (*_OWN, *_RING)

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_payload", "log_ranks", "hop")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of one call [rows]: the launch floor, an eager call's copy in `memory_s`, and all else in `sync_s`.

        What an eager call waits for its host beyond the device's work counts as launch. No payload costs nothing.
        """
        found = self._device_terms(shapes, device, parameters)
        if not self.eager:
            return found
        copied = 2.0 * shapes["payload_bytes"]
        found = replace(found, memory_s=copied / device.memory_bytes_per_s, bytes=found.bytes + copied)
        waited_s = np.maximum(parameters["host_s"] - found.time_s(inf), 0.0)
        return replace(found, launch_s=found.launch_s + np.where(shapes["payload_bytes"] > 0, waited_s, 0.0))

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return infinity: nothing overlaps with a collective."""
        return inf

    def _device_terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms [rows] of what the rule runs, from a captured graph."""
        ranks, payload, link = shapes["ranks"], shapes["payload_bytes"], device.link.bytes_per_s
        barrier = parameters["peer_floor_s"] + (ranks - 1.0) * parameters["flag_s"]
        one = barrier + (ranks - 1.0) * payload / (parameters["one_shot_rate_ratio"] * link)
        two = barrier + parameters["two_shot_start_s"] + 2.0 * (ranks - 1.0) / ranks * payload / (parameters["two_shot_rate_ratio"] * link)
        ring = ring_s(shapes, device, _ring_parameters(parameters))
        if self.rule == ONE_SHOT:
            peers, shots = reaches_peers(shapes), one
        elif self.rule == FASTEST:
            peers = (shapes["slowest_hop"] == LINK) & (np.minimum(one, two) < ring)
            shots = np.minimum(one, two)
        else:
            peers, shots = takes_peers(shapes), np.where(takes_one_shot(shapes), one, two)
        read = waiting_terms(shapes, shots, parameters["peer_floor_s"])
        return read.where(peers, waiting_terms(shapes, ring, parameters["floor_s"]))

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: the payload over the slowest hop."""
        return collective_bound_s(shapes, device)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of payload and ranks, and the hop with the ranks per node [rows, 3]."""
        return collective_features(shapes)


def reaches_peers(shapes: Shapes) -> npt.NDArray[np.bool_]:
    """Return where every rank has a link to every other, and the kernels are made for as many [rows]."""
    return np.asarray((shapes["slowest_hop"] == LINK) & (shapes["ranks"] <= max(ONE_SHOT_BYTES)))


def takes_peers(shapes: Shapes) -> npt.NDArray[np.bool_]:
    """Return where the threshold rule reads peers' memory [rows]."""
    return np.asarray(reaches_peers(shapes) & (shapes["payload_bytes"] <= MOST_PEER_BYTES))


def takes_one_shot(shapes: Shapes) -> npt.NDArray[np.bool_]:
    """Return where the threshold rule does it in one shot [rows]."""
    ranks, payload = shapes["ranks"], shapes["payload_bytes"]
    small = [(ranks <= most) & (payload < limit) for most, limit in ONE_SHOT_BYTES.items()]
    return np.asarray(takes_peers(shapes) & ((ranks <= 2) | np.logical_or.reduce(small)))


def _ring_parameters(parameters: Parameters) -> Parameters:
    """Return the parameters of a ring with one protocol below its switch, inside a node."""
    unused = {definition.name: definition.start for definition in RING_PARAMETERS}
    packed = {"packed_start_s": 0.0, "packed_rate_ratio": parameters["flagged_rate_ratio"]}
    return {**unused, **parameters, **packed, "bulk_hop_s": 0.0, "switch_exponent": 0.0}
