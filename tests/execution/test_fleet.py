"""Several replicas, clients that wait, and sessions: the compiled loop and its plain twin say the same, and laws hold."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.execution import fleet
from replay.execution.engine import replay
from replay.execution.fleet import replay_fleet
from replay.execution.twin import replay_twin
from replay.ingress.trace import build_trace
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES
from tests.execution.replay_cases import replay_cases
from tests.execution.test_loop_equals_twin import crowded_case, distribution, quiet_case


def sent_by(trace, load, sessions=None):
    requests = trace.requests
    if sessions is not None:
        place = requests.schema.get_field_index("session_id")
        requests = requests.set_column(place, "session_id", [sessions])
    return build_trace(name=trace.name, requests=requests, provenance=replace(trace.provenance, load=load))


@st.composite
def fleet_cases(draw):
    trace, table = draw(replay_cases())
    count = trace.requests.num_rows
    load = draw(
        st.none()
        | st.builds(
            Load,
            concurrency=st.none() | st.integers(1, 4),
            sessions=st.booleans(),
            think_s=st.sampled_from([0.0, 2.0**-6, 1.0]),
        )
    )
    sessions = draw(st.lists(st.none() | st.sampled_from("abc"), min_size=count, max_size=count))
    limits = replace(table.limits, replicas_count=draw(st.integers(1, 3)), routing=draw(st.sampled_from(ROUTING_NAMES)))
    if load is not None and load.concurrency and draw(st.booleans()):
        place = trace.requests.schema.get_field_index("arrival_s")
        trace = replace(trace, requests=trace.requests.set_column(place, "arrival_s", [[None] * count]).cast(trace.requests.schema))
    return sent_by(trace, load, sessions), replace(table, limits=limits)


@settings(max_examples=300, deadline=None)
@given(fleet_cases(), st.sampled_from([1, 2, 4096]))
def test_loop_and_twin_give_equal_tables_bit_by_bit(case, held):
    trace, table = case
    was, fleet.SEQUENCES_HELD = fleet.SEQUENCES_HELD, held
    try:
        compiled = replay_fleet(trace, table)
    finally:
        fleet.SEQUENCES_HELD = was
    plain = replay_twin(trace, table)
    assert compiled.requests.to_pylist() == plain.requests.to_pylist()
    assert compiled.steps.to_pylist() == plain.steps.to_pylist()
    assert distribution(compiled) == distribution(plain)


@pytest.mark.parametrize("routing", ROUTING_NAMES)
@pytest.mark.parametrize("make", [crowded_case, quiet_case])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fleet_of_one_is_the_replay_of_one_replica(make, routing, asynchronous):
    trace, table = make(async_scheduling=asynchronous)
    one = replay_fleet(trace, replace(table, limits=replace(table.limits, routing=routing)))
    assert one.requests == replay(trace, table).requests
    assert one.steps == replay(trace, table).steps
    assert distribution(one) == distribution(replay(trace, table))
