"""Cohorts: shares of traffic and of the regression add up, a planted cohort is found in each dimension, little data names none."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gates.attribution.cohorts import LEAST_COUNT, find_cohorts
from gates.strata import prompt_bins
from replay.execution.tables import STEPS_SCHEMA
from replay.ingress.trace import TRACE_SCHEMA
from tests.attribution.attribution_cells import make_claim
from tests.runs import make_run
from tests.step_tables import make_trace

N = 2000
BINS = prompt_bins((512, 2048))
DRAW = np.random.default_rng(4)
PROMPTS = DRAW.integers(1, 4000, N)
OUTPUTS = DRAW.integers(2, 2000, N)
GROUP = DRAW.integers(0, 20, N) ** 2 // 40
BASE_S = DRAW.uniform(1.0, 2.0, N)
PLACE = np.arange(N)
TTFT = make_claim(percentile=95.0)


def trace(**columns):
    made = make_trace(np.arange(N, dtype=float), PROMPTS, OUTPUTS)
    requests = made.requests
    for name, values in columns.items():
        if name not in requests.column_names:
            requests = requests.append_column(TRACE_SCHEMA.field(name), values)
        else:
            requests = requests.set_column(requests.column_names.index(name), TRACE_SCHEMA.field(name), values)
    return replace(made, requests=requests)


def run(values, running=None):
    made = make_run(list(values), prompt_tokens=PROMPTS.tolist())
    columns = {field.name: pa.array(np.zeros(N), field.type) for field in STEPS_SCHEMA}
    columns |= {"start_s": pa.array(PLACE.astype(float)), "running": pa.array(np.full(N, 4) if running is None else running)}
    requests = made.requests
    for name, column in (("arrival_s", PLACE), ("sent_s", PLACE), ("queue_s", np.zeros(N))):
        requests = requests.set_column(requests.column_names.index(name), requests.schema.field(name), pa.array(column.astype(float)))
    return replace(made, requests=requests, steps=pa.table(columns, schema=STEPS_SCHEMA))


def cohorts(slow, *, of=None, claim=TTFT, **more):
    """Cohorts where the requests of `slow` [requests] take three seconds more."""
    runs = run(BASE_S, **more), run(BASE_S + 3.0 * slow, **more)
    return find_cohorts(claim, of or trace(), runs, bins=BINS, slo=None)


def carriers(found):
    return {cohort.dimension: cohort.cohort for cohort in found if cohort.carries}


def test_a_prompt_bin_that_got_slower_carries_the_regression_and_is_named_with_its_traffic():
    found = cohorts(PROMPTS >= 2048)
    assert carriers(found) == {"prompt_tokens": "prompts of 2048 tokens or more"}
    one = next(cohort for cohort in found if cohort.carries)
    assert one.traffic_ratio == pytest.approx((PROMPTS >= 2048).mean())
    assert one.requests == (PROMPTS >= 2048).sum()
    shares = f"{one.traffic_ratio:.0%} of the requests, {one.regression_ratio:.0%} of the regression"
    assert one.sentence == f"prompts of 2048 tokens or more: {shares}"
    json.dumps(one.to_document())


@pytest.mark.parametrize(
    ("slow", "more", "dimension", "cohort"),
    [
        (OUTPUTS >= 1024, {}, "output_tokens", "outputs of 1024 or more tokens"),
        (PLACE >= N - 200, {}, "window", "arrived from 1799 to 1999 s"),
        (PLACE % 10 == 3, {"running": np.where(PLACE % 10 == 3, 64, 4)}, "batch", "started beside 32 to 127 sequences"),
        (GROUP == 2, {"of": trace(prefix_blocks=pa.array([[int(one), 7] for one in GROUP]))}, "prefix_group", "beginning with block 2"),
        (GROUP == 1, {"of": trace(priority=pa.array(GROUP))}, "priority", "priority 1"),
        (GROUP == 1, {"of": trace(model=pa.array([f"lora-{one}" for one in GROUP]))}, "model", "model lora-1"),
    ],
)
def test_a_planted_cohort_is_found_in_its_dimension(slow, more, dimension, cohort):
    assert carriers(cohorts(slow, **more)) == {dimension: cohort}


def test_shares_of_each_dimension_add_up():
    found = cohorts(PROMPTS >= 2048, of=trace(prefix_blocks=pa.array([[int(one)] if one else None for one in GROUP])))
    assert {cohort.dimension for cohort in found} == {"prompt_tokens", "output_tokens", "window", "prefix_group"}
    for dimension in {cohort.dimension for cohort in found}:
        own = [cohort for cohort in found if cohort.dimension == dimension]
        assert sum(cohort.traffic_ratio for cohort in own) == pytest.approx(1.0)
        assert sum(cohort.regression_ratio for cohort in own) == pytest.approx(1.0)
        assert len(own) > 1


def test_a_regression_that_is_everywhere_is_carried_by_no_cohort():
    assert carriers(cohorts(DRAW.random(N) < 0.3)) == {}


@pytest.mark.parametrize("count", [0, LEAST_COUNT - 1])
def test_few_slower_requests_say_nothing_about_where_they_are(count):
    slow = np.zeros(N, dtype=bool)
    slow[np.flatnonzero(BASE_S < 1.5)[:count]] = True
    assert cohorts(slow) == ()


@pytest.mark.parametrize("metric", ["memory_stall_ratio", "throughput_tokens_per_s", "task_accuracy_ratio"])
def test_claims_about_the_whole_run_have_no_cohorts(metric):
    assert cohorts(PROMPTS >= 2048, claim=make_claim(metric=metric, percentile=None)) == ()


def test_only_the_claims_own_stratum_counts():
    found = cohorts(OUTPUTS >= 1024, claim=make_claim(percentile=95.0, stratum="prompt_tokens[512,2048)"))
    assert all(cohort.dimension != "prompt_tokens" for cohort in found)
    inside = (PROMPTS >= 512) & (PROMPTS < 2048)
    assert sum(cohort.requests for cohort in found if cohort.dimension == "window") == inside.sum()
