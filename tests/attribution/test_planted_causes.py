"""Random mapping changes on the real engine with planted bad knobs: who is blamed, and whether the revert is as small as can be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from gates.attribution.effects import claims_to_explain, knob_effects
from gates.attribution.revert import smallest_revert
from gates.attribution.trials import Judgement, Trials
from replay.catalog.hardware import read_hardware
from replay.documents import shipped_path
from replay.ingress.synth import read_recipe, synthesize
from replay.pipeline import Replayer
from replay.specs.mapping import parse_mapping
from tests.attribution.attribution_cells import make_claim
from tests.models import LLAMA_8B

LIMITS = {"batching.max_batched_tokens": 256, "batching.max_running": 32}
HARMLESS = {
    "graph.sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256], "kv.memory_ratio": 0.85, "kv.block_tokens": 32,
    "all_reduce.one_shot_max_bytes": 262144,
    "kv.policy": "whole_prompt", "batching.unfit": "skip", "kv.watermark_ratio": 0.01, "kv.prefix_cache": True,
}  # fmt: skip
BAD = {
    "gemm.tile": [256, 128, 32], "placement.weights": "host", "gemm.backend": "vector", "attention.backend": "unfused",
    "gemm.split_k": 16, "batching.max_running": 3, "power.max_clock_hz": 7e8, "layout.activations": "column_major",
}  # fmt: skip
MARGIN = 0.02
CASES, RIGHT_RATIO, MINIMAL_RATIO = 60, 0.97, 0.95


@pytest.fixture(scope="module")
def replayer():
    recipe = replace(read_recipe(shipped_path("traces") / "demo" / "recipe.toml"), requests_count=60, rate_per_s=2.0)
    return Replayer(trace=synthesize(recipe, seed=1, name="t"), model=LLAMA_8B, hardware=read_hardware("a100-sxm-80gb"), seed=0)


def mapping(settings):
    return parse_mapping("\n".join(['name = "m"', *(f"{name} = {_toml(value)}" for name, value in settings.items())]), "m")


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)


def trials_of(replayer, changed):
    baseline, candidate = mapping(LIMITS), mapping({**LIMITS, **changed})
    before = pc.mean(replayer.run(baseline).requests["e2e_s"]).as_py()

    def judge(_, run):
        after = pc.mean(run.requests["e2e_s"]).as_py()
        outcome = "holds" if after / before <= 1 + MARGIN else "disproved"
        claim = make_claim(metric="e2e_s", percentile=None, baseline=before, candidate=after, ratio=after / before, outcome=outcome)
        decision, basis = ("release", "proven_safe") if outcome == "holds" else ("rollback", "regression")
        return Judgement(decision=decision, basis=basis, claims=(claim,))

    run = replayer.run(candidate)
    return Trials(replayer=replayer, baseline=baseline, candidate=candidate, judge=judge, judgement=judge(candidate, run))


def brute_force(trials):
    """Return the size of the smallest releasing revert, every smaller set tried."""
    for size in range(1, len(trials.knobs) + 1):
        if any(trials.releases(some) for some in itertools.combinations(sorted(trials.knobs), size)):
            return size
    raise AssertionError("not even the baseline releases")


def cases(bad_count):
    """Yield drawn changes with as many bad knobs among one to six harmless ones (2 to 8 changed in all)."""
    draw = np.random.default_rng(20 + bad_count)
    for _ in range(CASES // bad_count):
        bad = draw.choice(sorted(BAD), size=bad_count, replace=False).tolist()
        free = sorted(set(HARMLESS) - set(bad))
        harmless = draw.choice(free, size=int(draw.integers(1, 9 - bad_count)), replace=False).tolist()
        order = draw.permutation([*bad, *harmless]).tolist()
        yield set(bad), {name: {**HARMLESS, **BAD}[name] for name in order}


@pytest.mark.slow
@pytest.mark.parametrize("bad_count", [1, 2])
def test_planted_knobs_are_blamed_and_the_revert_is_minimal(replayer, bad_count):
    right, minimal, sought = [], [], 0
    for bad, changed in cases(bad_count):
        trials = trials_of(replayer, changed)
        if trials.judgement.decision == "release" or any(trials.releases(trials.knobs - {knob}) for knob in bad):
            continue  # a planted knob does no harm here: beside the others, or on its own
        sought += 1
        effects = knob_effects(trials, claims_to_explain(trials.judgement.claims))
        found = smallest_revert(trials, {effect.knob: effect.harm for effect in effects})
        blamed = sorted(effects, key=lambda effect: -effect.harm)[:bad_count]
        right.append({effect.knob for effect in blamed} == bad and bad <= set(found.knobs))
        minimal.append(len(found.knobs) == brute_force(trials))
    print(f"{sought} cases: right {np.mean(right):.1%}, minimal {np.mean(minimal):.1%}")
    assert sought >= CASES // bad_count // 2
    assert np.mean(right) >= (RIGHT_RATIO if bad_count == 1 else MINIMAL_RATIO)
    assert np.mean(minimal) >= MINIMAL_RATIO
