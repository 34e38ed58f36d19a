"""Random halves of a measured run: what they hold, and that the gate does not roll one back against the other."""

import numpy as np
import pytest

from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import MeasuredArm, MeasuredRequest
from gates.selfcheck.splits import halves, split_rates
from replay.errors import EvidenceError
from replay.ingress.measured.measured_run import COMPLETED
from tests.measured import P95, measured_run_of, summary_of


def run_of(n, **facts):
    return measured_run_of(np.random.default_rng(5).lognormal(0.0, 0.4, n), **facts)


def request_of(run):
    return MeasuredRequest(
        baseline=MeasuredArm(label="run", runs=(("run.jsonl", run),)),
        read_candidate=lambda: pytest.fail("the candidate was read"),
        policy=parse_policy(P95, "policy.toml"),
        policy_name="policy.toml",
        owners=Owners(),
        owners_name=None,
        owners_digest=None,
        seed=1,
    )


def test_halves_share_no_request_keep_the_order_and_are_two_runs():
    run = run_of(1001)
    parts = halves(run, np.random.default_rng(1))
    ids = [part.requests["request_id"].to_pylist() for part in parts]
    assert sorted(ids[0] + ids[1]) == sorted(run.requests["request_id"].to_pylist())
    assert [len(part) for part in ids] == [500, 501]
    assert all(part.requests["arrival_s"].to_pylist() == sorted(part.requests["arrival_s"].to_pylist()) for part in parts)
    assert parts[0].facts.digest != parts[1].facts.digest


def test_halves_of_one_run_are_seldom_rolled_back():
    [found] = split_rates(request_of(run_of(2000, offered_rate_per_s=10.0, expected_count=2000)), 100, lambda *_: None)
    assert found.shares["regression"].low <= 0.05
    assert found.shares["invalid_evidence"].rate == 0.0
    assert sum(share.rate for share in found.shares.values()) == pytest.approx(1.0)


def test_a_run_with_failures_says_nothing_of_the_statistics():
    status = [COMPLETED if index % 10 else "failed" for index in range(500)]
    [found] = split_rates(request_of(run_of(500, columns={"status": status})), 3, lambda *_: None)
    assert found.shares["invalid_evidence"].rate == 1.0


def test_percentiles_alone_cannot_be_split():
    with pytest.raises(EvidenceError, match="0 requests"):
        list(split_rates(request_of(summary_of()), 3, lambda *_: None))
