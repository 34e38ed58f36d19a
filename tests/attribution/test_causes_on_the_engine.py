"""Causes on the real engine: one bad knob in a described accelerator, found with its stage and class beside a harmless one."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from gates.attribution.cause import CauseQuestion, find_cause
from gates.attribution.patch import MappingFile
from gates.attribution.trials import Judgement
from gates.checks import Evidence, run_checks
from gates.owners import Owners
from gates.rejections import LIMITS
from gates.verdict import decide_cell
from replay.catalog.hardware import read_hardware
from replay.documents import shipped_path
from replay.ingress.synth import read_recipe, synthesize
from replay.pipeline import Replayer
from replay.specs.mapping import parse_mapping
from tests.attribution.attribution_cells import MARGIN, make_claim
from tests.models import LLAMA_8B
from tests.runs import policy_of

HARMLESS = "[graph]\nsizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512]\n"
CASES = [
    ("gemm.tile", "[gemm]\ntile = [256, 128, 32]\n", "tiling", "compute"),
    ("gemm.backend", '[gemm]\nbackend = "vector"\n', "lowering", "compute"),
    ("placement.weights", '[placement]\nweights = "host"\n', "tiling", "memory_bandwidth"),
    ("kv.memory_ratio", "[kv]\nmemory_ratio = 0.23\n", "tiling", "memory_capacity"),
    ("gemm.split_k", "[gemm]\nsplit_k = 16\n", "tiling", "compute"),  # every part fills its pipeline again
    ("batching.max_running", "[batching]\nmax_running = 2\n", "execution", "queueing"),
]


@pytest.fixture(scope="module")
def replayer():
    trace = synthesize(
        replace(read_recipe(shipped_path("traces") / "demo" / "recipe.toml"), requests_count=250, rate_per_s=3.0), seed=1, name="t"
    )
    return Replayer(trace=trace, model=LLAMA_8B, hardware=read_hardware("a100-sxm-80gb"), seed=0)


def judge_against(baseline):
    def judge(_, run):
        before, after = (pc.mean(arm.requests["e2e_s"]).as_py() for arm in (baseline, run))
        outcome = "holds" if after / before <= 1 + MARGIN else "disproved"
        claim = make_claim(metric="e2e_s", percentile=None, baseline=before, candidate=after, ratio=after / before, outcome=outcome)
        return Judgement(
            decision="release" if outcome == "holds" else "rollback",
            basis="proven_safe" if outcome == "holds" else "regression",
            claims=(claim,),
        )

    return judge


@pytest.mark.parametrize(("knob", "text", "stage", "bottleneck"), CASES, ids=[case[0] for case in CASES])
def test_the_bad_knob_is_found_with_its_stage_and_class(replayer, knob, text, stage, bottleneck):
    text = 'name = "c"\n' + HARMLESS + text
    baseline, candidate = parse_mapping('name = "b"', "b"), parse_mapping(text, "c")
    judge = judge_against(replayer.run(baseline))
    judgement = judge(candidate, replayer.run(candidate))
    assert judgement.basis == "regression"
    cause = find_cause(
        CauseQuestion(
            replayer=replayer,
            baseline=baseline,
            candidate=candidate,
            judgement=judgement,
            findings=(),
            judge=judge,
            owners=Owners(),
            mapping_file=MappingFile(name="c.toml", text=text),
        )
    )
    assert cause.mitigation is not None
    assert (cause.mitigation["revert"], cause.first_failing_stage, cause.bottleneck_class) == ([knob], stage, bottleneck)
    assert {row["knob"]: row["share"] for row in cause.attribution}[knob] == pytest.approx(1.0, abs=0.1)


REFUSALS = [
    ("kv.memory_ratio", "[kv]\nmemory_ratio = 0.21\n", "kv_capacity"),
    ("batching.max_context_tokens", "[batching]\nmax_context_tokens = 2000\n", "context_limit"),
]


@pytest.mark.parametrize(("knob", "text", "reason"), REFUSALS, ids=[case[0] for case in REFUSALS])
def test_a_limit_that_refuses_requests_is_found_although_every_latency_holds(replayer, knob, text, reason):
    text = 'name = "c"\n' + HARMLESS + text
    baseline, candidate = parse_mapping('name = "b"', "b"), parse_mapping(text, "c")

    def findings(run):
        provenance = replayer.trace.provenance
        policy = policy_of("allow_synthetic = true")
        return run_checks(Evidence(baseline=replayer.run(baseline), candidate=run, provenance=provenance, policy=policy))

    def judge(_, run):
        claims = (make_claim(),)
        decision, basis = decide_cell(claims, findings(run))
        return Judgement(decision=decision, basis=basis, claims=claims)

    run = replayer.run(candidate)
    assert [name for name, _ in run.rejected] == [reason]
    cause = find_cause(
        CauseQuestion(
            replayer=replayer,
            baseline=baseline,
            candidate=candidate,
            judgement=judge(candidate, run),
            findings=findings(run),
            judge=judge,
            owners=Owners(),
            mapping_file=None,
        )
    )
    assert cause.mitigation is not None
    assert cause.mitigation["revert"] == [knob]
    assert (cause.first_failing_stage, cause.bottleneck_class) == (LIMITS[reason].stage, LIMITS[reason].bottleneck_class)
    bottleneck = next(row["message"] for row in cause.reasons if row["code"] == "bottleneck")
    assert ("pool" in bottleneck) == (reason == "kv_capacity")
