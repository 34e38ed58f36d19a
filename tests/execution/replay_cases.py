"""Small random replays: traces with ties and bursts, tiny pools, windows, captured graphs, requests that can never fit."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from replay.execution.tables import COMPLETED
from replay.tiling.step_table import KV_POLICY_NAMES, PREEMPTION_NAMES, QUEUE_NAMES, SCHEDULER_NAMES, UNFIT_NAMES, WARMUP_NAMES
from tests.step_tables import captured_table, make_limits, make_pool, make_trace, random_power, random_table, staged

GAP_S = 2.0**-10
"""Gaps between arrivals are whole multiples of it: sums of them are exact, and so is any such time scaled by a power of two."""


@st.composite
def schedulers(draw, budget):
    """Fields of StepLimits: a scheduler and, where it computes prompts whole, a context that one step can hold."""
    scheduler = draw(st.sampled_from(SCHEDULER_NAMES))
    if scheduler == "chunked":
        return {}
    sizes = tuple(sorted(draw(st.sets(st.integers(1, 5), max_size=2))))
    rules = {"max_delay_s": draw(st.sampled_from([0.0, 0.05, 10.0])), "preferred_sizes": sizes}
    return {"scheduler": scheduler, "max_context_tokens": budget, **rules}


@st.composite
def replay_cases(draw, *, ample=False, powered=False, compiles=False, **rules):
    """(trace, table); with `ample` every request fits and no pool or context limit is ever felt; with `powered` the device has power;
    with `compiles` kernels may be compiled under traffic; `rules` are fields of StepLimits."""
    gaps = [GAP_S * steps for steps in draw(st.lists(st.one_of(st.just(0), st.integers(0, 300)), min_size=1, max_size=10))]
    prompts = draw(st.lists(st.integers(1, 40), min_size=len(gaps), max_size=len(gaps)))
    outputs = draw(st.lists(st.integers(1, 12), min_size=len(gaps), max_size=len(gaps)))
    trace_block = draw(st.integers(1, 12))
    beginnings = [draw(st.lists(st.integers(0, 1), max_size=-(-prompt // trace_block))) for prompt in prompts]
    priority = draw(st.lists(st.one_of(st.none(), st.integers(-1, 1)), min_size=len(gaps), max_size=len(gaps)))
    arrival_s = np.cumsum(gaps) - gaps[0]
    trace = make_trace(arrival_s, prompts, outputs, prefix_blocks=beginnings, prefix_block_tokens=trace_block, priority=priority)
    limits = make_limits(
        max_running=draw(st.integers(1, 5)),
        max_batched_tokens=draw(st.integers(52, 99) if ample else st.integers(1, 60)),
        max_context_tokens=1000 if ample else draw(st.integers(15, 60)),
        window_tokens=draw(st.integers(1, 60)),
        async_scheduling=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
        queue=draw(st.sampled_from(QUEUE_NAMES)),
        kv_policy=draw(st.sampled_from(KV_POLICY_NAMES)),
        kv_watermark_ratio=draw(st.sampled_from([0.0, 0.1, 0.5])),
        unfit=draw(st.sampled_from(UNFIT_NAMES)),
    )
    if rules.get("scheduler") != "chunked":
        limits = replace(limits, **draw(schedulers(limits.max_batched_tokens)))
    bins = draw(st.lists(st.integers(1, 50), max_size=4, unique=True).map(sorted))
    compile_rules = {
        "host_overlap": draw(st.booleans()),
        "compile_bins": tuple(bins),
        "compile_variant_s": draw(st.sampled_from([0.0, 2.0**-5, 1.0])),
        "compile_warmup": draw(st.sampled_from(WARMUP_NAMES)),
        "compile_max_variants": draw(st.none() | st.integers(1, 4)),
    }
    limits = replace(limits, **(compile_rules if compiles else {}), **rules)
    if not limits.prefix_cache and "preemption" not in rules:
        limits = replace(limits, preemption=draw(st.sampled_from(PREEMPTION_NAMES)))
    if not (limits.async_scheduling or powered or "inflight_steps" in rules):
        limits = replace(limits, inflight_steps=draw(st.sampled_from([1, 1, 2, 3, 4])))
    sizes = draw(st.lists(st.integers(1, limits.max_batched_tokens), max_size=3))
    small = {"blocks_count": st.integers(0, 20), "block_tokens": st.integers(1, 6), "block_swap_s": st.sampled_from([0.0, 0.003])}
    table = random_table(
        draw(st.integers(0, 2**32)),
        limits=limits,
        pool=make_pool() if ample else make_pool(**{name: draw(values) for name, values in small.items()}),
        capture=captured_table(limits, sorted(sizes), decode_only=draw(st.booleans())),
    )
    stages = draw(st.integers(1, 4)) if limits.inflight_steps > 1 else 1
    counts = st.lists(st.integers(0, 3), min_size=stages, max_size=stages)
    table = staged(table, {kernel: draw(counts) for kernel in ("tokens_0", "tokens_1", "decode_attention_0")})
    return trace, random_power(draw(st.integers(0, 2**32)), table) if powered else table


@st.composite
def crowded_cases(draw, **options):
    """Cases of `replay_cases` in which several sequences outgrow the pool, so that some give way; any of them fits alone."""
    scheduler = draw(st.sampled_from(SCHEDULER_NAMES))
    rules = {"scheduler": scheduler, "max_context_tokens": 24, "max_running": draw(st.integers(3, 5)), "kv_watermark_ratio": 0.0}
    rules["max_batched_tokens"] = draw(st.integers(3, 24)) if scheduler == "chunked" else 24
    rules |= {name: draw(st.sampled_from(names)) for name, names in (("kv_policy", KV_POLICY_NAMES[:2]), ("queue", ("fcfs", "priority")))}
    _, table = draw(replay_cases(**rules, **options))
    count = draw(st.integers(3, 7))
    prompts, outputs, gaps, priority = (
        draw(st.lists(values, min_size=count, max_size=count))
        for values in (st.integers(3, 10), st.integers(6, 12), st.integers(0, 9), st.integers(-1, 1))
    )
    trace = make_trace(GAP_S * (np.cumsum(gaps) - gaps[0]), prompts, outputs, priority=priority)
    block_tokens = draw(st.integers(1, 4))
    largest = max(-(-(prompt + output - 1) // block_tokens) for prompt, output in zip(prompts, outputs, strict=True))
    pool = replace(table.pool, block_tokens=block_tokens, blocks_count=largest + draw(st.integers(0, 2)))
    return trace, replace(table, pool=pool)


def completed(requests: pa.Table) -> dict[str, np.ndarray]:
    """Columns of the requests that were served."""
    served = requests.filter(pa.compute.equal(requests["status"], COMPLETED))
    return {name: served[name].to_numpy() for name in served.column_names}


def columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Columns of a table without missing values."""
    return {name: table[name].to_numpy() for name in table.column_names}
