"""Collectives: cases worked on paper for a round device (link 100 GB/s, PCIe 20 GB/s), path rules, and laws over drawn ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.families.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    OPERATIONS,
    REDUCE_SCATTER,
    RING_COLLECTIVE,
    RING_PARAMETERS,
    SEND_RECEIVE,
    after_barrier_s,
    collective_shapes,
)
from replay.tiling.families.node_paths import (
    BRIDGED_PAIRS,
    HOST,
    LINK,
    NETWORK,
    PCIE_SOCKETS,
    SOCKET,
    SWITCHED,
    slowest_hop,
)
from replay.tiling.families.peer_all_reduce import FASTEST, ONE_SHOT, THRESHOLDS, PeerAllReduceFamily, takes_one_shot, takes_peers
from tests.models import round_hardware

DEVICE = round_hardware()
RING = {
    "floor_s": 10e-6, "hop_s": 1e-6, "flagged_rate_ratio": 0.5, "packed_start_s": 5e-6, "packed_rate_ratio": 0.9, "bulk_start_s": 20e-6,
    "bulk_hop_s": 2e-6, "bulk_rate_ratio": 1.0, "switch_bytes": 1e12, "switch_exponent": 0.0, "pipeline_exponent": 1.0,
    "host_rate_ratio": 0.5, "socket_rate_ratio": 0.25, "network_bytes_per_s": 5e9, "network_exponent": 1.0,
}  # fmt: skip
"""Latency and transfer add up; small payloads only."""
PEER = {
    **RING, "peer_floor_s": 4e-6, "flag_s": 0.5e-6, "one_shot_rate_ratio": 0.5, "two_shot_start_s": 6e-6, "two_shot_rate_ratio": 0.5,
    "host_s": 40e-6,
}  # fmt: skip
KIB = 1024


def shapes(operation=ALL_REDUCE, payload=1.0, ranks=4.0, local=8.0, hop=LINK):
    return collective_shapes(*(np.array([float(value)]) for value in (operation, payload, ranks, local, hop)))


def ring_s(parameters=RING, device=DEVICE, **changes):
    found = RING_COLLECTIVE.seconds(shapes(**changes), device, parameters)
    assert found.shape == (1,)
    return float(found[0])


def peer_s(payload, ranks=4.0, hop=LINK, rule=THRESHOLDS, eager=False, parameters=PEER):
    return float(PeerAllReduceFamily(rule=rule, eager=eager).seconds(shapes(payload=payload, ranks=ranks, hop=hop), DEVICE, parameters)[0])


@pytest.mark.parametrize(
    ("operation", "hops", "moved"), [(ALL_REDUCE, 6, 1.5), (ALL_GATHER, 3, 0.75), (REDUCE_SCATTER, 3, 0.75), (ALL_TO_ALL, 1, 0.75)]
)
def test_a_ring_of_four_takes_its_hops_and_its_share_of_the_payload(operation, hops, moved):
    # One byte is all latency. A million bytes: the packed protocol starts 5 us later and moves 90 instead of 50 bytes a nanosecond.
    assert ring_s(operation=operation) == pytest.approx((10 + hops) * 1e-6, rel=1e-4)
    flagged, packed = 10 + hops + moved * 20, 15 + hops + moved * 1e6 / 90e9 * 1e6
    assert ring_s(operation=operation, payload=1e6) == pytest.approx(min(flagged, packed) * 1e-6)


def test_sending_to_a_peer_is_one_hop_of_the_whole_payload():
    assert ring_s(operation=SEND_RECEIVE, payload=9e6, ranks=2.0) == pytest.approx((10 + 1 + 5 + 100) * 1e-6)


def test_beyond_the_switch_whole_chunks_start_later_and_run_at_the_full_rate():
    chunks = {**RING, "switch_bytes": 1e3}
    assert ring_s(chunks, payload=1e8) == pytest.approx((10 + 6 + 20 + 6 * 2 + 1500) * 1e-6)
    scaled = {**RING, "switch_bytes": 1e6, "switch_exponent": 1.0}  # the switch of 8 ranks is at 4 MB
    small, large = ring_s(scaled, payload=1e6, ranks=8.0), ring_s(scaled, payload=16e6, ranks=8.0)
    assert small == pytest.approx(ring_s(payload=1e6, ranks=8.0), rel=1e-4)
    assert large == pytest.approx(ring_s(chunks, payload=16e6, ranks=8.0), rel=1e-4)


def test_filling_a_pipeline_of_chunks_costs_more_than_the_sum():
    filled = ring_s({**RING, "pipeline_exponent": 0.5, "packed_start_s": 1.0}, payload=1e6, ranks=2.0)
    latency, transfer = 12e-6, 20e-6
    assert filled == pytest.approx(latency + transfer + 2 * np.sqrt(latency * transfer))


@pytest.mark.parametrize(("hop", "rate"), [(LINK, 100e9), (HOST, 10e9), (SOCKET, 5e9)])
def test_the_slowest_hop_sets_the_rate_and_adds_no_latency(hop, rate):
    assert ring_s(hop=hop) == pytest.approx(16e-6, rel=1e-4)
    slow = {**RING, "packed_start_s": 1.0}
    assert ring_s(slow, hop=hop, payload=1e6) == pytest.approx(16e-6 + 1.5e6 / (0.5 * rate))


def test_between_nodes_the_network_grows_with_ranks_per_node_and_a_tree_saves_hops():
    # 16 ranks in 2 nodes: a tree of 1 + 7 hops up and down instead of a ring's 30; 8 ranks a node use 8 adapters of 5 GB/s.
    assert ring_s(ranks=16.0, local=8.0, hop=NETWORK) == pytest.approx((10 + 16) * 1e-6, rel=1e-4)
    slow = {**RING, "packed_start_s": 1.0}
    assert ring_s(slow, ranks=16.0, local=8.0, hop=NETWORK, payload=8e6) == pytest.approx(26e-6 + 15e6 / (0.5 * 40e9))
    assert ring_s(slow, ranks=2.0, local=1.0, hop=NETWORK, payload=8e6) == pytest.approx(12e-6 + 8e6 / (0.5 * 5e9))


def test_ring_of_one_rank_moves_nothing():
    assert ring_s(ranks=1.0, local=1.0, payload=1e6) == pytest.approx(10e-6)


def test_topologies_name_the_slowest_hop():
    ranks, node = np.array([2.0, 4.0, 8.0, 16.0]), np.full(4, 8.0)
    assert slowest_hop(SWITCHED, ranks, node).tolist() == [LINK, LINK, LINK, NETWORK]
    assert slowest_hop(BRIDGED_PAIRS, ranks, node).tolist() == [LINK, HOST, HOST, NETWORK]
    assert slowest_hop(PCIE_SOCKETS, ranks, node).tolist() == [LINK, HOST, SOCKET, NETWORK]
    assert slowest_hop(SWITCHED, np.array([2.0]), np.array([1.0])).tolist() == [NETWORK]


def test_the_bound_is_what_must_come_in_over_the_links_that_carry_it():
    bound = lambda **changes: float(RING_COLLECTIVE.bound_s(shapes(payload=1e9, **changes), DEVICE)[0])  # noqa: E731
    assert bound() == pytest.approx(1e9 / 100e9)
    assert bound(operation=ALL_GATHER) == pytest.approx(0.75e9 / 100e9)
    assert bound(hop=HOST) == pytest.approx(1e9 / 40e9)  # a pair takes it in over two host links
    assert bound(hop=SOCKET, ranks=8.0) == pytest.approx(1e9 / 80e9)
    assert bound(hop=NETWORK, ranks=16.0, local=8.0) == pytest.approx(1e9 / 160e9)
    assert bound(operation=ALL_TO_ALL, hop=NETWORK, ranks=16.0, local=8.0) == pytest.approx(0.5e9 / 160e9)


def test_one_shot_reads_every_peer_and_two_shots_twice_a_share():
    small = 256 * KIB
    assert peer_s(small) == pytest.approx(4e-6 + 3 * 0.5e-6 + 3 * small / 50e9)
    large = 2 * KIB**2
    assert peer_s(large) == pytest.approx(4e-6 + 3 * 0.5e-6 + 6e-6 + 1.5 * large / 50e9)
    assert peer_s(large, ranks=2.0) == pytest.approx(4e-6 + 0.5e-6 + large / 50e9)  # two ranks always in one shot


def test_the_threshold_rule_is_that_of_the_public_kernels():
    sizes = np.array([512 * KIB - 1, 512 * KIB, 256 * KIB - 1, 256 * KIB, 8 * KIB**2, 8 * KIB**2 + 1, 8 * KIB**2, 256])
    ranks = np.array([4.0, 4.0, 8.0, 8.0, 2.0, 2.0, 16.0, 4.0])
    hops = np.array([LINK] * 7 + [HOST])
    columns = collective_shapes(np.zeros(8), sizes, ranks, ranks, hops)
    assert takes_one_shot(columns).tolist() == [True, False, True, False, True, False, False, False]
    assert takes_peers(columns).tolist() == [True, True, True, True, True, False, False, False]


def test_what_peers_cannot_do_falls_back_to_the_ring():
    parameters = {**PEER, "switch_bytes": 1e3}
    large = 16 * KIB**2
    assert peer_s(large, parameters=parameters) == pytest.approx((10 + 6 + 20) * 1e-6 + 1.5 * large / 100e9, rel=1e-4)
    assert peer_s(1.0, hop=HOST) == pytest.approx(16e-6, rel=1e-4)
    assert peer_s(1.0, hop=HOST, rule=FASTEST) == pytest.approx(16e-6, rel=1e-4)


def test_the_fastest_rule_takes_the_least_of_three():
    parameters = {**PEER, "switch_bytes": 1e3, "bulk_start_s": 0.0}
    small, middle, large = 1.0, 400 * KIB, 64 * KIB**2
    assert peer_s(small, rule=FASTEST, parameters=parameters) == pytest.approx(5.5e-6, rel=1e-3)
    two = 11.5e-6 + 1.5 * middle / 50e9
    assert peer_s(middle, rule=FASTEST, parameters=parameters) == pytest.approx(min(two, 16e-6 + 1.5 * middle / 100e9), rel=1e-3)
    assert peer_s(large, rule=FASTEST, parameters=parameters) == pytest.approx(16e-6 + 1.5 * large / 100e9, rel=1e-3)


def test_an_eager_call_waits_for_the_host_and_copies_the_payload():
    assert peer_s(1.0, eager=True) == pytest.approx(40e-6)
    large = 8 * KIB**2
    assert peer_s(large, eager=True) == pytest.approx(peer_s(large) + 2 * large / 1e12)


def test_all_ranks_wait_for_the_last_one():
    arrivals = np.array([[0.0, 3.0, 1.0], [2.0, 2.0, 2.0]])
    assert after_barrier_s(arrivals, np.array([0.5, 0.25])).tolist() == [3.5, 2.25]


SHAPES = st.fixed_dictionaries({
    "operation": st.sampled_from(sorted(OPERATIONS.values())), "payload": st.integers(1, 2**31), "ranks": st.sampled_from([2, 3, 4, 8, 16]),
    "local": st.sampled_from([1, 2, 4, 8]), "hop": st.sampled_from([LINK, HOST, SOCKET, NETWORK]),
})  # fmt: skip
RULES = [(rule, eager) for rule in (THRESHOLDS, ONE_SHOT, FASTEST) for eager in (False, True)]
FAMILIES = {"ring": RING_COLLECTIVE, **{f"{rule} {eager}": PeerAllReduceFamily(rule=rule, eager=eager) for rule, eager in RULES}}
DEFINITIONS = {part.name: part for family in FAMILIES.values() for part in family.parameters}
PARAMETERS = st.fixed_dictionaries({name: st.floats(part.lower, part.upper) for name, part in DEFINITIONS.items()})


@settings(max_examples=150, deadline=None)
@given(fields=SHAPES, parameters=PARAMETERS, more=st.floats(1.01, 4.0), name=st.sampled_from(sorted(FAMILIES)))
def test_no_faster_device_is_slower(fields, parameters, more, name):
    if name != "ring":
        fields = {**fields, "operation": ALL_REDUCE}
    faster = {
        "link": replace(DEVICE, link=replace(DEVICE.link, bytes_per_s=DEVICE.link.bytes_per_s * more)),
        "host link": replace(DEVICE, host_link_bytes_per_s=DEVICE.host_link_bytes_per_s * more),
        "memory": replace(DEVICE, memory_bytes_per_s=DEVICE.memory_bytes_per_s * more),
        "units": replace(DEVICE, units_count=DEVICE.units_count * 2),
        "clock": replace(DEVICE, clock_hz=DEVICE.clock_hz * more),
    }
    before = FAMILIES[name].seconds(shapes(**fields), DEVICE, parameters)[0]
    for change, device in faster.items():
        assert FAMILIES[name].seconds(shapes(**fields), device, parameters)[0] <= before * (1 + 1e-9), change


@settings(max_examples=150, deadline=None)
@given(fields=SHAPES, parameters=PARAMETERS, name=st.sampled_from(sorted(FAMILIES)))
def test_no_parameters_beat_the_bound_and_features_are_finite(fields, parameters, name):
    family = FAMILIES[name]
    shape = shapes(**fields)
    assert family.seconds(shape, DEVICE, parameters)[0] >= family.bound_s(shape, DEVICE)[0] > 0
    features = family.features(shape)
    assert features.shape == (1, len(family.residual_features))
    assert np.isfinite(features).all()


def test_start_values_lie_inside_their_ranges():
    assert all(part.lower <= part.start <= part.upper for part in (*RING_PARAMETERS, *DEFINITIONS.values()))
