"""Regressions from public reports that only a replay shows: the named figure moves as reported, and its control does not.

Each test is named after what happened; the reports are named in its docstring. Figures are the model's own, not the reports'.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.ingress.sending import with_load
from replay.ingress.trace import Trace
from replay.pipeline import Replayer
from replay.provenance import Load
from replay.specs.hardware import HardwareSpec
from replay.specs.model import ModelSpec
from tests.models import LLAMA_8B, SMALL_EXPERTS, mapping
from tests.step_tables import make_trace

LLAMA = {"kv_heads": 8, "head_size": 128, "vocabulary_size": 128256, "max_context_tokens": 131072}
LLAMA_70B_FP8 = ModelSpec(
    name="m-70b", layers_count=80, hidden_size=8192, query_heads=64, intermediate_size=28672, weights_format="fp8", **LLAMA
)  # fmt: skip
SMALL = ModelSpec(
    name="m-0.5b", layers_count=24, hidden_size=896, query_heads=14, kv_heads=2, head_size=64, intermediate_size=4864,
    vocabulary_size=151936, max_context_tokens=32768, weights_format="bf16",
)  # fmt: skip


@dataclass
class Setting:
    """A trace, model and device; replays mappings on them."""

    trace: Trace
    model: ModelSpec
    device: HardwareSpec
    common: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.replayer = Replayer(trace=self.trace, model=self.model, hardware=self.device, seed=0)

    def run(self, *lines: str):
        return self.replayer.run(mapping(*self.common, *lines))

    def decisions(self, *lines: str):
        return {decision.knob: decision for decision in self.replayer.schedule(mapping(*self.common, *lines)).decisions}

    def column(self, name: str, *lines: str) -> np.ndarray:
        return self.run(*lines).requests[name].to_numpy()

    def at(self, percent: float, name: str, *lines: str) -> float:
        return percentile(self.column(name, *lines), percent)

    def steps(self, name: str, *lines: str) -> np.ndarray:
        return self.run(*lines).steps[name].to_numpy()


def closed_loop(clients: int, prompts, outputs, **more) -> Trace:
    return with_load(make_trace([np.nan] * len(prompts), prompts, outputs, **more), Load(concurrency=clients))


H100 = read_hardware("h100-sxm")


def test_a_faster_expert_kernel_with_more_host_work_is_slower_in_service():
    """vLLM 53472 (S01): device time of experts falls, host time of each call rises by 176 us, decode of few sequences slows down."""
    faster = ("[formats]", '"weights@moe" = "fp8"', "[host]", '"call_s@moe" = 88e-6')  # router and experts: two calls a layer
    few, many = closed_loop(4, [256] * 24, [256] * 24), closed_loop(128, [4096] * 256, [64] * 256)
    eager = ("[parallelism]", "tensor = 8", "[batching]", "max_batched_tokens = 8192", "[graph]", 'mode = "none"')
    decode = Setting(few, SMALL_EXPERTS, H100, eager)
    assert np.median(decode.steps("device_s", *faster)) < np.median(decode.steps("device_s"))
    assert decode.at(50, "tpot_s", *faster) > 1.14 * decode.at(50, "tpot_s")
    captured = Setting(few, SMALL_EXPERTS, H100, (*eager[:-1], 'mode = "full"'))
    crowded = Setting(many, SMALL_EXPERTS, H100, eager)
    for control in (captured, crowded):
        for metric in ("tpot_s", "e2e_s"):
            assert control.at(95, metric, *faster) < control.at(95, metric)


def test_a_graph_ceiling_inside_the_working_range_has_two_stable_states():
    """SGLang 33483 (S06): above the largest captured size steps are five times as slow, so batches stay large, so steps stay slow."""
    sizes = "[graph]\nsizes = [1, 2, 4, 8, 12, 16, 24, 32"
    wide, narrow = (f"{sizes}, 48, 64, 96, 128]",), (f"{sizes}]",)
    slow_host = read_hardware("l40s")
    slow_host = replace(slow_host, host=replace(slow_host.host, launch_s=55e-6))  # 220 launches: 12 ms
    transitions = []
    for rate, seed in ((20.0, 0), (20.0, 1), (20.0, 2), (12.0, 0)):
        draw = np.random.default_rng(seed)
        arrivals = np.cumsum(draw.exponential(1 / rate, 3000))
        outputs = np.maximum(1, draw.lognormal(np.log(200), 0.5, 3000)).astype(int)
        setting = Setting(make_trace(arrivals, [128] * 3000, outputs), SMALL, slow_host)
        transitions.append(setting.at(99, "tpot_s", *narrow) > 2.5 * setting.at(99, "tpot_s", *wide))
        eager = (setting.steps("captured_tokens", *narrow) == 0) & (setting.steps("prefill_tokens", *narrow) == 0)
        assert eager.any() == transitions[-1]
        assert setting.at(99, "queue_s", *narrow) < 0.1  # the queue shows nothing
    assert sorted(transitions[:3]) == [False, True, True]  # the seed decides
    assert not transitions[3]


def agents(cold_share: float, groups: int):
    """100 clients with prompts of 8k that begin like others of their group, and some that begin like none."""
    draw, count = np.random.default_rng(1), 2000
    group, cold = draw.integers(0, groups, count), draw.random(count) < cold_share
    beginnings = np.where(cold, 1000 + np.arange(count), group)
    blocks = [[beginning * 100 + place for place in range(8)] for beginning in beginnings.tolist()]
    prompts = np.where(cold, 8192, 8692)
    return closed_loop(100, prompts, [60] * count, prefix_blocks=blocks, prefix_block_tokens=1024), cold


def test_longest_prefix_first_starves_cold_prompts():
    """SGLang's lpm on production traffic (S08): mean and median improve by a third and more, p99 multiplies; ageing keeps the gain."""
    common = ("[kv]", "memory_ratio = 0.25", "prefix_cache = true", "[batching]", "max_running = 16", "max_batched_tokens = 4096")
    fcfs, longest, aged = ((f'queue = "{name}"',) for name in ("fcfs", "longest_prefix", "hrrn"))
    trace, cold = agents(cold_share=0.05, groups=4)
    setting = Setting(trace, LLAMA_8B, H100, common)
    ttft = {lines: setting.column("ttft_s", *lines) for lines in (fcfs, longest, aged)}
    assert ttft[longest].mean() < 0.68 * ttft[fcfs].mean()
    assert percentile(ttft[longest], 50) < 0.42 * percentile(ttft[fcfs], 50)
    assert percentile(ttft[longest], 99) > 3.5 * percentile(ttft[fcfs], 99)
    assert np.median(ttft[longest][cold]) > 2 * np.median(ttft[fcfs][cold])
    assert ttft[aged].mean() < 0.68 * ttft[fcfs].mean()
    assert percentile(ttft[aged], 99) < 1.15 * percentile(ttft[fcfs], 99)
    warm, _ = agents(cold_share=0.0, groups=10)
    control = Setting(warm, LLAMA_8B, H100, common)
    assert control.at(99, "ttft_s", *longest) < control.at(99, "ttft_s", *fcfs)


def test_admitting_by_chunks_throws_prompts_away_again():
    """TensorRT-LLM's MAX_UTILIZATION against GUARANTEED_NO_EVICT (S09): long prompts lose half of the throughput, short ones nothing."""
    draw = np.random.default_rng(3)
    long = make_trace(np.arange(64) * 1e-3, (24000 * draw.uniform(0.6, 1.4, 64)).astype(int), [512] * 64)
    chat = [draw.lognormal(np.log(median), sigma, 200).astype(int) + 1 for median, sigma in ((300, 0.8), (200, 0.6))]
    short = make_trace(np.cumsum(draw.exponential(1 / 4, 200)), *chat)
    reserve, on_demand = ('policy = "reserve"',), ('policy = "on_demand"',)
    common = ("[formats]", 'kv = "fp8"', "[kv]", "memory_ratio = 0.72")
    setting = Setting(long, LLAMA_70B_FP8, read_hardware("h200-sxm"), common)
    assert 2.0 < setting.steps("end_s", *on_demand).max() / setting.steps("end_s", *reserve).max() < 4.0
    assert setting.at(99, "tpot_s", *on_demand) > 4 * setting.at(99, "tpot_s", *reserve)
    thrown_away = setting.steps("recomputed_tokens", *on_demand).sum() / setting.steps("prefill_tokens", *on_demand).sum()
    assert 0.7 < thrown_away < 0.87
    assert setting.steps("recomputed_tokens", *reserve).sum() == 0
    control = Setting(short, LLAMA_70B_FP8, read_hardware("h200-sxm"), common)
    assert (control.column("e2e_s", *on_demand) == control.column("e2e_s", *reserve)).all()


def turns(shared: bool) -> Trace:
    """Twenty turns of an agent that begin with the same 85k tokens, or with others each."""
    draw = np.random.default_rng(0)
    prompts = 85 * 1024 + np.cumsum(draw.integers(1000, 2000, 20))
    blocks = [
        [(0 if shared else turn * 1000) + place for place in range(-(-prompt // 1024))] for turn, prompt in enumerate(prompts.tolist())
    ]
    for turn, own in enumerate(blocks):
        own[-1] = 10**6 + turn  # the last one, which is not full, ends otherwise in each
    return make_trace(np.arange(20) * 20.0, prompts, draw.integers(100, 300, 20), prefix_blocks=blocks, prefix_block_tokens=1024)


def test_a_cache_format_that_turns_prefix_reuse_off_costs_every_prompt_again():
    """An agent loop after bf16 -> fp8 cache (S10): no hit, every turn computes its whole prompt, and half of the cache buys nothing."""
    common = ("[kv]", "prefix_cache = true", 'prefix_cache_formats = "16bit"')
    small = ("[formats]", 'kv = "fp8"')
    setting = Setting(turns(shared=True), LLAMA_8B, H100, common)
    assert setting.at(50, "ttft_s", *small) > 10 * setting.at(50, "ttft_s")
    assert setting.steps("prefix_hit_tokens", *small).sum() == 0
    assert setting.steps("prefix_hit_tokens").sum() > 0.9 * setting.steps("prefill_tokens", *small).sum()
    assert setting.at(50, "tpot_s", *small) < setting.at(50, "tpot_s")
    decision = setting.decisions(*small)["kv.prefix_cache"]
    assert (decision.requested, decision.effective, decision.stage) == ("true", "false", "lowering")
    assert "kv.prefix_cache" not in setting.decisions()
    unique = Setting(turns(shared=False), LLAMA_8B, H100, common)
    assert unique.at(95, "ttft_s", *small) < 1.15 * unique.at(95, "ttft_s")
    keeps = Setting(turns(shared=True), LLAMA_8B, H100, common[:2])
    assert keeps.steps("prefix_hit_tokens", *small).sum() == keeps.steps("prefix_hit_tokens").sum()


def test_kernels_compiled_by_the_first_customers():
    """DeepGEMM without warm-up (S20): twelve bins of 1.5 s each; the first minutes after a start are slow, the rest is not."""
    draw, count = np.random.default_rng(4), 1200
    arrivals = np.cumsum(draw.exponential(0.25, count))
    prompts = np.minimum(8000, draw.lognormal(6.0, 1.3, count)).astype(int) + 1
    setting = Setting(make_trace(arrivals, prompts, [32] * count), SMALL_EXPERTS, H100, ("[batching]", "max_batched_tokens = 8192"))
    bins = ", ".join(str(4 << place) for place in range(12))
    compiled = ("[compile]", f"bins = [{bins}]", "variant_s = 1.5")
    warmed = (*compiled, 'warmup = "before_ready"')
    cold_window = arrivals - arrivals[0] < 60.0
    before, after = setting.column("ttft_s"), setting.column("ttft_s", *compiled)
    assert percentile(after[cold_window], 99) > 5 * percentile(before[cold_window], 99)
    assert (setting.steps("compile_s", *compiled) > 0).sum() == 12
    assert after.max() > 1.5
    late = arrivals - arrivals[0] > 200.0
    assert percentile(after[late], 99) == pytest.approx(percentile(before[late], 99), rel=0.01)
    assert (setting.column("ttft_s", *warmed) == before).all()
    starts = setting.column("ttft_s", *compiled, 'warmup = "at_start"')
    assert starts[0] > 18.0 - arrivals[0]  # whoever is let in before it is ready waits for all twelve


def test_a_client_that_waits_hides_a_slower_server():
    """A cap in front of a schedule (S22): times from the sending hide most of a tenth that times from the schedule show in full."""
    count, prompts = 60, [2048] * 60
    one = ("[batching]", "max_running = 1")
    slower = ("[graph]", 'mode = "none"')
    open_loop = make_trace(np.arange(count) * 0.2, prompts, [50] * count)
    slow_host = replace(H100, host=replace(H100.host, launch_s=28e-6))
    capped = Setting(with_load(open_loop, Load(concurrency=1)), LLAMA_8B, slow_host)
    sent = {
        lines: capped.column("e2e_s", *lines) - (capped.column("sent_s", *lines) - capped.column("arrival_s", *lines))
        for lines in ((), slower)
    }
    from_schedule = {lines: capped.column("e2e_s", *lines) for lines in ((), slower)}
    assert np.ptp(sent[()]) < 1e-6  # every request alone looks alike
    lost_s = percentile(from_schedule[slower], 99) - percentile(from_schedule[()], 99)
    assert percentile(from_schedule[slower], 99) > 1.1 * percentile(from_schedule[()], 99)
    assert lost_s > 10 * (percentile(sent[slower], 99) - percentile(sent[()], 99))
    uncapped = Setting(open_loop, LLAMA_8B, slow_host, one)
    assert pa.compute.equal(uncapped.run().requests["sent_s"], uncapped.run().requests["arrival_s"]).to_pylist() == [True] * count
    np.testing.assert_allclose(uncapped.column("e2e_s"), from_schedule[()], rtol=1e-9)


def test_a_stage_in_its_own_process_loses_at_small_batches_and_wins_at_large_ones():
    """A speech server (S23): contexts that take turns on a device do not overlap, but end the host's contention; the engine is innocent."""
    apart = ("[host]", "overlap = false", "call_s = 0.0")
    newer = ("[batching]", "async_scheduling = true")  # the engine's change, which both placements take
    common = ("[graph]", "sizes = [1, 2, 4, 8, 16, 32, 64]")
    slow_host = replace(H100, host=replace(H100.host, graph_launch_s=2e-3))
    together = ("[host]", "call_s = 60e-6")  # beside the other stage, each eager call of the host waits for its turn
    few, many = (Setting(closed_loop(clients, [64] * 400, [60] * 400), LLAMA_8B, slow_host, common) for clients in (16, 96))
    assert few.at(50, "e2e_s", *apart) > 1.15 * few.at(50, "e2e_s", *together)
    assert few.at(50, "e2e_s", *apart, *newer) > 1.15 * few.at(50, "e2e_s", *together, *newer)
    assert few.at(50, "e2e_s", *together, *newer) < 1.05 * few.at(50, "e2e_s", *together)
    assert many.at(50, "e2e_s", *apart) < many.at(50, "e2e_s", *together)
