"""Regressions from public reports through the whole gate, beside the larger ones in `data/`: decision, stage, class, control.

Figures are the model's own, not the reports'. Policies say what the report's text names and leave the rest at its default.
"""

import numpy as np
import pytest

from gates.gate import gate
from gates.owners import Owners
from gates.policy import parse_policy
from gates.request import Arm, Cell, GateRequest, QualityInput
from replay.ingress.quality.items import items_of
from replay.ingress.quality.result import QualityFacts, QualityResult
from tests.measured import codes, gate_runs, measured_run_of
from tests.models import LLAMA_8B, mapping
from tests.scenarios.test_replay_level import H100
from tests.step_tables import make_trace

SYNTHETIC = "allow_synthetic = true\nresimulations = 60\nmax_resimulations = 60\n"


def decided(trace, lines, text, *, device=H100, model=LLAMA_8B, quality=None):
    """The worst cell of a gate on two mappings, each its common lines and its own."""
    arms = [Arm(mapping=mapping(*own), label=f"{name}.toml") for name, own in zip(("before", "after"), lines, strict=True)]
    request = GateRequest(
        baseline=arms[0],
        candidate=arms[1],
        cells=(Cell(trace=trace, trace_name="trace.parquet", model=model, hardware=device),),
        policy=parse_policy(SYNTHETIC + text, "policy.toml"),
        policy_name="policy.toml",
        owners=Owners(),
        owners_name=None,
        owners_digest=None,
        seed=1,
        quality=quality,
    )
    return gate(request, lambda _: None).verdict.worst


def revert(cell):
    return cell.cause.mitigation["revert"] if cell.cause.mitigation else None


def claims(cell):
    return {claim.key: claim for claim in cell.claims}


def with_hits(share, **more):
    """A run whose prompts of 1,000 tokens were found in the cache to a share."""
    values = np.random.default_rng(2).lognormal(0, 0.3, 2000) * (1 - 0.8 * share)
    return measured_run_of(values, columns={"prefix_hit_tokens": [int(1000 * share)] * 2000}, digest=f"sha256:{share}", **more)


def test_s21_a_benchmark_that_measured_the_prefix_cache_supports_no_decision():
    """vllm-project/vllm 54227: the same prompts sent again to a server that kept its cache."""
    worst = gate_runs(with_hits(0.0), with_hits(0.9)).verdict.worst
    assert (worst.decision, worst.basis, worst.first_failing_stage, worst.bottleneck_class) == (
        "rollback", "invalid_evidence", "ingress", "measurement",
    )  # fmt: skip
    message = next(reason["message"] for reason in worst.reasons if reason["code"] == "cache_state_differs")
    assert "0 % of the baseline's" in message
    assert "90 % of those of the candidate" in message
    assert "Reset the cache" in message
    assert not worst.cause.mitigation


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_s21_control_arms_with_the_same_cache_state_get_a_verdict_of_their_own(share):
    result = gate_runs(with_hits(share), with_hits(share, file_name="again.jsonl"), '[blocking]\nttft_s = { p50 = "5 %" }\n')
    assert "cache_state_differs" not in codes(result)
    assert result.verdict.basis == "proven_safe"


def waits(service_s, count=800, gap_s=0.1):
    """Latencies of a client with one request under way, from the schedule and from the sending [requests]."""
    ends, end = [], 0.0
    for place in range(count):
        end = max(end, place * gap_s) + service_s
        ends.append(end)
    scheduled = np.arange(count) * gap_s
    return np.array(ends) - scheduled, np.full(count, service_s), np.array(ends) - service_s


def client(service_s, *, arrivals, digest, concurrency=1):
    queued, own, sent = waits(service_s)
    values = queued if arrivals == "scheduled" else own
    columns = {"arrival_s": list(sent) if arrivals == "sent" else [0.1 * place for place in range(len(values))], "sent_s": list(sent)}
    return measured_run_of(values / 2, columns=columns, arrivals=arrivals, concurrency=concurrency, digest=digest, offered_rate_per_s=10.0)


def test_s22_percentiles_from_the_sending_under_a_cap_are_refused():
    """vllm-project/vllm 54101: 8 requests at 10 per second, half a second each, one at a time: the waiting is not in the figures."""
    queued, own, _ = waits(0.5, count=8)
    assert queued - own == pytest.approx(0.4 * np.arange(8))
    arms = [client(service_s, arrivals="sent", digest=f"sha256:{service_s}") for service_s in (0.5, 0.55)]
    worst = gate_runs(*arms).verdict.worst
    assert (worst.basis, worst.first_failing_stage, worst.bottleneck_class) == ("invalid_evidence", "ingress", "measurement")
    assert "coordinated_omission" in [reason["code"] for reason in worst.reasons]


def test_s22_from_the_schedule_the_same_tenth_of_service_shows_in_full():
    queued = [waits(service_s)[0] for service_s in (0.5, 0.55)]
    assert np.percentile(queued[1], 99) > 1.1 * np.percentile(queued[0], 99)
    own = [waits(service_s)[1] for service_s in (0.5, 0.55)]
    assert own[1][0] - own[0][0] == pytest.approx(0.05)


def test_s22_control_without_a_cap_both_ways_of_counting_agree():
    arms = [
        measured_run_of(
            np.random.default_rng(3).lognormal(-1, 0.3, 2000), arrivals="sent", digest=f"sha256:{name}", file_name=f"{name}.jsonl"
        )
        for name in "ab"
    ]
    result = gate_runs(*arms, '[blocking]\nttft_s = { p50 = "5 %" }\n')
    assert "coordinated_omission" not in codes(result)
    assert result.verdict.basis == "proven_safe"


def chat(count, seed=1):
    """Poisson arrivals, log-normal prompts and outputs."""
    draw = np.random.default_rng(seed)
    arrival_s = np.cumsum(draw.exponential(0.14, count))
    prompts, outputs = (np.clip(np.exp(draw.normal(np.log(median), 0.8, count)), 8, 4000).astype(int) for median in (300, 200))
    return make_trace(arrival_s, prompts, outputs)


P99 = '[blocking]\nttft_s = { p99 = "3 %" }\ntpot_s = { p95 = "3 %" }\n'


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_s24_a_thousand_requests_replayed_under_the_same_mapping_are_released(seed):
    """vllm-project/vllm 7062: three equal runs of a thousand requests, whose p99 spread by 39 %."""
    worst = decided(chat(1000, seed), ((), ()), P99)
    assert worst.basis == "proven_safe"
    assert claims(worst)["ttft_s.p99"].n_beyond == 10
    assert claims(worst)["ttft_s.p99"].ratio == 1.0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("count", [200, 1000])
def test_s24_equal_runs_that_were_measured_are_undecided_and_never_rolled_back_for_a_regression(count, seed):
    draw = np.random.default_rng([seed, count])
    shared = draw.lognormal(-1, 0.5, count)
    arms = [
        measured_run_of(shared * draw.lognormal(0, 0.2, count), digest=f"sha256:{place}", file_name=f"{place}.jsonl") for place in range(2)
    ]
    result = gate_runs(*arms, '[blocking]\nttft_s = { p99 = "3 %" }\n')
    assert result.verdict.basis == "inconclusive"
    [claim] = result.verdict.worst.claims
    assert claim.n_beyond == count // 100
    assert claim.interval.lower < 1 < claim.interval.upper
    assert claim.reason_code == ("too_few_samples" if count == 200 else "margin_not_shown")


def test_s24_fifteen_percent_with_ten_samples_beyond_is_too_few_and_with_two_hundred_a_regression():
    for count, basis in ((1000, "inconclusive"), (20_000, "regression")):
        draw = np.random.default_rng(count)
        shared = draw.lognormal(-1, 0.5, count)
        arms = [
            measured_run_of(factor * shared * draw.lognormal(0, 0.5, count), digest=f"sha256:{factor}", file_name=f"{factor}.jsonl")
            for factor in (1.0, 1.15)
        ]
        assert gate_runs(*arms, '[blocking]\nttft_s = { p99 = "3 %" }\n').verdict.basis == basis


def answers(share, count=3000):
    """An evaluation in which a share of the right answers is lost."""
    import pyarrow as pa

    draw = np.random.default_rng(4)
    right = (draw.random(count) < 0.7) & ~(draw.random(count) < share)
    columns = {"task": ["qa"] * count, "metric": ["task_accuracy_ratio"] * count, "item_id": [f"i{place}" for place in range(count)]}
    items = items_of({**{name: pa.array(values) for name, values in columns.items()}, "value": pa.array(right.astype(float))}, "x")
    return QualityResult(items=items, facts=QualityFacts(format="table of items", digest=f"sha256:{share}"))


def evaluated(share):
    return QualityInput(baseline_name="b", baseline=answers(0.0), candidate_name="c", read_candidate=lambda: answers(share))


SPARSE = ((), ("[formats]", 'sparsity = "2:4"'))
SERVED = '[blocking]\ntpot_s = { p95 = "50 %" }\n'


def test_s16_sparse_weights_without_a_quality_record_support_no_decision_however_fast():
    """pytorch/tutorials 3236: two of four weights left out for the sake of FLOPs, and no record of the answers."""
    worst = decided(chat(1000), SPARSE, SERVED)
    assert (worst.decision, worst.basis, worst.first_failing_stage) == ("rollback", "invalid_evidence", "quality_sla")
    assert claims(worst)["tpot_s.p95"].ratio < 1.0
    assert any("sparsity of weights" in reason["message"] for reason in worst.reasons)


def test_s16_with_a_record_that_shows_a_loss_they_are_rolled_back_and_undone():
    worst = decided(chat(1000), SPARSE, SERVED, quality=evaluated(0.1))
    assert (worst.basis, worst.first_failing_stage, worst.bottleneck_class) == ("regression", "quality_sla", "numerics")
    assert revert(worst) == ["formats.sparsity"]


def test_s16_control_faster_steps_and_answers_inside_their_limits_are_released():
    assert decided(chat(1000), SPARSE, SERVED, quality=evaluated(0.0)).basis == "proven_safe"
