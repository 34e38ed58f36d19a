"""Expert parallelism accepted on uniform routing (deepseek-ai/DeepEP 343 and 393): recorded routing decides, and none is made up.

A mixture of 128 experts on eight accelerators, its experts split by columns (the baseline) or dealt out whole (the candidate), through a
whole replay. Recorded loads are log-normal by rank with a busiest rank of twice the mean, as was found for DeepSeek-V3.
"""

import numpy as np
import pytest

from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.ingress.trace import with_expert_load
from replay.pipeline import run
from replay.specs.routing import ExpertLoad
from tests.models import SMALL_EXPERTS, mapping, round_hardware
from tests.step_tables import make_trace

RANKS, SKEW = 8, 2.0
MODEL = SMALL_EXPERTS
TENSOR = ("[parallelism]", f"tensor = {RANKS}")
EXPERT = (*TENSOR, f"expert = {RANKS}")
TRAVELLING = (*EXPERT, 'expert_exchange = "all_to_all"')
UNIFORM = ExpertLoad(origin="stated")


def skewed():
    """Return loads whose logarithms are normal by rank, stretched until the busiest of each layer has SKEW times the mean."""
    rows = []
    for draw in np.random.default_rng(18).standard_normal((MODEL.layers_count, RANKS)):
        low, high = 0.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            loads = np.exp(middle * (draw - draw.max()))
            low, high = (middle, high) if loads.max() / loads.mean() < SKEW else (low, middle)
        rows.append(tuple(np.repeat(np.exp(low * (draw - draw.max())), MODEL.experts.experts_count // RANKS).tolist()))
    return ExpertLoad(origin="drawn", layers=tuple(rows))


def trace():
    draw, count = np.random.default_rng(7), 150
    lengths = [np.rint(median * np.exp(0.5 * draw.standard_normal(count))).clip(1, 4000) for median in (1500, 60)]
    return make_trace(np.append(0.0, np.cumsum(draw.exponential(0.05, count - 1))), *(column.astype(int).tolist() for column in lengths))


DEVICES = {"round": round_hardware(), "b200-sxm": read_hardware("b200-sxm")}


def p99_s(device, routing, *lines):
    """Return the p99 of TTFT and of the end-to-end time."""
    done = run(with_expert_load(trace(), routing), MODEL, DEVICES[device], mapping(*lines), seed=0)
    return {name: percentile(done.requests[name].to_numpy(), 99) for name in ("ttft_s", "e2e_s")}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exchange", [EXPERT, TRAVELLING], ids=["all_reduce", "all_to_all"])
def test_whole_experts_on_skewed_ranks_are_slower_at_the_tail_than_split_ones(device, exchange):
    routing = skewed()
    split, whole = (p99_s(device, routing, *lines) for lines in (TENSOR, exchange))
    even = p99_s(device, UNIFORM, *exchange)
    for metric, before in split.items():
        assert whole[metric] > 1.03 * before, metric
        assert whole[metric] > 1.03 * even[metric], metric  # it is the skew: an all-to-all costs decode steps more on any routing


@pytest.mark.parametrize("device", DEVICES)
def test_whole_experts_under_uniform_routing_are_not(device):
    split, whole = (p99_s(device, UNIFORM, *lines) for lines in (TENSOR, EXPERT))
    for metric, before in split.items():
        assert whole[metric] < 1.01 * before, metric


def test_placement_from_the_recorded_routing_restores_what_skew_took():
    """The report's fix: hot experts lie apart, on ranks that are then loaded alike."""
    routing = skewed()
    placed = (*EXPERT, "[placement]", 'experts = "balanced"')
    split, linear, balanced = (p99_s("b200-sxm", routing, *lines)["ttft_s"] for lines in (TENSOR, EXPERT, placed))
    assert balanced < linear
    assert balanced < 1.01 * split


def test_a_trace_that_says_nothing_about_routing_cannot_judge_it():
    with pytest.raises(SpecError, match="nothing says how often each expert is chosen; want a trace with its expert load"):
        run(trace(), MODEL, DEVICES["round"], mapping(*EXPERT), seed=0)
    run(trace(), MODEL, DEVICES["round"], mapping(*TENSOR), seed=0)
