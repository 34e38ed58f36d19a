"""Policy files: what they may say, and one sentence for each way to get one wrong."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from gates.metrics import METRICS
from gates.plan import CellSpec, make_plan
from gates.policy import default_policy, parse_policy, read_policy
from replay import documents
from replay.errors import SchemaError, SpecError

EXAMPLES = documents.shipped_path("schemas") / "examples"


def keys(policy, blocking):
    return {claim.key for claim in [*policy.claims, *policy.layer_claims] if claim.blocking is blocking}


def test_default_gates_latency_tails_and_sustained_flops_and_only_reports_throughput():
    policy = default_policy()
    latency = {f"{metric}.{percentile}" for metric in ("ttft_s", "tpot_s", "e2e_s") for percentile in ("p95", "p99")}
    assert keys(policy, True) == latency | {"sustained_flops_per_s"}
    assert {"queue_s.p99", "itl_s.p99", "throughput_tokens_per_s", "mfu_ratio", "memory_stall_ratio"} <= keys(policy, False)
    assert {claim.margin for claim in policy.claims if claim.blocking} == {0.03}
    assert not policy.allow_synthetic


def test_default_judges_every_prompt_bin_at_p95_with_a_wider_margin_and_only_advises():
    strata = [claim for claim in default_policy().claims if claim.stratum != "all"]
    assert len(strata) == 15
    assert {(claim.percentile, claim.margin, claim.blocking) for claim in strata} == {(95.0, 0.10, False)}
    assert {"prompt_tokens[0,512)", "prompt_tokens[32768,inf)"} <= {claim.stratum for claim in strata}


def test_a_file_that_says_one_thing_keeps_the_rest_of_the_default():
    assert parse_policy("allow_synthetic = true", "p.toml") == dataclasses.replace(default_policy(), allow_synthetic=True)


def test_a_file_with_claims_replaces_all_default_claims():
    policy = parse_policy('[blocking]\nttft_s = { p95 = "2.5 %" }\n[advisory]\ne2e_s = { "p99.9" = 0.2 }', "p.toml")
    assert [(claim.key, claim.margin, claim.blocking) for claim in policy.claims] == [
        ("ttft_s.p95", 0.025, True),
        ("e2e_s.p99.9", 0.2, False),
    ]


def test_prompt_bins_block_where_the_policy_says_so():
    policy = parse_policy('prompt_bin_edges_tokens = [100]\n[blocking.by_prompt_bin]\nttft_s = { p95 = "5 %" }', "p.toml")
    assert keys(policy, True) == {"ttft_s.p95@prompt_tokens[0,100)", "ttft_s.p95@prompt_tokens[100,inf)"}


def test_limits_switch_on_a_claim_about_slo_attainment():
    policy = parse_policy("[slo]\nttft_s = 1.5", "p.toml")
    claim = next(claim for claim in policy.claims if claim.metric == "slo_attainment_ratio")
    assert (claim.margin, claim.blocking, policy.slo.ttft_s, policy.slo.tpot_s) == (0.01, True, 1.5, None)
    assert not any(claim.metric == "slo_attainment_ratio" for claim in default_policy().claims)


@pytest.mark.parametrize(
    ("written", "margin"),
    [("0.03", 0.03), ('"3%"', 0.03), ('"3 %"', 0.03), ('" 0.5 % "', 0.005), ('"150 %"', 1.5), ('"100%"', 1.0), ('"2.5 %"', 0.025)],
)
def test_margins_are_read_as_fractions_of_the_baseline(written, margin):
    policy = parse_policy(f"[blocking]\nttft_s = {{ p99 = {written} }}", "p.toml")
    assert policy.claims[0].margin == pytest.approx(margin)


@pytest.mark.parametrize(("written", "margin"), [("0.05", 0.05), ('"5 points"', 0.05), ('"1 point"', 0.01)])
def test_margins_of_fractions_are_absolute_points(written, margin):
    policy = parse_policy(f"[blocking]\nmfu_ratio = {written}", "p.toml")
    assert policy.claims[0].margin == pytest.approx(margin)


def test_digest_ignores_spelling_and_follows_meaning():
    spelled = [parse_policy(f"[blocking]\nttft_s = {{ p99 = {margin} }}", "p.toml").digest for margin in ("0.03", '"3 %"', "0.04")]
    assert spelled[0] == spelled[1] != spelled[2]


BAD = {
    "unknown key": ("alhpa = 0.05", "alhpa", "alpha"),
    "unknown metric": ("[blocking]\nttft = { p95 = 0.03 }", "'ttft' in blocking", "ttft_s"),
    "unknown section": ("[blocked]\nttft_s = { p95 = 0.03 }", "blocked", "blocking"),
    "metric that is not computed": ("[blocking]\njoules_per_request = 0.03", "joules_per_request", "one of"),
    "mean of a latency": ('[blocking]\nttft_s = { mean = "3 %" }', "mean", "means are not gated"),
    "latency without percentile": ('[blocking]\nttft_s = "3 %"', "ttft_s", "margin for each percentile"),
    "no percentile at all": ("[blocking]\nttft_s = {}", "ttft_s", "p95"),
    "percentile 0": ("[blocking]\nttft_s = { p0 = 0.03 }", "percentile 0", "above 0"),
    "percentile 100": ("[blocking]\nttft_s = { p100 = 0.03 }", "p100", "percentiles such as"),
    "percentile of a sum": ("[blocking]\nmfu_ratio = { p95 = 0.03 }", "mfu_ratio", "a margin"),
    "bare 3": ("[blocking]\nttft_s = { p95 = 3 }", "bare number 3", '0.03 or "3 %"'),
    "bare 1.5": ("[blocking]\nttft_s = { p95 = 1.5 }", "bare number 1.5", '0.015 or "1.5 %"'),
    "bare 5 of a fraction": ("[blocking]\nmfu_ratio = 5", "bare number 5", '0.05 or "5 points"'),
    "percent of a fraction": ('[blocking]\nmfu_ratio = "5 %"', "'5 %'", "points"),
    "points of a ratio": ('[blocking]\nttft_s = { p95 = "5 points" }', "5 points", "percentage"),
    "negative margin": ("[blocking]\nttft_s = { p95 = -0.03 }", "-0.03", "above 0"),
    "negative percentage": ('[blocking]\nttft_s = { p95 = "-3 %" }', "-3 %", "percentage"),
    "zero margin": ('[blocking]\nttft_s = { p95 = "0 %" }', "0 %", "above 0"),
    "margin nan": ("[blocking]\nttft_s = { p95 = nan }", "nan", "fraction"),
    "margin inf": ("[blocking]\nttft_s = { p95 = inf }", "inf", "fraction"),
    "margin true": ("[blocking]\nttft_s = { p95 = true }", "true", "a margin"),
    "margin with a comma": ('[blocking]\nttft_s = { p95 = "3,5 %" }', "3,5 %", "percentage"),
    "margin in words": ('[blocking]\nttft_s = { p95 = "some" }', "some", "percentage"),
    "all of a higher-is-better metric": ('[blocking]\nsustained_flops_per_s = "100 %"', "100 %", "higher is better"),
    "alpha 5": ("alpha = 5", "alpha is 5", "at most 0.25"),
    "alpha nan": ("alpha = nan", "alpha is nan", "above 0"),
    "alpha as text": ('alpha = "5 %"', "alpha", "number"),
    "too few replicates": ("replicates = 100", "replicates is 100", ">= 200"),
    "fractional replicates": ("replicates = 1000.5", "1000.5", "integer"),
    "minimum below ten": ("minimum_beyond = 5", "minimum_beyond is 5", ">= 10"),
    "warning below minimum": ("minimum_beyond = 200", "warning_beyond is 100", "warning_beyond >= minimum_beyond"),
    "unsorted edges": ("prompt_bin_edges_tokens = [512, 128]", "[512, 128]", "ascending"),
    "repeated edge": ("prompt_bin_edges_tokens = [512, 512]", "[512, 512]", "each once"),
    "edge 0": ("prompt_bin_edges_tokens = [0, 512]", "is 0", ">= 1"),
    "only advisory claims": ("[advisory]\nttft_s = { p95 = 0.03 }", "no blocking claim", "at least one"),
    "claimed twice": (
        "[blocking]\nttft_s = { p95 = 0.03 }\n[advisory]\nttft_s = { p95 = 0.1 }",
        "ttft_s.p95 is claimed twice",
        "blocking or advisory",
    ),
    "limits without a limit": ("[slo]\nblocking = false", "no limit", "ttft_s, tpot_s, e2e_s"),
    "limit 0": ("[slo]\nttft_s = 0", "slo.ttft_s is 0", "above 0"),
    "limit nan": ("[slo]\nttft_s = nan", "nan", "above 0"),
    "limit in other units": ("[slo]\nttft_ms = 500", "ttft_ms", "ttft_s"),
    "not TOML": ("alpha = ", "not valid TOML", "TOML"),
}


@pytest.mark.parametrize(("text", "got", "want"), BAD.values(), ids=BAD.keys())
def test_a_bad_policy_is_refused_in_one_sentence_that_names_place_and_fix(text, got, want):
    with pytest.raises(SpecError) as caught:
        parse_policy(text, "p.toml")
    message = str(caught.value)
    assert message.startswith("p.toml")
    assert got in message
    assert want in message
    assert "Fix: " in message
    assert "\n" not in message


def test_the_line_of_the_fault_is_named():
    with pytest.raises(SpecError, match=r"^p\.toml:4: "):
        parse_policy("alpha = 0.05\n\n[blocking]\ntpot_s = { p95 = 3 }", "p.toml")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00"])
def test_a_missing_empty_or_binary_file_is_refused(tmp_path: Path, content):
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"policy\.toml"):
        read_policy(path)


def test_more_blocking_claims_than_the_replicates_can_tell_apart_are_refused():
    policy = parse_policy("replicates = 200\nprompt_bin_edges_tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n"
                          '[blocking.by_prompt_bin]\nttft_s = { p95 = "5 %" }', "p.toml")  # fmt: skip
    cell = CellSpec(trace="chat", trace_digest="sha256:0", hardware="h100-sxm", model="tiny", layer_types=())
    with pytest.raises(SpecError, match=r"11 blocking claims.*at least 220 replicates"):
        make_plan(policy, [cell], 1)


def test_the_schema_lists_every_metric_of_its_kind():
    sections = documents.load_schema("policy.v1")["$defs"]["claims"]["properties"]
    by_request = {name for name, metric in METRICS.items() if metric.basis == "request_percentile"}
    of_quality = {name for name, metric in METRICS.items() if metric.basis == "quality_items"}
    assert set(sections) - {"by_layer_type", "by_prompt_bin"} == set(METRICS) - {"slo_attainment_ratio"} - of_quality
    quality = documents.load_schema("policy.v1")["properties"]["quality"]["properties"]
    assert of_quality == set(quality) & set(METRICS) == set(quality["by_prompt_bin"]["properties"])
    assert set(sections["by_prompt_bin"]["properties"]) == by_request
    assert set(sections["by_layer_type"]["properties"]) == {name for name, metric in METRICS.items() if metric.by_layer_type}


def test_the_valid_example_is_accepted_and_the_invalid_one_is_not():
    assert any(claim.blocking for claim in read_policy(EXAMPLES / "policy.v1.valid.toml").claims)
    text = (EXAMPLES / "policy.v1.invalid.toml").read_text()
    with pytest.raises(SchemaError):
        documents.check(tomllib.loads(text), "policy.v1", "example", text)


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.0", '"1 %"'])
def test_the_share_of_requests_a_baseline_may_reject_is_a_fraction_below_one(value):
    with pytest.raises(SpecError, match="max_rejected_ratio is"):
        parse_policy(f"max_rejected_ratio = {value}", "p")
    assert parse_policy("max_rejected_ratio = 0", "p").max_rejected_ratio == 0.0
    assert default_policy().max_rejected_ratio == 0.01


@pytest.mark.parametrize(("written", "value"), [("0", 0.0), ("0.02", 0.02), ('"2 %"', 0.02), ('"0.5 %"', 0.005)])
def test_the_run_effect_of_measured_runs_is_a_fraction_or_a_percentage(written, value):
    assert parse_policy(f"run_effect_sd = {written}", "p.toml").run_effect_sd == pytest.approx(value)


@pytest.mark.parametrize("written", ["1", "-0.01", '"1"', '"much"', '"80 %"', "true"])
def test_a_run_effect_that_could_be_read_in_two_ways_or_is_none_is_refused(written):
    with pytest.raises(SpecError, match="run_effect_sd"):
        parse_policy(f"run_effect_sd = {written}", "p.toml")
