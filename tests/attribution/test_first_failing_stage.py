"""First failing stage and bottleneck class on cells whose true cause is planted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gates.attribution.bottleneck import find_bottleneck
from gates.attribution.invariants import check_stages
from gates.attribution.stage import first_failing_stage
from gates.attribution.trials import Trials
from gates.finding import Finding
from gates.rejections import LIMITS
from replay.lowering.kernel_plan import Decision
from replay.tiling.terms import BOTTLENECK_OF_TERM, COLLECTIVE_LAYER
from tests.attribution.attribution_cells import Cell, Cost, mapping

KNOBS = {
    "lowering": ("formats__kv", "fp8"),
    "tiling": ("gemm__split_k", 4),
    "execution": ("batching__max_running", 2),
}


def trials_of(cost, candidate):
    baseline = mapping()
    cell = Cell(baseline, lambda spec: cost({setting.knob: setting.value for setting in spec.settings}))
    return Trials(
        replayer=cell, baseline=baseline, candidate=candidate, judge=cell.judge, judgement=cell.judge(candidate, cell.run(candidate))
    )


def failing(trials, findings, blamed):
    return first_failing_stage(trials, check_stages(trials, findings), blamed)


def planted(stage):
    """A cost that grows with the knob of one stage, beside harmless knobs of all the others."""
    name, _ = KNOBS[stage]
    knob = name.replace("__", ".")
    slow = Cost().grown("decode", "mlp", "compute_s", 1.5)

    def cost(values):
        if knob not in values:
            return Cost()
        return Cost(queueing=3.0) if stage == "execution" else slow

    return knob, trials_of(cost, mapping(**dict(KNOBS.values())))


@pytest.mark.parametrize("stage", KNOBS)
def test_the_stage_of_the_planted_knob_is_named(stage):
    knob, trials = planted(stage)
    failure = failing(trials, (), frozenset({knob}))
    assert failure.stage == stage


def test_a_dearer_stage_whose_knobs_need_no_undoing_is_not_named():
    def cost(values):
        base = Cost().grown("decode", "mlp", "compute_s", 1.02) if "formats.kv" in values else Cost()
        return base.grown("decode", "mlp", "compute_s", 1.5) if "gemm.split_k" in values else base

    trials = trials_of(cost, mapping(formats__kv="fp8", gemm__split_k=4))
    assert failing(trials, (), frozenset({"gemm.split_k"})).stage == "tiling"
    assert failing(trials, (), trials.knobs).stage == "lowering"


def test_growth_below_the_tolerance_breaks_no_invariant():
    def cost(values):
        return replace(Cost().grown("decode", "mlp", "compute_s", 1.004), queueing=2.0) if values else Cost()

    trials = trials_of(cost, mapping(gemm__split_k=4))
    assert failing(trials, (), trials.knobs).stage == "quality_sla"


def test_a_cost_that_grows_in_one_phase_only_counts_although_the_total_falls():
    def cost(values):
        return Cost().grown("decode", "mlp", "compute_s", 0.5).grown("prefill", "mlp", "compute_s", 1.5) if values else Cost()

    trials = trials_of(cost, mapping(gemm__split_k=4))
    failure = failing(trials, (), trials.knobs)
    assert failure.stage == "tiling"
    assert "prefill" in failure.evidence
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert (found.bottleneck_class, found.layer_type, found.phase) == ("compute", "mlp", "prefill")


def decision(effective, reason, stage="lowering"):
    return Decision(knob="gemm.backend@mlp.decode", requested="matrix", effective=effective, reason=reason, stage=stage)


def test_a_new_fallback_breaks_the_stage_that_took_the_decision_even_where_no_cost_shows():
    def cost(values):
        fallback = decision("vector", "1023 columns are not aligned")
        return Cost(queueing=2.0, decisions=(fallback,)) if values else Cost(decisions=(decision("matrix", None),))

    trials = trials_of(cost, mapping(formats__kv="fp8"))
    failure = failing(trials, (), trials.knobs)
    assert failure.stage == "lowering"
    assert failure.evidence == "gemm.backend@mlp.decode asks for matrix and gets vector: 1023 columns are not aligned"


def test_a_fallback_that_the_baseline_has_too_is_not_the_candidates_fault():
    known = (decision("vector", "1023 columns are not aligned"),)
    trials = trials_of(lambda values: Cost(queueing=2.0 if values else 1.0, decisions=known), mapping(formats__kv="fp8"))
    assert failing(trials, (), trials.knobs).stage == "quality_sla"


def test_a_smaller_pool_that_makes_the_replay_preempt_fails_tiling_for_memory_capacity():
    def cost(values):
        return Cost(blocks=100, preemptions=7, queueing=2.0) if values else Cost()

    trials = trials_of(cost, mapping(kv__memory_ratio=0.5))
    failure = failing(trials, (), trials.knobs)
    assert failure.stage == "tiling"
    assert "from 16000 to 1600 tokens" in failure.evidence
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert found.bottleneck_class == "memory_capacity"


def test_a_finding_against_the_candidate_fails_its_stage():
    trials = trials_of(lambda values: Cost(rejected=(("kv_capacity", len(values)),)), mapping(kv__memory_ratio=0.5))
    finding = Finding(code="requests_rejected", message="1 request never fits", effect="disproves", stage="tiling")
    failure = failing(trials, (finding,), trials.knobs)
    assert (failure.stage, failure.evidence) == ("tiling", "1 request never fits")


def test_a_finding_that_no_earlier_stage_owns_is_charged_to_the_execution_knob_that_brings_it():
    trials = trials_of(lambda values: Cost(rejected=(("kv_capacity", len(values)),)), mapping(batching__max_batched_tokens=100_000))
    finding = Finding(code="requests_rejected", message="1 request never fits", effect="disproves", stage="tiling")
    failure = failing(trials, (finding,), trials.knobs)
    assert (failure.stage, failure.evidence) == ("execution", "1 request never fits")


@pytest.mark.parametrize("also_queues", [False, True])
def test_requests_beyond_the_context_limit_are_named_before_claims_and_are_no_lack_of_memory(also_queues):
    def cost(values):
        return Cost(rejected=(("context_limit", 244),), queueing=3.0 if also_queues else 1.0) if values else Cost()

    trials = trials_of(cost, mapping(batching__max_context_tokens=4200))
    limit = LIMITS["context_limit"]
    finding = Finding(code="requests_rejected", message="244 requests are refused", effect="disproves", stage=limit.stage)
    failure = failing(trials, (finding,), trials.knobs)
    assert (failure.stage, failure.evidence) == ("execution", "244 requests are refused")
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert found.bottleneck_class == limit.bottleneck_class == "queueing"
    assert "244 more requests are refused, by a context limit" in found.message
    assert "pool" not in found.message


def test_a_shrunken_pool_is_not_blamed_for_requests_that_the_context_limit_refuses():
    def cost(values):
        return Cost(blocks=900, rejected=(("context_limit", 5),)) if "kv.memory_ratio" in values else Cost()

    trials = trials_of(cost, mapping(kv__memory_ratio=0.85))
    assert failing(trials, (), trials.knobs).stage == "quality_sla"


@pytest.mark.parametrize(
    ("layer", "term", "factor", "expected"),
    [
        ("mlp", "compute_s", 2.0, "compute"),
        ("mlp", "memory_s", 3.0, "memory_bandwidth"),
        ("attention", "memory_s", 2.0, "memory_bandwidth"),
        ("attention", "launch_s", 20.0, "launch_sync"),
        ("mlp", "sync_s", 20.0, "launch_sync"),
        ("all_reduce", "sync_s", 4.0, "interconnect"),
    ],
)
def test_the_class_is_that_of_the_term_that_grew(layer, term, factor, expected):
    trials = trials_of(lambda values: Cost().grown("decode", layer, term, factor) if values else Cost(), mapping(gemm__split_k=4))
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert (found.bottleneck_class, found.layer_type, found.phase) == (expected, layer, "decode")
    assert f"of {layer} in decode steps grows from" in found.message


@pytest.mark.parametrize("term", BOTTLENECK_OF_TERM)
@pytest.mark.parametrize("layer", ["mlp", "attention", COLLECTIVE_LAYER])
def test_only_collectives_are_the_interconnect_and_every_other_term_is_as_the_one_table_says(layer, term):
    def cost(values):
        layers = {name: dict(terms) for name, terms in Cost().decode.items()}
        layers[layer][term] = layers[layer][term] * 3 + 5e-3 if values else layers[layer][term]
        return replace(Cost(), decode=layers)

    trials = trials_of(cost, mapping(gemm__split_k=4))
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert found.bottleneck_class == ("interconnect" if layer == COLLECTIVE_LAYER else BOTTLENECK_OF_TERM[term])


def test_host_time_beyond_the_device_is_launch_and_synchronisation():
    trials = trials_of(lambda values: Cost(host_s=0.05 if values else 0.0), mapping(graph__mode="none"))
    found = find_bottleneck(trials, trials.knobs)
    assert found is not None
    assert (found.bottleneck_class, found.layer_type) == ("launch_sync", None)


def test_waiting_with_unchanged_step_costs_is_queueing():
    _, trials = planted("execution")
    found = find_bottleneck(trials, frozenset({"batching.max_running"}))
    assert found is not None
    assert found.bottleneck_class == "queueing"


def test_only_the_knobs_to_undo_decide_the_class():
    def cost(values):
        base = Cost().grown("decode", "mlp", "compute_s", 1.02) if "gemm.split_k" in values else Cost()
        return replace(base, queueing=3.0 if "batching.max_running" in values else 1.0)

    trials = trials_of(cost, mapping(gemm__split_k=4, batching__max_running=2))
    found = find_bottleneck(trials, frozenset({"batching.max_running"}))
    assert found is not None
    assert found.bottleneck_class == "queueing"
