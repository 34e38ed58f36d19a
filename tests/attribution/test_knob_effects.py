"""Effects of knobs: exact ratios, shares of the whole change, and honesty where something cannot be tried."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gates.attribution.effects import claims_to_explain, knob_effects
from gates.attribution.severity import by_severity, worsening
from gates.attribution.trials import Judgement, Trials
from gates.claim import ClaimSpec
from gates.metrics import METRICS
from replay.errors import SpecError
from tests.attribution.attribution_cells import Cell, Cost, make_claim, mapping


def effects_of(factor, candidate, baseline=None, traffic=None):
    baseline = mapping() if baseline is None else baseline
    cell = Cell(baseline, lambda spec: Cost(queueing=factor({setting.knob for setting in spec.settings})))
    trials = Trials(
        replayer=cell, baseline=baseline, candidate=candidate, judge=cell.judge, judgement=cell.judge(candidate, cell.run(candidate))
    )
    claims = claims_to_explain(trials.judgement.claims)
    return {effect.knob: effect for effect in knob_effects(trials, claims, traffic)}


def test_effects_of_independent_knobs_are_their_factors_and_their_shares_add_up_to_one():
    factors = {"formats.kv": 1.2, "fusion.qkv": 0.9, "gemm.split_k": 1.5}
    effects = effects_of(
        lambda changed: math.prod(factors[knob] for knob in changed), mapping(formats__kv="fp8", fusion__qkv=False, gemm__split_k=4)
    )
    assert list(effects) == ["formats.kv", "fusion.qkv", "gemm.split_k"]
    for knob, factor in factors.items():
        assert effects[knob].effect == pytest.approx(factor - 1.0)
        assert effects[knob].effect_alone == pytest.approx(factor - 1.0)
        assert effects[knob].share == pytest.approx(math.log(factor) / math.log(1.2 * 0.9 * 1.5))
        assert effects[knob].metric == "ttft_s.p99"
    assert sum(effect.share for effect in effects.values()) == pytest.approx(1.0)


def test_a_single_changed_knob_has_the_whole_share():
    [effect] = effects_of(lambda changed: 1.3 if changed else 1.0, mapping(gemm__split_k=4)).values()
    assert effect.share == pytest.approx(1.0)
    assert effect.to_document()["interval"] is None
    assert effect.to_document()["method"] == "replays of the candidate and the baseline; no interval"


def test_two_knobs_that_only_act_together_share_their_effect_and_say_so():
    both = {"formats.kv", "fusion.qkv"}
    effects = effects_of(lambda changed: 1.44 if both <= changed else 1.0, mapping(formats__kv="fp8", fusion__qkv=False, gemm__split_k=4))
    for knob in both:
        assert effects[knob].effect == pytest.approx(0.2)
        assert effects[knob].share == pytest.approx(0.5)
        assert effects[knob].effect_alone == pytest.approx(0.0)
        assert effects[knob].effect_last == pytest.approx(0.44)
        assert effects[knob].interacts
    assert effects["gemm.split_k"].effect == pytest.approx(0.0)
    assert not effects["gemm.split_k"].interacts


def test_a_mix_that_cannot_be_built_counts_as_its_largest_part_and_says_why():
    baseline, candidate = mapping(), mapping(formats__kv="fp8", fusion__qkv=False)

    def judge(spec, run):
        if {setting.knob for setting in spec.settings} == {"fusion.qkv"}:
            raise SpecError("mapping.toml", "fusion without its format", "both", "set both")
        return cell.judge(spec, run)

    cell = Cell(baseline, lambda spec: Cost(queueing=1.0 + 0.2 * len(spec.settings)))
    trials = Trials(
        replayer=cell, baseline=baseline, candidate=candidate, judge=judge, judgement=cell.judge(candidate, cell.run(candidate))
    )
    effects = {effect.knob: effect for effect in knob_effects(trials, claims_to_explain(trials.judgement.claims))}
    # Orders: the format first makes 1.2, then 1.4 / 1.2; the fusion first makes 1, and the format then all of 1.4.
    assert effects["formats.kv"].effect == pytest.approx(math.sqrt(1.2 * 1.4) - 1.0)
    assert effects["fusion.qkv"].effect == pytest.approx(math.sqrt(1.4 / 1.2) - 1.0)
    assert effects["formats.kv"].effect_last is None
    assert "with this knob reverted the mapping cannot be built: mapping.toml: fusion without its format" in effects["formats.kv"].method
    assert effects["fusion.qkv"].effect_alone is None
    assert sum(effect.share for effect in effects.values()) == pytest.approx(1.0)


class Resampled:
    """Traffic on which a knob's factor is another one at each place."""

    requests_count = 10**6

    def __init__(self, factors):
        self.factors = factors
        self.replicates_count = len(next(iter(factors.values()))) - 1
        self.asked = []

    def figures(self, spec, places):
        self.asked.append((spec.digest, tuple(places)))
        return [{"t/chip/ttft_s.p99": math.prod(self.factors[setting.knob][place] for setting in spec.settings)} for place in places]


def test_intervals_are_t_intervals_over_the_resamples_around_the_recorded_figure():
    traffic = Resampled({"formats.kv": [1.2, 1.1, 1.2, 1.3], "gemm.split_k": [1.0, 1.0, 1.0, 1.0]})
    effects = effects_of(lambda changed: 1.2, mapping(formats__kv="fp8", gemm__split_k=4), traffic=traffic)
    logs = [math.log(factor) for factor in (1.1, 1.2, 1.3)]
    half_width = stats.t.ppf(0.975, 2) * np.std(logs, ddof=1)
    interval = effects["formats.kv"].interval
    assert (interval.lower, interval.upper) == pytest.approx((1.2 * math.exp(-half_width) - 1.0, 1.2 * math.exp(half_width) - 1.0))
    assert interval.confidence == 0.95
    assert (effects["gemm.split_k"].interval.lower, effects["gemm.split_k"].interval.upper) == pytest.approx((0.0, 0.0))
    assert effects["formats.kv"].to_document()["interval"]["upper"] == interval.upper
    assert "4 mixes" in effects["formats.kv"].method


def test_many_knobs_on_a_long_trace_are_sampled_and_still_add_up():
    names = {
        "formats__kv": "fp8", "fusion__qkv": False, "fusion__gate_up": False, "gemm__split_k": 4, "kv__block_tokens": 32,
        "graph__mode": "none", "batching__max_running": 64, "kv__memory_ratio": 0.5,
    }  # fmt: skip
    factors = {name.replace("__", "."): [1.0 + 0.05 * place, 1.0 + 0.05 * place] for place, name in enumerate(names)}
    traffic = Resampled(factors)
    effects = effects_of(lambda changed: 2.0 if changed else 1.0, mapping(**names), traffic=traffic)
    assert {knob: effect.effect for knob, effect in effects.items()} == pytest.approx(
        {knob: pair[0] - 1.0 for knob, pair in factors.items()}
    )
    assert sum(effect.share for effect in effects.values()) == pytest.approx(1.0)
    assert len({digest for digest, _ in traffic.asked}) <= 16 * 7 + 2 + 16
    assert "16 drawn orders" in effects["formats.kv"].method


@pytest.mark.parametrize(("before", "after", "effect"), [(0.0, 0.02, 0.02), (0.10, 0.02, -0.08)])
def test_differences_are_reported_as_differences(before, after, effect):
    baseline, candidate = mapping(), mapping(gemm__split_k=4)

    def judge(spec, run):
        value = after if spec.settings else before
        claim = make_claim(scale="difference", ratio=None, baseline=before, candidate=value, difference=value - before, direction="higher")
        return Judgement(decision="rollback", basis="regression", claims=(claim,))

    cell = Cell(baseline, lambda _: Cost())
    trials = Trials(replayer=cell, baseline=baseline, candidate=candidate, judge=judge, judgement=judge(candidate, cell.run(candidate)))
    [found] = knob_effects(trials, claims_to_explain(trials.judgement.claims))
    assert found.effect == pytest.approx(effect)
    assert found.harm == pytest.approx(-effect)
    assert found.share == pytest.approx(1.0)


def test_the_disproved_blocking_claims_are_explained_the_worst_first():
    claims = (
        make_claim(id="a", outcome="undecided", ratio=3.0),
        make_claim(id="b", outcome="disproved", ratio=1.2),
        make_claim(id="c", outcome="disproved", ratio=1.3),
        make_claim(id="d", outcome="disproved", ratio=0.6, direction="higher", margin=0.5),
        make_claim(id="e", outcome="disproved", ratio=9.0, blocking=False),
    )
    assert [claim.id for claim in claims_to_explain(claims)] == ["c", "b", "d"]
    assert [claim.id for claim in claims_to_explain(claims[:1])] == ["a"]
    assert claims_to_explain(claims[-1:]) == ()
    assert [claim["id"] for claim in by_severity(claim.to_document() for claim in claims)] == ["c", "b", "d", "e", "a"]


def test_worsening_is_positive_where_the_candidate_is_worse():
    assert worsening(make_claim(ratio=1.1).to_document()) == pytest.approx(0.1)
    assert worsening(make_claim(ratio=1.1, direction="higher").to_document()) == pytest.approx(-0.1)
    assert worsening(make_claim(scale="difference", difference=-0.2, direction="higher").to_document()) == pytest.approx(0.2)
    assert worsening(make_claim(ratio=None).to_document()) is None


@pytest.mark.parametrize("more", [{}, {"layer_type": "mlp"}, {"percentile": 95.0}, {"percentile": 95.0, "stratum": "prompt_tokens[0,512)"}])
@pytest.mark.parametrize("metric", METRICS)
def test_a_claims_key_is_its_id_without_the_cell(metric, more):
    spec = ClaimSpec(metric=metric, margin=0.03, blocking=True, **more)
    assert make_claim(id=f"a.b-c/chip_1/{spec.key}", trace="a.b-c", hardware="chip_1", metric=metric).key == spec.key
