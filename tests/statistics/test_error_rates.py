"""The benchmark that publishes error rates: its intervals, its verdicts on targets, and that a seed fixes every trial."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gates.statistics.estimate import from_t
from replay.assembly.percentile import percentile
from replay.execution.engine import replay
from tests.step_tables import make_trace

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("error_rates")


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("rate_table")


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("synthetic_servers")


@pytest.mark.parametrize(("count", "trials"), [(0, 300), (1, 59), (15, 300), (299, 300), (300, 300)])
def test_intervals_of_rates_are_scipys_wilson_intervals(table, count, trials):
    interval = stats.binomtest(count, trials).proportion_ci(method="wilson")
    assert table.wilson(count, trials) == pytest.approx((interval.low, interval.high), abs=1e-9)


@pytest.mark.parametrize(
    ("count", "target", "at_most", "word"),
    [(21, 0.05, True, "met"), (40, 0.05, True, "MISS"), (90, 0.35, False, "met"), (60, 0.35, False, "MISS")],
)
def test_a_target_is_missed_only_where_the_interval_excludes_it(table, count, target, at_most, word):
    flags = [place < count for place in range(300)]
    assert table.rate_of(flags, "pair_plain", "mg1", "U", "a rate", target, at_most=at_most).word == word


@pytest.mark.parametrize(("estimate", "expected"), [(0.0, "release"), (0.02, "rollback"), (0.05, "rollback"), (-0.05, "release")])
def test_release_comes_before_rollback_and_needs_the_upper_bound_inside_the_margin(bench, estimate, expected):
    assert bench.verdict(from_t("noise_swap", estimate, 0.01, 24, 0.05)) == expected
    assert bench.verdict(from_t("noise_swap", estimate, 0.1, 24, 0.05)) == "inconclusive"


def test_a_seed_fixes_a_trial_and_the_wrong_simulator_falls_back(bench):
    inputs = bench.Inputs(server="batch", seed=3, slowdowns={"S 3": 0.009, "S 5": 0.015})
    first = bench.pair_trial(inputs, 4)
    assert first == bench.pair_trial(inputs, 4)
    assert first["pair_steps"]["U 0"].method == "noise_swap"
    assert first["pair_wrong_simulator"]["U 0"].fallback == "tail_not_reproduced"


def test_an_archive_is_made_of_other_trials_than_the_one_it_judges(bench):
    inputs = bench.Inputs(server="mg1", seed=3, slowdowns={})
    generator = np.random.default_rng(4)
    arms = [tuple((generator.normal(0, 0.02, 5), generator.normal(0, 0.02, 5)) for _ in range(2)) for _ in range(40)]
    found = bench.judged_runs(inputs, arms, 7)
    assert (found["runs_steps"]["U 0"].method, found["runs_plain"]["U 0"].method) == ("moderated_t", "welch_t")
    arms[7] = (tuple(100 * values for values in arms[7][0]), arms[7][1])
    assert bench.judged_runs(inputs, arms, 7)["runs_steps"]["U 0"].degrees == found["runs_steps"]["U 0"].degrees


@pytest.mark.parametrize("server", ["mg1", "batch"])
def test_replaying_a_run_with_its_own_noise_gives_the_run(bench, servers, server):
    generator = np.random.default_rng(1)
    traffic = servers.draw_traffic(server, 5000, generator)
    served = servers.serve(traffic, servers.draw_noise(5000, generator))
    again = servers.serve(traffic, servers.draw_noise(5000, np.random.default_rng(9)))
    assert not np.array_equal(served.latencies, again.latencies)
    simulated = bench.Bench.of(traffic)
    noise = servers.draw_noise(5000, generator)
    run = simulated.run(noise)
    own = bench.Noise(arm="baseline", log_factors=noise[run.steps.requests])
    np.testing.assert_allclose(
        simulated.replay({"baseline": run}, np.zeros(len(simulated.edges) + 1), own), run.served.latencies, rtol=1e-12
    )


def test_the_server_without_noise_at_a_utilisation_of_0_7_waits_as_long_as_theory_says(servers):
    traffic = servers.draw_traffic("mg1", 2_000_000, np.random.default_rng(2))
    waits = servers.serve(traffic, np.zeros(2_000_000)).latencies - traffic.works
    assert waits.mean() == pytest.approx(0.7 * math.e / (2 * 0.3), rel=0.06)  # Pollaczek and Khinchine; E[S^2] = e


def test_injected_regressions_move_p99_as_they_say(servers):
    latencies = servers.serve(servers.draw_traffic("mg1", 20_000, np.random.default_rng(3)), np.zeros(20_000)).latencies
    tail, bulk = servers.tail_only(latencies, 1.10), servers.bulk_only(latencies, 1.03)
    assert percentile(tail, 99.0) == pytest.approx(1.10 * percentile(latencies, 99.0))
    assert percentile(tail, 50.0) == percentile(latencies, 50.0)
    assert percentile(bulk, 99.0) == percentile(latencies, 99.0)
    assert percentile(bulk, 50.0) == pytest.approx(1.03 * percentile(latencies, 50.0))


def test_the_table_sets_servers_beside_each_other_and_leaves_out_what_was_not_measured(table):
    rows = [table.rate_of([True] * 3 + [False] * 97, "pair", server, "U", "a rate", 0.05) for server in ("one", "two")]
    rows.append(table.rate_of([True], "pair", "two", "U", "another"))
    lines = table.markdown(rows, "command", {"pair": "one pair"}, {"one": "first", "two": "second"}).splitlines()
    assert lines[2] == "| situation | regression | rate | first | target | second | target |"
    assert lines[4] == "| one pair | U | a rate | 3.0 (1.0-8.5) | <= 5: met | 3.0 (1.0-8.5) | <= 5: met |"
    assert lines[5] == "| one pair | U | another |  |  | 100.0 (20.7-100.0) |  |"


def test_a_seed_fixes_a_modelled_trial_and_its_shifts_are_seen_in_their_order(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    modelled = importlib.import_module("modelled_rates")
    monkeypatch.setattr(modelled, "REPLICATES", 20)
    slowdowns = {"S 0": 0.0, "S 5": 0.03}
    first = modelled.queue_trial("batch", 3, slowdowns, 1)
    assert first == modelled.queue_trial("batch", 3, slowdowns, 1)
    assert first != modelled.queue_trial("batch", 4, slowdowns, 1)
    for trial in first.values():
        assert trial["S 0"].interval[0] < trial["S 5"].interval[0]
        assert trial["S 0"].interval[1] < trial["S 5"].interval[1]
    known, wrong = (trial["S 5"].interval for trial in first.values())
    assert wrong[1] - wrong[0] > known[1] - known[0]


def test_without_an_error_of_its_own_an_unchanged_modelled_candidate_is_the_baseline(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    modelled = importlib.import_module("modelled_rates")
    monkeypatch.setattr(modelled, "REPLICATES", 20)
    generator = np.random.default_rng(1)
    queue = modelled.Queue(traffic=modelled.draw_traffic("mg1", 2000, generator))
    [[judged]] = modelled.judge_draw(queue, [0.0], modelled.step_error("step", 0.05, 0.0), generator)
    assert (judged.verdict, judged.interval) == ("release", (1.0, 1.0))


def test_the_server_of_the_replayed_trace_takes_its_linear_step_times(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    azure = importlib.import_module("azure_modelled")
    requests = replay(make_trace([0.0], [100], [3]), azure.linear_table()).requests
    # A prompt of 100 tokens, then decodes of one token each with 100 and 101 keys and the token's own.
    prefill_s = 10e-3 + 100 * 60e-6 + 60e-6
    decodes_s = sum(10e-3 + 60e-6 + 60e-6 + 0.1e-6 * keys for keys in (101, 102))
    assert requests["first_token_s"].to_pylist() == [pytest.approx(prefill_s)]
    assert requests["finish_s"].to_pylist() == [pytest.approx(prefill_s + decodes_s)]


def test_runs_of_the_benchmarks_queue_pass_through_the_whole_gate_and_their_noise_is_swapped(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    gate_rates = importlib.import_module("gate_rates")
    monkeypatch.setattr(gate_rates, "REQUESTS", 10_000)
    draw = np.random.default_rng(2)
    load = gate_rates.draw_load("mg1", draw)
    archive = gate_rates.archive_of(load, draw, 0.0)
    baseline, slower = load.run(draw), load.run(draw, 0.03)
    [claim] = load.gate([baseline], [slower], archive).claims
    assert (claim.method, claim.outcome) == ("noise_swap", "disproved")
    assert gate_rates.outcome(claim) == "rollback"
    [plain] = load.gate([gate_rates.without_steps(baseline)], [gate_rates.without_steps(slower)], archive).claims
    assert plain.method == "block_bootstrap"
