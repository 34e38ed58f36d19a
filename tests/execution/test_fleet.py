"""Several replicas, clients that wait, and sessions: the compiled loop and its plain twin say the same, and laws hold."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import InputError
from replay.execution import fleet
from replay.execution.engine import replay
from replay.execution.fleet import replay_fleet
from replay.execution.twin import replay_twin
from replay.ingress.native import write_trace
from replay.ingress.reader import read_trace
from replay.ingress.sending import scaled_trace, with_load
from replay.ingress.trace import build_trace
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES
from tests.execution.replay_cases import columns, replay_cases
from tests.execution.test_loop_equals_twin import crowded_case, distribution, quiet_case
from tests.step_tables import constant_table, make_limits, make_pool, make_trace


def sent_by(trace, load, sessions=None):
    requests = trace.requests
    if sessions is not None:
        place = requests.schema.get_field_index("session_id")
        requests = requests.set_column(place, "session_id", [sessions])
    return build_trace(name=trace.name, requests=requests, provenance=replace(trace.provenance, load=load))


def with_limits(table, **changes):
    return replace(table, limits=replace(table.limits, **changes))


@st.composite
def fleet_cases(draw):
    trace, table = draw(replay_cases(compiles=True, powered=draw(st.booleans())))
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
    if load is not None and load.concurrency and draw(st.booleans()):
        place = trace.requests.schema.get_field_index("arrival_s")
        trace = replace(trace, requests=trace.requests.set_column(place, "arrival_s", pa.nulls(count, pa.float64())))
    return sent_by(trace, load, sessions), with_limits(
        table, replicas_count=draw(st.integers(1, 3)), routing=draw(st.sampled_from(ROUTING_NAMES))
    )


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
    """Invariant 11."""
    trace, table = make(async_scheduling=asynchronous)
    one = replay_fleet(trace, with_limits(table, routing=routing))
    assert one.requests == replay(trace, table).requests
    assert one.steps == replay(trace, table).steps
    assert distribution(one) == distribution(replay(trace, table))


@settings(max_examples=60, deadline=None)
@given(fleet_cases())
def test_each_replica_does_what_it_alone_would_do_with_its_requests(case):
    """Invariant 11 and Invariant 5."""
    trace, table = case
    both = replay(trace, table)
    for number in range(table.limits.replicas_count):
        own = both.requests.filter(pc.equal(both.requests["replica"], number))
        if not own.num_rows:
            continue
        own = own.take(pc.sort_indices(own["sent_s"]))
        rows = pc.index_in(own["request_id"], trace.requests["request_id"])
        place = trace.requests.schema.get_field_index("arrival_s")
        alone = trace.requests.take(rows).set_column(place, "arrival_s", own["sent_s"])
        single = replay(sent_by(replace(trace, requests=alone), None), with_limits(table, replicas_count=1))
        if pc.count_distinct(own["sent_s"]).as_py() == own.num_rows:  # equal ones may have been sent in another order
            assert single.requests["finish_s"] == own["finish_s"]
            steps = both.steps.filter(pc.equal(both.steps["replica"], number)).drop_columns(["replica"])
            assert single.steps.drop_columns(["replica"]) == steps
            assert (np.diff(steps["start_s"].to_numpy()) >= 0).all()
            if table.limits.inflight_steps == 1:
                assert (steps["start_s"].to_numpy()[1:] >= steps["end_s"].to_numpy()[:-1]).all()


def served(arrivals, table, load=None, sessions=None, outputs=None, **blocks):
    """Columns of the requests' table: one prompt token each, one output token unless said otherwise."""
    count = len(arrivals)
    trace = make_trace(arrivals, [1] * count, outputs or [1] * count, **blocks)
    return columns(replay(sent_by(trace, load, sessions), table).requests)


ONE_SEAT = constant_table(0.5, limits=make_limits(max_running=1))


def test_a_cap_in_front_of_a_schedule_counts_from_the_schedule():
    """S22: 8 requests at 0.1 s spacing, one at a time, 0.5 s each: they wait 0, 0.4, ... 2.8 s before they are sent."""
    arrivals = [0.1 * number for number in range(8)]
    got = served(arrivals, constant_table(0.5, limits=make_limits(max_running=8)), Load(concurrency=1))
    np.testing.assert_allclose(got["sent_s"] - got["arrival_s"], [0.4 * number for number in range(8)])
    np.testing.assert_allclose(got["finish_s"] - got["arrival_s"], [0.5 + 0.4 * number for number in range(8)])
    np.testing.assert_allclose(got["finish_s"] - got["sent_s"], 0.5)


def test_a_closed_loop_counts_from_the_sending():
    """Two clients that think for 1 s before a server of one seat and 0.5 s: they are sent 0 0, then 1 s after each answer."""
    got = served([np.nan] * 5, ONE_SEAT, Load(concurrency=2, think_s=1.0))
    np.testing.assert_allclose(got["arrival_s"], [0.0, 0.0, 1.5, 2.0, 3.0])
    np.testing.assert_allclose(got["finish_s"], [0.5, 1.0, 2.0, 2.5, 3.5])


@pytest.mark.parametrize("clients", [1, 3, 10])
@pytest.mark.parametrize("think_s", [0.0, 0.3, 4.0])
def test_the_interactive_response_time_law_holds(clients, think_s):
    """N = X (R + Z) (Lazowska et al., Quantitative System Performance, 3.5), once the loop is full."""
    count = 4000
    got = served([np.nan] * count, ONE_SEAT, Load(concurrency=clients, think_s=think_s))
    rate = count / got["finish_s"].max()
    residence_s = (got["finish_s"] - got["sent_s"]).mean()
    assert rate * (residence_s + think_s) == pytest.approx(clients, rel=0.01)


def test_a_turn_waits_for_the_answer_to_the_one_before_and_for_its_own_arrival():
    """Outputs of two tokens take 1 s; the second turn of `a` may go 0.25 s after 1.0, the third is due at 9 itself."""
    load = Load(sessions=True, think_s=0.25)
    table = constant_table(0.5, limits=make_limits(max_running=4))
    got = served([0.0, 0.0, 0.5, 9.0], table, load, ["a", "b", "a", "a"], outputs=[2, 2, 2, 2])
    np.testing.assert_allclose(got["arrival_s"], [0.0, 0.0, 1.25, 9.0])
    np.testing.assert_allclose(got["finish_s"], [1.0, 1.0, 2.25, 10.0])


def test_round_robin_gives_to_each_in_turn_and_least_loaded_to_the_idle_one():
    arrivals, outputs = [0.0, 0.0, 0.1, 0.6], [9, 1, 1, 1]
    in_turn = served(arrivals, with_limits(ONE_SEAT, replicas_count=2), outputs=outputs)
    assert in_turn["replica"].tolist() == [0, 1, 0, 1]
    idle = served(arrivals, with_limits(ONE_SEAT, replicas_count=2, routing="least_loaded"), outputs=outputs)
    assert idle["replica"].tolist() == [0, 1, 0, 1]  # at 0.1 s both have one
    assert served([0.0, 0.0, 0.6, 0.7], with_limits(ONE_SEAT, replicas_count=2, routing="least_loaded"), outputs=outputs)[
        "replica"
    ].tolist() == [0, 1, 1, 0]


def test_two_choices_wait_far_less_than_chance_would_and_more_than_the_least_loaded():
    """Mitzenmacher 2001. Chance would make eight M/D/1 queues: a mean wait of rho s / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    arrivals, waits = np.cumsum(np.random.default_rng(5).exponential(1 / 14.0, 3000)), {}
    for routing in ("least_loaded", "power_of_two"):
        got = served(arrivals, with_limits(ONE_SEAT, replicas_count=8, routing=routing))
        waits[routing] = (got["first_scheduled_s"] - got["arrival_s"]).mean()
        assert np.bincount(got["replica"], minlength=8).min() > 250
    load = 14.0 * 0.5 / 8
    assert waits["least_loaded"] < waits["power_of_two"] < 0.5 * load * 0.5 / (2 * (1 - load))


def test_prompts_go_where_their_beginning_is_cached_unless_that_replica_is_far_more_loaded():
    limits = make_limits(max_running=200, prefix_cache=True, replicas_count=2, routing="prefix_aware")
    table = constant_table(0.5, limits=limits, pool=make_pool(block_tokens=4))
    count = 80
    blocks = [[1] * 4 if number % 2 == 0 or number > 3 else [2] * 4 for number in range(count)]
    trace = make_trace(
        [float(number) if number < 4 else 10.0 for number in range(count)],
        [16] * count,
        [1] * count,
        prefix_blocks=blocks,
        prefix_block_tokens=4,
    )
    got = columns(replay(trace, table).requests)
    assert got["replica"][:4].tolist() == [0, 0, 0, 0]  # nothing is cached and all are idle: the first one; then its cache holds both
    assert set(got["replica"][4:69].tolist()) == {0}
    assert got["replica"][69:].tolist() == [1, 0] * 5 + [1]  # whenever 0 has 65 more than 1


def test_a_queue_that_outgrows_the_room_of_a_replica_gets_more(monkeypatch):
    monkeypatch.setattr(fleet, "SEQUENCES_HELD", 2)
    got = served([0.0] * 300, with_limits(ONE_SEAT, replicas_count=2))
    np.testing.assert_allclose(np.sort(got["finish_s"]), np.repeat(0.5 * np.arange(1, 151), 2))


def test_a_fleet_that_serves_nothing_says_so():
    table = with_limits(constant_table(0.5, limits=make_limits(max_context_tokens=1)), replicas_count=2)
    done = replay(make_trace([0.0], [1], [1]), table)
    assert done.requests["status"].to_pylist() == ["never_fits"]
    assert done.steps.num_rows == 0


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (Load(), "neither a concurrency nor sessions"),
        (Load(concurrency=0), "whole number from 1"),
        (Load(concurrency=1, think_s=-1.0), "number from 0"),
        (Load(sessions=True), "no request has a session_id"),
    ],
)
def test_a_load_that_says_nothing_is_refused(load, says):
    with pytest.raises(InputError, match=says):
        with_load(make_trace([0.0], [1], [1]), load)


def test_how_requests_are_sent_is_part_of_a_traces_digest_and_travels_with_it(tmp_path):
    trace = make_trace([0.0, 1.0], [1, 1], [1, 1])
    capped = with_load(trace, Load(concurrency=2))
    assert capped.digest != trace.digest
    for name in ("x.parquet", "x.jsonl"):
        write_trace(capped, tmp_path / name)
        again = read_trace(tmp_path / name)
        assert (again.provenance.load, again.digest) == (Load(concurrency=2), capped.digest)


def test_scaling_divides_arrivals():
    scaled = scaled_trace(make_trace([0.0, 1.0, 4.0], [1, 1, 1], [1, 1, 1]), rate_ratio=2.0)
    assert scaled.requests["arrival_s"].to_pylist() == [0.0, 0.5, 2.0]
    assert scaled.provenance.notes == ("arrivals scaled: 2.0 times the rate",)
    for ratio in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="rate_ratio"):
            scaled_trace(scaled, rate_ratio=ratio)
