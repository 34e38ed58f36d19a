"""Collectives of a serving step: the threshold decides between one shot and the library, the node's wiring what is possible."""

import numpy as np
import pytest

from replay.calibration.kinds.collectives import COLLECTIVES_KIND, NETWORK_KIND
from replay.catalog.hardware import read_hardware
from replay.lowering.op_graph import CollectiveShape
from replay.tiling.families.collectives import ALL_GATHER, ALL_REDUCE, RING_COLLECTIVE
from replay.tiling.families.node_paths import HOST, LINK, NETWORK, SOCKET
from replay.tiling.families.peer_all_reduce import ONE_SHOT, PeerAllReduceFamily
from replay.tiling.families.serving_collectives import serving_collective
from tests.calibration.test_collectives_kinds import COLLECTIVES, NETWORK_COLUMNS, table

H100, L40S = read_hardware("h100-sxm"), read_hardware("l40s")
ROWS = np.array([0, 1, 32, 33, 4096])
LIMIT = 32 * 4096 * 2
"""Payload of 32 rows of 4096 elements."""


def paths(ranks=4, kind="all_reduce", limit=LIMIT, device=H100, elements=4096):
    shapes, found = serving_collective(CollectiveShape(elements=elements, ranks=ranks, kind=kind), ROWS, limit, device)
    return shapes, {path.family.name: path for path in found}


def test_payloads_up_to_the_threshold_go_in_one_shot_and_larger_ones_by_the_library():
    shapes, found = paths()
    assert shapes["payload_bytes"].tolist() == (ROWS * 4096 * 2).tolist()
    assert set(shapes["operation"]) == {ALL_REDUCE}
    assert found["peer_all_reduce"].family == PeerAllReduceFamily(rule=ONE_SHOT)
    assert found["peer_all_reduce"].rows.tolist() == [True, True, True, False, False]
    assert found["ring_collective"].rows.tolist() == [False, False, False, True, True]
    assert not paths(limit=0)[1]["peer_all_reduce"].rows[1:].any()
    assert paths(limit=2**40)[1]["peer_all_reduce"].rows.all()


@pytest.mark.parametrize(
    ("device", "ranks", "hop", "one_shot"),
    [(H100, 8, LINK, True), (H100, 16, NETWORK, False), (L40S, 2, LINK, True), (L40S, 4, HOST, False), (L40S, 8, SOCKET, False)],
)
def test_one_shot_needs_a_link_to_every_peer_of_up_to_eight(device, ranks, hop, one_shot):
    shapes, found = paths(ranks=ranks, device=device)
    assert set(shapes["slowest_hop"]) == {hop}
    assert set(shapes["ranks_per_node"]) == {min(ranks, 8)}
    assert found["peer_all_reduce"].rows[1] == one_shot
    assert (found["peer_all_reduce"].rows ^ found["ring_collective"].rows).all()


def test_a_gather_brings_the_parts_of_all_ranks_together_by_the_library():
    shapes, found = paths(kind="all_gather", ranks=8, elements=1000)
    assert set(shapes["operation"]) == {ALL_GATHER}
    assert shapes["payload_bytes"].tolist() == (ROWS * 8 * 1000 * 2).tolist()
    assert list(found) == [RING_COLLECTIVE.name]
    assert found["ring_collective"].rows.all()


def test_a_threshold_that_is_too_high_costs_every_peer_the_whole_payload():
    parameters = {part.name: part.start for part in PeerAllReduceFamily().parameters}
    shapes, found = paths(ranks=8, limit=2**40)
    peers, ring = (found[name].family for name in ("peer_all_reduce", "ring_collective"))
    ring_parameters = {part.name: part.start for part in ring.parameters}
    one_shot, library = peers.seconds(shapes, H100, parameters), ring.seconds(shapes, H100, ring_parameters)
    assert one_shot[0] == library[0] == 0.0
    assert one_shot[1] < library[1]
    assert one_shot[-1] > library[-1]
    assert one_shot[-1] == pytest.approx(5e-6 + 7 * 1e-7 + 7 * 4096 * 4096 * 2 / (0.5 * 450e9))


def test_variants_are_those_that_measurements_make_and_prefer_tables_that_have_the_hop():
    stacks = ("nccl_1", "SGLang_CustomAllReduce_graph", "TRTLLM")
    rows = [f"h100,{stack},all_reduce,half,8,1048576,0.2" for stack in stacks] + ["h100,nccl_1,all_gather,half,8,1048576,0.2"]
    made = {(part.family.name, part.variant) for part in COLLECTIVES_KIND.read(table(COLLECTIVES, *rows), "x.csv")}
    nodes = [f"h100_dgx,{op},8,1048576,8,1,1,1,0,1" for op in ("all_reduce", "all_gather")]
    made |= {(part.family.name, part.variant) for part in NETWORK_KIND.read(table(NETWORK_COLUMNS, *nodes), "x.csv")}
    named = {
        (path.family.name, name) for kind in ("all_reduce", "all_gather") for path in paths(kind=kind)[1].values() for name in path.variants
    }
    assert named == made
    assert paths()[1]["ring_collective"].variants == ("all_reduce", "all_reduce-dgx")
    assert paths(ranks=16)[1]["ring_collective"].variants == ("all_reduce-dgx", "all_reduce")
    assert paths(device=L40S)[1]["ring_collective"].variants == ("all_reduce",)
