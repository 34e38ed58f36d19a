"""Representativeness against a reference, and how many knobs a change may change: laws, hand-worked cells, real traffic."""

from dataclasses import replace

import numpy as np
import pytest

from gates.checks import Evidence, run_checks
from gates.policy import default_policy, parse_policy
from replay.errors import SchemaError
from replay.ingress.reader import read_trace
from replay.ingress.shape_mix import compare_shapes, load_ratios
from tests.models import mapping
from tests.runs import lognormal_s, make_run, policy_of
from tests.step_tables import make_trace

STRICT = '[representativeness]\neffect = "invalidates"\n'


def trace_of(prompts, outputs, gap_s=1.0, name="chat"):
    return make_trace(gap_s * np.arange(len(prompts)), prompts, outputs, name=name)


def mix(one, other):
    return compare_shapes(one.requests, other.requests)


def drawn(n, seed, prompt=7.0, output=5.0):
    draw = np.random.default_rng(seed)
    return trace_of(*(np.maximum(1, draw.lognormal(mean, 1.0, n)).astype(int) for mean in (prompt, output)))


def test_a_mix_is_at_no_distance_from_itself_whatever_its_order_and_its_size():
    trace = drawn(500, 1)
    turned, doubled = (trace.requests.take(rows) for rows in (np.arange(500)[::-1], np.tile(np.arange(500), 2)))
    for table in (trace.requests, turned, doubled):
        found = compare_shapes(table, trace.requests)
        assert found.distance_ratio == pytest.approx(0.0, abs=1e-12)
        assert (found.coverage_ratio, found.missing) == (1.0, None)


def test_distance_is_symmetric_at_most_one_and_holds_the_triangle():
    a, b, c = (drawn(800, seed, prompt) for seed, prompt in ((1, 6.0), (2, 7.0), (3, 8.0)))
    ab, bc, ac = (mix(*pair).distance_ratio for pair in ((a, b), (b, c), (a, c)))
    assert ab == pytest.approx(mix(b, a).distance_ratio)
    assert 0.0 < ab < ac <= 1.0
    assert ac <= ab + bc
    assert mix(trace_of([10] * 5, [10] * 5), trace_of([100] * 5, [10] * 5)).distance_ratio == 1.0


def test_the_distance_is_the_share_of_requests_that_would_need_another_shape():
    # Cells of prompt and output octaves: 6 x (512.., 64..), 4 x (1024.., 64..) against 3, 3 and 4 x (1024.., 128..).
    one = trace_of([512] * 3 + [1023] * 3 + [1024] * 4, [64] * 10)
    other = trace_of([600] * 3 + [2047] * 3 + [1500] * 4, [127] * 6 + [128] * 4)
    found = mix(one, other)
    assert found.distance_ratio == pytest.approx((0.3 + 0.1 + 0.4) / 2)
    assert found.coverage_ratio == pytest.approx(0.6)
    assert "40.0% of it are prompts of 1024 to 2047 tokens with outputs of 128 to 255" in found.missing
    assert mix(other, one).coverage_ratio == 1.0


def test_the_joint_mix_is_compared_and_not_each_length_on_its_own():
    one, other = trace_of([100, 1000] * 50, [10, 100] * 50), trace_of([100, 1000] * 50, [100, 10] * 50)
    assert mix(one, other).distance_ratio == 1.0


def test_chance_is_the_mean_distance_of_two_draws_of_one_mix():
    found = [mix(drawn(400, 2 * seed), drawn(900, 2 * seed + 1)) for seed in range(40)]
    assert np.mean([one.chance_ratio for one in found]) == pytest.approx(np.mean([one.distance_ratio for one in found]), rel=0.1)


def test_loads_are_compared_on_average_and_in_the_fullest_minute():
    calm, busy = trace_of([10] * 601, [1] * 601, gap_s=1.0), trace_of([10] * 601, [1] * 601, gap_s=0.25)
    assert load_ratios(busy, calm) == {"mean_rate_per_s": 4.0, "peak_60s_requests": 4.0}
    assert load_ratios(make_trace([np.nan] * 3, [1] * 3, [1] * 3), calm) is None


def found(trace, reference, text="", mappings=None):
    run = make_run(lognormal_s(trace.requests.num_rows), trace=trace.name)
    table = run.requests
    for name in ("prompt_tokens", "output_tokens"):
        table = table.set_column(table.column_names.index(name), table.schema.field(name), trace.requests[name])
    run = replace(run, requests=table)
    provenance = replace(trace.provenance, kind="recorded")
    evidence = Evidence(
        baseline=run, candidate=run, provenance=provenance, policy=policy_of(text), trace=trace, reference=reference, mappings=mappings
    )
    return {finding.code: finding for finding in run_checks(evidence)}


RECENT = drawn(2000, 1)


def test_a_trace_like_its_reference_raises_nothing_and_without_a_reference_nothing_is_asked():
    assert found(drawn(2000, 2), RECENT, STRICT) == {}
    assert found(RECENT, None) == {}


def test_other_shapes_are_said_and_invalidate_where_the_policy_says_so():
    unlike = drawn(2000, 2, prompt=9.0)
    codes = found(unlike, RECENT)
    assert {code: finding.effect for code, finding in codes.items()} == {"shape_mix_differs": "informs", "shapes_not_covered": "informs"}
    assert {finding.effect for finding in found(unlike, RECENT, STRICT).values()} == {"invalidates"}
    assert found(unlike, RECENT, "[representativeness]\nmax_shape_distance = 1.0\nmin_coverage_ratio = 0.0\n") == {}


def test_another_load_is_found_in_both_directions_and_an_unknown_one_too():
    for gap_s in (0.5, 2.0):
        trace = make_trace(gap_s * np.arange(2000), *(RECENT.requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens")))
        assert set(found(trace, RECENT)) == {"load_differs_from_reference"}
        assert found(trace, RECENT, "[representativeness]\nmax_load_ratio = 2.5\n") == {}
    unknown = make_trace([np.nan] * 2000, *(RECENT.requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens")))
    assert found(RECENT, unknown, STRICT)["load_not_comparable"].effect == "invalidates"


def test_a_policy_that_makes_the_reference_count_refuses_to_go_without_one_or_with_an_empty_one():
    assert found(RECENT, None, STRICT)["reference_missing"].effect == "invalidates"
    assert found(RECENT, trace_of([], []), STRICT)["reference_unusable"].effect == "invalidates"


def test_a_policy_that_states_one_limit_keeps_the_others():
    limits = parse_policy("[representativeness]\nmax_load_ratio = 4", "p.toml").representativeness
    assert limits == replace(default_policy().representativeness, max_load_ratio=4)


@pytest.mark.parametrize("text", ["max_shape_distance = 3", "max_load_ratio = 0.5", 'effect = "disproves"', "coverage = 1"])
def test_a_limit_that_cannot_be_is_refused(text):
    with pytest.raises(SchemaError):
        parse_policy(f"[representativeness]\n{text}", "p.toml")


def test_the_hours_of_one_service_represent_each_other_and_another_service_does_not(shared):
    traces = shared / "data" / "traces"
    conversation = read_trace(traces / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv").requests
    other = read_trace(traces / "vidur_processed" / "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv").requests
    half = conversation.num_rows // 2
    limits = default_policy().representativeness
    halves, services = compare_shapes(conversation.slice(0, half), conversation.slice(half)), compare_shapes(other, conversation)
    assert halves.distance_ratio < limits.max_shape_distance < 0.5 < services.distance_ratio
    assert limits.min_coverage_ratio < halves.coverage_ratio


SMALL, LARGE = (
    mapping("[batching]", "max_running = 4"),
    mapping("[batching]", "max_running = 8", "max_batched_tokens = 512", "[gemm]", "split_k = 2"),
)


def test_a_change_of_more_knobs_than_the_policy_asks_for_is_named_and_decides_nothing():
    codes = found(RECENT, None, "max_changed_knobs = 2", (SMALL, LARGE))
    assert codes["many_knobs_changed"].effect == "informs"
    assert "3 knobs change at once" in codes["many_knobs_changed"].message
    assert "gemm.split_k" in codes["many_knobs_changed"].message
    assert found(RECENT, None, "max_changed_knobs = 3", (SMALL, LARGE)) == {}
    assert found(RECENT, None, "", (SMALL, LARGE)) == {}
