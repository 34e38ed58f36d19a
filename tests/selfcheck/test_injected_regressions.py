"""The gate's own error rates: what is injected, how draws stand for traces, what is counted and cited."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gates.measure import measure_cell
from gates.plan import RULES, cell_of, make_plan
from gates.selfcheck.document import CitedSelfcheck
from gates.selfcheck.pool import Pool
from gates.selfcheck.rates import Trials
from gates.selfcheck.regressions import Regression
from gates.statistics.proportion import wilson
from replay import documents
from replay.assembly.headline import headline_of
from replay.errors import SpecError
from replay.provenance import digest_document
from tests.runs import lognormal_s, make_run, policy_of

POLICY = 'resimulations = 200\nmax_resimulations = 200\n[blocking]\nttft_s = { p95 = "3 %" }\n'
DRAWS = 400
RUN = make_run(lognormal_s(2000))
CELL = make_plan(policy_of(POLICY), [cell_of(RUN)], 3).cells[0]
LEVEL = Regression(kind="service", level=0.03, factors={"mlp": 1.01})


def pool_of(shift, spread, seed=0):
    """A baseline's p95 on many draws, and a candidate worse by `shift` in the long run; its ratio differs from draw to draw."""
    draw = np.random.default_rng(seed)
    baseline = np.exp(0.05 * draw.standard_normal((DRAWS, 1)))
    return Pool(baseline=baseline, candidates=(baseline * np.exp(shift + spread * draw.standard_normal((DRAWS, 1))),))


def row(pool, step_error_ratio=0.0, amplification=2.0):
    recorded = measure_cell(CELL, RUN, RUN)
    trials = Trials.of(CELL, recorded, DRAWS, amplification=np.full(len(CELL.claims), amplification), step_error_ratio=step_error_ratio)
    return trials.row(LEVEL, pool, 0, 0.0)


def applied(regression, **run):
    return regression.applied(headline_of(make_run(lognormal_s(1000), **run))).requests["ttft_s"].to_numpy()


def test_a_uniform_regression_makes_every_latency_longer_and_none_changes_nothing():
    before = headline_of(make_run(lognormal_s(1000))).requests["ttft_s"].to_numpy()
    assert np.allclose(applied(Regression(kind="uniform", level=0.1)), 1.1 * before)
    assert np.array_equal(applied(Regression(kind="none")), before)


def test_a_tail_regression_leaves_nine_tenths_alone_and_lengthens_the_last_hundredth_whole():
    before = headline_of(make_run(lognormal_s(1000))).requests["ttft_s"].to_numpy()
    grown = applied(Regression(kind="tail", level=0.1)) / before - 1.0
    order = np.argsort(before)
    assert np.abs(grown[order[:899]]).max() < 1e-12
    assert np.allclose(grown[order[970:]], 0.1)
    assert all(after >= earlier - 1e-12 for earlier, after in pairwise(grown[order]))


def test_a_regression_of_a_stratum_leaves_the_others_alone():
    prompts = [100] * 500 + [5000] * 500
    before = headline_of(make_run(lognormal_s(1000), prompt_tokens=prompts)).requests["ttft_s"].to_numpy()
    after = applied(Regression(kind="stratum", level=0.1, stratum="prompt_tokens[2048,8192)"), prompt_tokens=prompts)
    assert np.array_equal(after[:500], before[:500])
    assert np.allclose(after[500:], 1.1 * before[500:])


def test_missing_latencies_stay_missing():
    values = [None, *lognormal_s(9)]
    changed = Regression(kind="uniform", level=0.1).applied(headline_of(make_run(values))).requests["ttft_s"]
    assert changed.null_count == 1


def test_what_changes_nothing_is_always_released():
    found = row(pool_of(0.0, 0.0))
    assert (found.release.rate, found.trials) == (1.0, DRAWS)


def test_at_the_margin_about_one_in_twenty_is_released_and_far_beyond_none():
    at_margin = row(pool_of(math.log(1.03), 0.01))
    assert 0.01 <= at_margin.release.rate <= 0.10
    assert at_margin.release.low < 0.05 < at_margin.release.high + 0.05
    beyond = row(pool_of(math.log(1.12), 0.01))
    assert (beyond.release.rate, beyond.regression.rate) == (0.0, 1.0)


def test_rates_of_the_three_decisions_add_up():
    found = row(pool_of(0.02, 0.01))
    assert found.release.rate + found.regression.rate + found.inconclusive.rate == pytest.approx(1.0)


def test_the_kernels_error_makes_the_gate_cautious_but_not_wrong():
    known, unknown = row(pool_of(0.0, 0.003)), row(pool_of(0.0, 0.003), step_error_ratio=0.01)
    assert known.release.rate == 1.0
    assert unknown.release.rate < 0.6
    assert unknown.regression.rate <= 0.07
    assert row(pool_of(math.log(1.03), 0.003), step_error_ratio=0.01).release.rate <= 0.09


def test_wilsons_interval_is_that_of_the_textbook():
    low, high = wilson(10, 100)
    assert (round(low, 4), round(high, 4)) == (0.0552, 0.1744)
    assert wilson(0, 59)[1] == pytest.approx(0.0611, abs=1e-4)


def document(**changes):
    share = {"rate": 1.0, "low": 0.98, "high": 1.0}
    none = {"rate": 0.0, "low": 0.0, "high": 0.02}
    rows = [
        {"kind": kind, "level": level, "shift": level, "trials": 300, "release": share, "regression": none, "inconclusive": none}
        for kind, level in (("none", 0.0), ("service", 0.03), ("service", 0.1))
    ]
    spec = CELL.spec
    names = ("trace", "trace_digest", "hardware", "hardware_digest", "model", "model_digest", "baseline_mapping_digest")
    cell = {name: getattr(spec, name) for name in names} | {"margin": 0.03, "draws": 300, "step_error_ratio": 0.0, "rows": rows}
    whole = {
        "schema_version": "1", "tool_version": "0.1.0", "as_of": "2026-01-01T00:00:00+00:00", "valid_days": 90,
        "policy_digest": CELL.policy.digest, "rules_digest": digest_document(RULES), "seed": "0", "cells": [cell],
    }  # fmt: skip
    documents.check(whole, "selfcheck.v1", "example")
    return CitedSelfcheck(name="selfcheck.json", document=whole | changes)


def test_a_self_check_of_this_trace_and_policy_is_cited_with_its_rates():
    found = document().finding(CELL.spec, CELL.policy, "2026-02-01T00:00:00+00:00")
    assert (found.code, found.effect) == ("selfcheck", "informs")
    assert "rolls back 0 % of unchanged mappings" in found.message
    assert "at the margin of 3 %" in found.message


def test_an_old_or_foreign_self_check_is_said_to_be_one():
    assert document().finding(CELL.spec, CELL.policy, "2026-05-01T00:00:00+00:00").code == "selfcheck_expired"
    assert document().finding(replace(CELL.spec, trace_digest="sha256:" + "00" * 32), CELL.policy, None).code == "selfcheck_foreign"
    for key in ("policy_digest", "rules_digest"):
        assert document(**{key: "sha256:" + "00" * 32}).finding(CELL.spec, CELL.policy, None).code == "selfcheck_foreign"


def test_a_self_check_made_at_no_time_is_refused(tmp_path):
    from gates.selfcheck.document import read_selfcheck

    path = tmp_path / "selfcheck.json"
    path.write_text(json.dumps(document(as_of="yesterday").document))
    with pytest.raises(SpecError, match="as_of is 'yesterday'"):
        read_selfcheck(path, "selfcheck.json")
