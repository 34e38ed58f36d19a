"""Timings of collectives: units, paths and rules at the door, bad files, and the error that fits reach on shared data."""

import io
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from replay.calibration.kinds.collectives import COLLECTIVES_KIND, NETWORK_KIND, library_family
from replay.errors import SpecError
from replay.tiling.families.collectives import ALL_REDUCE, ALL_TO_ALL, RING_COLLECTIVE, SEND_RECEIVE
from replay.tiling.families.node_paths import HOST, LINK, NETWORK, SOCKET
from replay.tiling.families.peer_all_reduce import FASTEST, THRESHOLDS, PeerAllReduceFamily
from tests.calibration.held_out_errors import held_out_errors

COLLECTIVES = "gpu,stack,op_name,dtype,num_gpus,message_size,ms"
NETWORK_COLUMNS = "node,op,num_workers,size,devices_per_node,min_ms,median_ms,max_ms,std_ms,ranks"
USELESS = "time is not a number above zero and below an hour"


def table(head, *rows):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode()))


def column(part, name):
    return part.shapes[name].tolist()


def test_each_kind_recognises_its_own_columns_and_no_others():
    assert COLLECTIVES_KIND.recognises(frozenset(COLLECTIVES.split(",")))
    assert NETWORK_KIND.recognises(frozenset(NETWORK_COLUMNS.split(",")))
    assert not COLLECTIVES_KIND.recognises(frozenset(NETWORK_COLUMNS.split(",")))
    assert not NETWORK_KIND.recognises(frozenset(COLLECTIVES.split(",")))


def test_sizes_are_elements_and_times_milliseconds():
    rows = ["h100,nccl_2.29.2,alltoall,half,8,1024,0.01", "h100,nccl_2.29.2,alltoall,int8,8,1024,0.02"]
    (found,) = COLLECTIVES_KIND.read(table(COLLECTIVES, *rows), "x.csv")
    assert (found.hardware, found.stack, found.variant) == ("h100-sxm", "nccl_2.29.2", "all_to_all")
    assert column(found, "payload_bytes") == [2048, 1024]
    assert found.seconds.tolist() == pytest.approx([1e-5, 2e-5])
    assert column(found, "operation") == [ALL_TO_ALL, ALL_TO_ALL]
    assert [key.tolist() for key in found.group_key] == [[8, 8], [2048, 1024]]


def test_accelerators_without_a_link_sit_in_a_two_socket_server():
    rows = [f"{gpu},nccl_1,all_gather,half,{ranks},1024,0.02" for gpu in ("a100", "l40s") for ranks in (2, 4, 8)]
    found = COLLECTIVES_KIND.read(table(COLLECTIVES, *rows), "x.csv")
    assert [(part.hardware, column(part, "slowest_hop")) for part in found] == [
        ("a100-sxm-80gb", [LINK, LINK, LINK]),
        ("l40s", [LINK, HOST, SOCKET]),
    ]


def test_a_stack_decides_which_kernels_run():
    assert library_family("SGLang_CustomAllReduce_graph", "all_reduce") == PeerAllReduceFamily(rule=THRESHOLDS, eager=False)
    assert library_family("SGLang_CustomAllReduce_eager", "all_reduce") == PeerAllReduceFamily(rule=THRESHOLDS, eager=True)
    assert library_family("TRTLLM", "all_reduce") == PeerAllReduceFamily(rule=FASTEST, eager=False)
    assert library_family("nccl_2.27.3", "all_reduce") is RING_COLLECTIVE


def test_kernels_between_peers_carry_their_rule_in_the_variant():
    stacks = ("SGLang_CustomAllReduce_eager", "SGLang_CustomAllReduce_graph", "TRTLLM", "nccl_2.27.3")
    found = COLLECTIVES_KIND.read(table(COLLECTIVES, *(f"h100,{stack},all_reduce,half,2,1024,0.02" for stack in stacks)), "x.csv")
    assert [(part.stack, part.variant, part.family) for part in found] == [
        (stacks[0], "all_reduce-thresholds-eager", PeerAllReduceFamily(rule=THRESHOLDS, eager=True)),
        (stacks[1], "all_reduce-thresholds", PeerAllReduceFamily(rule=THRESHOLDS)),
        (stacks[2], "all_reduce-fastest", PeerAllReduceFamily(rule=FASTEST)),
        (stacks[3], "all_reduce", RING_COLLECTIVE),
    ]


def test_network_rows_are_bytes_on_nodes_of_a_named_layout():
    rows = [
        "a100_dgx,all_reduce,16,4096,8,0.05,0.06,0.07,0.001,1",
        "a100_dgx,all_reduce,8,4096,8,0.05,0.03,0.07,0.001,1",
        "h100_pairwise_nvlink,send_recv,2,4096,1,0.05,0.02,0.07,0.001,1",
        "h100_pairwise_nvlink,all_reduce,4,4096,4,0.05,0.02,0.07,0.001,1",
    ]
    found = NETWORK_KIND.read(table(NETWORK_COLUMNS, *rows), "network.csv")
    assert [(part.hardware, part.stack, part.variant) for part in found] == [
        ("a100-sxm-80gb", "vidur", "all_reduce-dgx"),
        ("h100-sxm", "vidur", "all_reduce-pairwise_nvlink"),
        ("h100-sxm", "vidur", "send_receive-pairwise_nvlink"),
    ]
    assert column(found[0], "slowest_hop") == [NETWORK, LINK]
    assert column(found[0], "ranks_per_node") == [8, 8]
    assert column(found[1], "slowest_hop") == [HOST]
    assert (column(found[2], "slowest_hop"), column(found[2], "operation")) == ([NETWORK], [SEND_RECEIVE])
    assert found[0].seconds.tolist() == pytest.approx([6e-5, 3e-5])
    assert column(found[0], "payload_bytes") == [4096, 4096]
    assert column(found[1], "operation") == [ALL_REDUCE]


def test_unusable_times_are_counted_where_they_belong_and_empty_cells_are_no_rows():
    rows = [f"h100,nccl_1,all_reduce,half,2,{size},{ms}" for size, ms in ((256, 0.01), (512, 0), (1024, -1), (2048, "inf"), (4096, ""))]
    (found,) = COLLECTIVES_KIND.read(table(COLLECTIVES, *rows), "x.csv")
    assert (len(found.seconds), found.skipped) == (1, ((USELESS, 3),))


def test_rows_that_beat_the_links_were_measured_on_another_device():
    # 1 GB from peer to peer in 3 ms is 340 GB/s: more than an A100's links carry.
    rows = ["a100_pairwise_nvlink,send_recv,2,1000000000,2,3,2.9,3,0.1,1", "a100_dgx,all_reduce,2,4096,2,1,0.02,1,0.1,1"]
    (found,) = NETWORK_KIND.read(table(NETWORK_COLUMNS, *rows), "network.csv")
    reason = "send_receive-pairwise_nvlink faster than the links of a100-sxm-80gb: measured on another device"
    assert (found.variant, found.skipped) == ("all_reduce-dgx", ((reason, 1),))
    with pytest.raises(SpecError, match="faster than the links"):
        NETWORK_KIND.read(table(NETWORK_COLUMNS, rows[0]), "network.csv")


BAD = {
    "unknown column": (COLLECTIVES_KIND, COLLECTIVES + ",us", "h100,nccl_1,all_reduce,half,2,256,0.01,10", "unknown column 'us'"),
    "missing column": (COLLECTIVES_KIND, COLLECTIVES.replace("dtype,", ""), "h100,nccl_1,all_reduce,2,256,0.01", "no column dtype"),
    "unknown device": (COLLECTIVES_KIND, COLLECTIVES, "h1000,nccl_1,all_reduce,half,2,256,0.01", "did you mean 'h100'"),
    "unknown operation": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduse,half,2,256,0.01", "did you mean 'all_reduce'"),
    "unknown format": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduce,int3,2,256,0.01", "dtype"),
    "one rank": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduce,half,1,256,0.01", "one rank"),
    "no size": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduce,half,2,0,0.01", "message_size, row 2"),
    "no time above zero": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduce,half,2,256,-0.01", "no row can be used"),
    "microseconds": (COLLECTIVES_KIND, COLLECTIVES, "h100,nccl_1,all_reduce,half,2,256,10", "milliseconds"),
    "peers that gather": (COLLECTIVES_KIND, COLLECTIVES, "h100,TRTLLM,all_gather,half,2,256,0.01", "all_reduce, the only operation"),
    "unknown layout": (NETWORK_KIND, NETWORK_COLUMNS, "a100_ring,all_reduce,2,4096,2,1,1,1,1,1", "'a100_ring' of no known layout"),
    "unknown node device": (NETWORK_KIND, NETWORK_COLUMNS, "a1000_dgx,all_reduce,2,4096,2,1,1,1,1,1", "unknown device 'a1000'"),
    "text as time": (NETWORK_KIND, NETWORK_COLUMNS, "a100_dgx,all_reduce,2,4096,2,1,soon,1,1,1", "'soon'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    kind, head, row, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        kind.read(table(head, row), "made.csv")
    message = str(caught.value)
    assert message.startswith("made.csv")
    assert named in message
    assert "; want " in message
    assert "\n" not in message


@pytest.mark.parametrize(("kind", "head"), [(COLLECTIVES_KIND, COLLECTIVES), (NETWORK_KIND, NETWORK_COLUMNS)])
def test_a_file_without_rows_is_refused(kind, head):
    with pytest.raises(SpecError, match="no row"):
        kind.read(table(head, head).slice(0, 0), "made.csv")


@pytest.mark.slow
def test_fits_of_collectives_reach_their_error_on_groups_left_out(shared: Path):
    path = shared / "data" / "measurements" / "collectives_aic.csv"
    errors = held_out_errors(COLLECTIVES_KIND, path, lambda part: (part.hardware, part.family.name))
    reached = {name: float(values.mean()) for name, values in errors.items()}
    assert len(reached) == 8
    for name, error in reached.items():
        assert error < (0.14 if name[0] == "l40s" else 0.11), (name, error)


@pytest.mark.slow
def test_fits_of_the_network_reach_their_error_on_groups_left_out(shared: Path):
    path = shared / "data" / "measurements" / "vidur_network.csv"
    errors = held_out_errors(NETWORK_KIND, path, lambda part: (part.hardware, part.variant))
    assert len(errors) == 7
    assert all(values.mean() < 0.10 for values in errors.values())
    assert np.concatenate(list(errors.values())).mean() < 0.06
