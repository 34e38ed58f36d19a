"""Numbered invariants of `replay.execution` that need a look inside, a second replay or a file; `test_replay_laws` has the others."""

import json
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import replay.execution
from replay.assembly.metrics import request_metrics
from replay.execution import replica, twin
from replay.execution.engine import replay as replayed
from replay.execution.twin import replay_twin
from replay.execution.twin_engine import Engine
from replay.folders import parquet_bytes
from replay.ingress.reader import read_trace
from tests.execution.replay_cases import replay_cases
from tests.execution.test_loop_equals_twin import crowded_case, quiet_case
from tests.step_tables import make_trace

LAW = settings(max_examples=50, deadline=None)
ROOT = Path(__file__).resolve().parents[2]
EPOCH_S = 1_700_000_000


class AuditedEngine(Engine):
    """The twin's replica with books of its own: after every step they must balance."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.seen, self.done = set(), set()
        self.computed_tokens = self.found_tokens = self.lost_tokens = self.settled_tokens = 0

    def schedule(self, now_s):
        awaiting = {request for request in (*self.running, *self.preempted) if len(request.token_times_s) < request.promised}
        chunks = super().schedule(now_s)
        assert self.limits.async_scheduling or not awaiting & {chunk.request for chunk in chunks}
        self.computed_tokens += sum(chunk.tokens for chunk in chunks)
        self.check_requests()
        self.check_tokens()
        self.check_blocks()
        return chunks

    def admit(self, budget, now_s):
        chunks = super().admit(budget, now_s)
        self.found_tokens += sum(chunk.before for chunk in chunks)
        return chunks

    def preempt(self, request):
        self.lost_tokens += request.computed
        super().preempt(request)

    def finish(self, emitting, end_s):
        finished = super().finish(emitting, end_s)
        self.done.update(finished)
        for request in finished:
            # The last output token is never a key; whoever was preempted with it in flight has lost all.
            assert request.computed in (0, request.row["prompt_tokens"] + request.row["output_tokens"] - 1)
            self.settled_tokens += request.computed
        return finished

    def check_requests(self):
        present = [*self.running, *self.preempted, *self.waiting]
        self.seen.update(present)
        assert len(present) == len(set(present))
        assert self.seen == self.done | set(present)
        assert not self.done & set(present)

    def check_tokens(self):
        assert not any(request.computed for request in (*self.preempted, *self.waiting))
        present = sum(request.computed for request in self.running)
        assert present + self.settled_tokens == self.computed_tokens + self.found_tokens - self.lost_tokens
        for request in self.running:
            assert request.computed <= request.known
            assert len(request.token_times_s) <= request.promised <= request.row["output_tokens"]

    def check_blocks(self):
        held = Counter(block for request in self.running for block in request.blocks)
        assert len(held) + self.pool.free_count == self.pool.count
        assert not any(request.blocks for request in (*self.preempted, *self.waiting))
        assert all(block.users == users for block, users in held.items())
        if not self.limits.prefix_cache:
            assert set(held.values()) <= {1}
        for request in self.running:
            reserved = request.row["prompt_tokens"] + request.row["output_tokens"] - 1
            assert len(request.blocks) == self.blocks_for(reserved if self.limits.kv_policy == "reserve" else request.computed)


def audited(trace, table):
    """Replay with the twin; return the requests' table and the books of each replica."""
    made = []

    def open_books(*arguments):
        made.append(AuditedEngine(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin, "Engine", open_books)
        served = replay_twin(trace, table).requests
    return served, made


@LAW
@given(replay_cases())
@example(crowded_case())
@example(crowded_case(prefix_cache=True))
@example(crowded_case(async_scheduling=True))
@example(crowded_case(budget=5, inflight_steps=3))
def test_requests_tokens_and_blocks_balance_after_every_step(case):
    """Invariant 1, Invariant 2 and Invariant 3, in the twin's books; by Invariant 9 they hold for the compiled loop."""
    served, [books] = audited(*case)
    assert books.is_empty
    assert books.pool.free_count == books.pool.count
    assert len(books.done) == pc.sum(pc.equal(served["status"], "completed")).as_py()


@LAW
@given(replay_cases(), st.integers(1, 9))
@example(quiet_case(), 5)
@example(crowded_case(async_scheduling=True), 4)
def test_no_step_depends_on_what_arrives_after_it_was_composed(case, kept):
    """Invariant 4: without the requests from some arrival on, everything composed before it is the same."""
    trace, table = case
    until_s = trace.requests["arrival_s"][min(kept, trace.requests.num_rows - 1)].as_py()
    past = trace.requests.filter(pc.less(trace.requests["arrival_s"], until_s))
    if past.num_rows == 0:
        return
    whole, shorter = replayed(trace, table), replayed(replace(trace, requests=past), table)
    steps = [result.steps.filter(pc.less(result.steps["scheduled_s"], until_s)) for result in (whole, shorter)]
    assert steps[0] == steps[1]
    for before, after in zip(shorter.requests.to_pylist(), whole.requests.slice(0, past.num_rows).to_pylist(), strict=True):
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            assert before[name] == after[name] or min(before[name], after[name]) >= until_s


@LAW
@given(replay_cases())
def test_the_same_inputs_give_the_same_bytes(case):
    """Invariant 7."""
    first, second = replayed(*case), replayed(*case)
    for name in ("requests", "steps"):
        assert parquet_bytes(getattr(first, name)) == parquet_bytes(getattr(second, name))


@LAW
@given(replay_cases())
@example(quiet_case())
@example(quiet_case(2, async_scheduling=True))
@example(quiet_case(3, prefix_cache=True))
@example(quiet_case(4, kv_policy="reserve"))
def test_stepping_gives_what_jumping_gives(case):
    """Invariant 8: a record of one step leaves no room to jump."""
    jumped = replayed(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "RECORD_STEPS", 1)
        stepped = replayed(*case)
    assert stepped == jumped


def write_request_log(requests, path):
    """Write replayed requests as an engine logs them: arrivals since 1970, all other times on a clock that started somewhere else."""
    with path.open("w", encoding="utf-8") as file:
        for row in requests.to_pylist():
            clocks = {"queued_ts": "arrival_s", "scheduled_ts": "first_scheduled_s", "first_token_ts": "first_token_s"}
            record = {"request_id": row["request_id"], "input_toks": row["prompt_tokens"], "output_toks": row["output_tokens"]}
            record |= {name: None if row[of] is None else row[of] + 27536.5 for name, of in clocks.items()}
            arrival_time = EPOCH_S + Decimal(row["arrival_s"])  # a float64 since 1970 would be off by 1e-7 s
            file.write(json.dumps(record)[:-1] + f', "arrival_time": {arrival_time:f}}}\n')


@LAW
@given(replay_cases(prefix_cache=False))
def test_a_run_read_back_as_a_request_log_gives_the_same_metrics(tmp_path_factory, case):
    """Invariant 10. Logs name no beginnings of prompts, so without the prefix cache."""
    drawn, table = case
    columns = {name: drawn.requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    # The grid of `replay_cases` is 2^-10 s; twice that is a whole number of nanoseconds, as logs are read.
    trace = make_trace(columns["arrival_s"] * 2, columns["prompt_tokens"], columns["output_tokens"])
    first = replayed(trace, table)
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    write_request_log(first.requests, path)
    logged = read_trace(path)
    assert logged.provenance.kind == "recorded"
    second = replayed(logged, table)
    assert request_metrics(second) == request_metrics(first)
    assert second.steps == first.steps


def test_every_numbered_invariant_has_a_test_that_names_it():
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", replay.execution.__doc__, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert {int(number) for number in re.findall(r"Invariant (\d+)", tests)} == set(numbers)
