"""Chunks of prompts in a pipeline that holds one step at a time (vllm-project/vllm 41682): stages idle; with a step in each they do not.

A 70B model in four stages and 16 prompts of 128K tokens with one output token, as in the report, through a whole replay. Figures are the
model's own, not the report's: there 4K chunks took 20 % of the throughput, on another model and device.
"""

import numpy as np
import pytest

from replay.assembly.assemble import summary
from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.pipeline import run
from replay.specs.model import ModelSpec
from tests.models import mapping
from tests.step_tables import make_trace

MODEL = ModelSpec(
    name="m-70b",
    layers_count=80,
    hidden_size=8192,
    query_heads=64,
    kv_heads=8,
    head_size=128,
    intermediate_size=28672,
    vocabulary_size=128256,
    max_context_tokens=131072,
    weights_format="fp8",
)
STAGES, PROMPTS, PROMPT_TOKENS = 4, 16, 131071
WHOLE_TOKENS, CHUNK_TOKENS = 131072, 4096
LONG = make_trace([0.0] * PROMPTS, [PROMPT_TOKENS] * PROMPTS, [1] * PROMPTS)
DEVICES = ("h100-sxm", "b200-sxm")


def replayed(device, budget_tokens, inflight, trace=LONG):
    lines = ("[parallelism]", f"pipeline = {STAGES}", "[batching]", "max_running = 64", f"max_batched_tokens = {budget_tokens}")
    return run(trace, MODEL, read_hardware(device), mapping(*lines, f"inflight_microbatches = {inflight}"), seed=0)


def tokens_per_s(done):
    return summary(done)["wall_clock_throughput_tokens_per_s"]


def stages_busy_ratio(done):
    """Part of the time in which a stage works, over all stages."""
    works_s = np.maximum(done.steps["device_s"].to_numpy(), done.steps["host_s"].to_numpy()).sum()
    return works_s / STAGES / summary(done)["span_s"]


@pytest.mark.parametrize("device", DEVICES)
def test_with_one_chunk_in_flight_three_of_four_stages_idle_and_with_four_nearly_none(device):
    one, four = (replayed(device, CHUNK_TOKENS, inflight) for inflight in (1, STAGES))
    assert stages_busy_ratio(one) == pytest.approx(1 / STAGES, rel=1e-9)
    assert stages_busy_ratio(four) > 0.88
    assert tokens_per_s(four) > 3.5 * tokens_per_s(one)
    assert summary(four)["mfu_ratio"] / summary(one)["mfu_ratio"] == pytest.approx(tokens_per_s(four) / tokens_per_s(one))
    times = [percentile(done.requests["ttft_s"].to_numpy(), 50) for done in (one, four)]
    assert times[0] > 3.5 * times[1]
    assert one.steps["prefill_tokens"].to_pylist() == four.steps["prefill_tokens"].to_pylist()  # the same chunks


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_chunks_lose_to_whole_prompts_only_where_they_follow_one_another_through_all_stages(device):
    """What is accepted on kernels - chunks are hardly slower - loses more than half; with a step in each stage it loses nothing."""
    whole, whole_alone = (tokens_per_s(replayed(device, WHOLE_TOKENS, inflight)) for inflight in ('"auto"', 1))
    chunks_alone, chunks = (tokens_per_s(replayed(device, CHUNK_TOKENS, inflight)) for inflight in (1, STAGES))
    assert chunks_alone < 0.5 * whole
    assert chunks > whole
    assert chunks_alone == pytest.approx(whole_alone, rel=0.05)  # launches and keys read again are not what it is


def test_with_decodes_beside_long_prompts_a_limit_on_gaps_decides_and_chunks_are_what_keeps_it():
    """The report's control, one step in flight on both sides: gaps are several times shorter, and throughput hardly tells them apart."""
    count, long = 40, 8
    trace = make_trace(
        np.sort([*np.linspace(0.0, 2.0, count), *np.linspace(0.5, 4.0, long)]),
        [32000 if place % 6 == 5 else 400 for place in range(count + long)],
        [2 if place % 6 == 5 else 150 for place in range(count + long)],
    )
    chunks, whole = (replayed("b200-sxm", budget, 1, trace) for budget in (CHUNK_TOKENS, 32768))
    gaps_s = [percentile(done.requests["itl_s"].to_numpy(), 50) for done in (chunks, whole)]
    assert gaps_s[1] > 4.0 * gaps_s[0]
    assert tokens_per_s(chunks) == pytest.approx(tokens_per_s(whole), rel=0.03)
