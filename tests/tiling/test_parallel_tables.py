"""Step tables of expert-parallel ranks and pipeline stages: what they cost, what waits, what is left for the cache."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.catalog.hardware import read_hardware
from replay.execution.step_costs import step_seconds
from replay.mapping_sheet import StepShape, imbalance_ratios, mapping_sheet
from replay.pipeline import compile_mapping
from replay.specs.routing import ExpertLoad
from replay.tiling.terms import TERM_NAMES, Terms
from tests.models import DEEPSEEK_V3, LLAMA_8B, MIXTRAL, mapping, round_hardware

SMALL = ("[batching]", "max_batched_tokens = 64", "max_running = 16")
UNIFORM = ExpertLoad(origin="stated")
TERM_TABLES = ("token_terms", "sequence_terms", "decode_terms", "prefill_terms")
ROUND = round_hardware()


def ranks_loads(shares, more):
    """Return the routing of eight experts on four ranks whose loads are uneven by `more`; a rank's experts are chosen alike."""
    mixed = (1.0 - more) / len(shares) + more * np.array(shares) / sum(shares)
    return ExpertLoad(origin="drawn", layers=(tuple(np.repeat(mixed, 2).tolist()),))


def compiled(*lines, model=MIXTRAL, device=ROUND, routing=UNIFORM):
    return compile_mapping(model, device, mapping(*SMALL, *lines), routing=routing)


def term(table, name):
    """Return a column of any of the term tables."""
    tables = (getattr(table, family) for family in TERM_TABLES)
    return next(np.asarray(terms[name]) for terms in tables if name in terms.column_names)


def joined_s(table, kernel):
    """Return the time of a call of a kernel for every row of its table."""
    exponent = next(row["overlap_exponent"] for row in table.kernels.to_pylist() if row["kernel"] == kernel)
    return Terms(**{name: term(table, f"{kernel}.{name}") for name in TERM_NAMES}).time_s(exponent)


def wait_s(table):
    """Return how long an average rank waits for the busiest."""
    return joined_s(table, "expert_wait") if "expert_wait" in table.kernels["kernel"].to_pylist() else 0.0


def experts_s(table):
    """Return the time of the busiest rank's experts."""
    return joined_s(table, "experts") + wait_s(table)


def steps(*, sequences=8, context=300, prompt=40):
    return StepShape(name="x", decode_sequences=sequences, context_tokens=context, prefill_tokens=prompt)


EP = ("[parallelism]", "tensor = 4", "expert = 4")


@settings(max_examples=12, deadline=None)
@given(
    shares=st.lists(st.floats(0.5, 1.0), min_size=4, max_size=4),
    skews=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2).map(sorted),
    exchange=st.sampled_from(["all_reduce", "all_to_all"]),
)
def test_more_skew_between_ranks_makes_no_step_cheaper(shares, skews, exchange):
    lines = (*EP, f'expert_exchange = "{exchange}"')
    even, uneven = (compiled(*lines, routing=ranks_loads(shares, skew)).table for skew in skews)
    assert (experts_s(uneven) >= experts_s(even) * (1 - 1e-9)).all()
    shapes = steps().shapes(even.limits)
    assert step_seconds(uneven, shapes).device_s[0] >= step_seconds(even, shapes).device_s[0] * (1 - 1e-9)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "l40s", "b200-sxm", "tpu-v5e"])
def test_the_busiest_rank_is_waited_for_on_every_device(name):
    skewed = compiled(*EP, device=read_hardware(name), routing=ranks_loads([1.0, 0.3, 0.3, 0.3], 1.0)).table
    even = compiled(*EP, device=read_hardware(name)).table
    assert (experts_s(skewed) >= experts_s(even) * (1 - 0.01)).all()  # a residual need not rise with the load
    assert experts_s(skewed)[64] > experts_s(even)[64]
    assert wait_s(skewed)[64] > 0
    assert wait_s(even) == 0  # there is no such kernel
    row = next(row for row in skewed.kernels.to_pylist() if row["kernel"] == "expert_wait")
    assert (row["layer_type"], row["calls_count"]) == ("all_reduce", 32)
    assert (term(skewed, "expert_wait.sync_s") == wait_s(skewed)).all()


@pytest.mark.parametrize("placement", ["linear", "round_robin", "balanced"])
def test_under_uniform_routing_placements_cost_the_same_and_the_split_is_the_balanced_one(placement):
    stated, counted = (
        compiled(*EP, "[placement]", f'experts = "{placement}"', routing=routing).table
        for routing in (UNIFORM, ExpertLoad(origin="counted", layers=((5.0,) * 8,) * 32))
    )
    default = compiled(*EP).table
    for table in (stated, counted):
        for name in TERM_NAMES:
            assert term(table, f"experts.{name}") == pytest.approx(term(default, f"experts.{name}"), rel=1e-9)
    # Ranks of whole experts read the weights once between them, as ranks of columns do; activations are a few per cent of that.
    columns = compiled("[parallelism]", "tensor = 4").table
    assert term(default, "experts.memory_s")[64] == pytest.approx(term(columns, "experts.memory_s")[64], rel=0.05)


def test_recorded_routing_counts_without_expert_parallelism_too():
    hot = ranks_loads([1.0, 0.05, 0.05, 0.05], 1.0)
    lines = ("[parallelism]", "tensor = 4")
    recorded, unknown = (compiled(*lines, routing=routing).table for routing in (hot, None))
    assert term(recorded, "experts.bytes")[4] < term(unknown, "experts.bytes")[4]  # fewer experts are active in small steps


def test_placement_by_recorded_load_spares_the_wait():
    # Experts 0 and 1 are hot and, placed in line, share a rank.
    hot = ExpertLoad(origin="drawn", layers=((4.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),))
    linear, balanced = (compiled(*EP, "[placement]", f'experts = "{name}"', routing=hot).table for name in ("linear", "balanced"))
    assert (experts_s(balanced)[1:] <= experts_s(linear)[1:] * (1 + 1e-9)).all()
    assert experts_s(balanced)[64] < experts_s(linear)[64]


def test_the_sheet_shows_the_imbalance_of_experts():
    spec = mapping(*SMALL, *EP)
    done = compile_mapping(MIXTRAL, ROUND, spec, routing=ranks_loads([1.0, 0.5, 0.25, 0.25], 1.0))
    rows = mapping_sheet(done, ROUND, spec, (steps(),)).to_pylist()
    assert {row["kernel"]: row["imbalance_ratio"] for row in rows if row["imbalance_ratio"]} == {"experts": pytest.approx(2.0)}
    assert [ratios for kernel in done.plan.kernels if (ratios := imbalance_ratios(kernel))] == [pytest.approx((2.0,))]


class Memory:
    """A cache of tables that lists its keys."""

    edition = "1"

    def __init__(self):
        self.kept = {}

    def read(self, key):
        return self.kept.get(key)

    def write(self, key, data):
        self.kept[key] = data


def test_kept_tables_are_found_by_the_routing_they_were_made_for():
    memory, spec, skewed = Memory(), mapping(*SMALL, *EP), ranks_loads([1.0, 0.5, 0.5, 0.5], 1.0)
    for routing in (UNIFORM, skewed, replace(skewed, origin="elsewhere"), UNIFORM):
        kept = compile_mapping(MIXTRAL, ROUND, spec, routing=routing, cache=memory)
        fresh = compile_mapping(MIXTRAL, ROUND, spec, routing=routing)
        assert (experts_s(kept.table) == experts_s(fresh.table)).all()
    assert len(memory.kept) == 2
    for routing in (UNIFORM, skewed, None):  # a dense model has no experts to choose
        compile_mapping(LLAMA_8B, ROUND, mapping(*SMALL), routing=routing, cache=memory)
    assert len(memory.kept) == 3


@pytest.mark.parametrize("model", [LLAMA_8B, DEEPSEEK_V3])
@pytest.mark.parametrize(("tensor", "stages"), [(1, 2), (4, 4), (2, 3)])
def test_a_pipeline_costs_what_its_stages_cost_together_and_the_handing_over(model, tensor, stages):
    lines = ("[parallelism]", f"tensor = {tensor}")
    one, many = (compiled(*lines, *more, model=model).table for more in ((), (f"pipeline = {stages}",)))
    known = {row["kernel"]: row for row in one.kernels.to_pylist()}
    sent = {row["kernel"]: row["calls_count"] for row in many.kernels.to_pylist() if row["kernel"] not in known}
    assert set(sent) <= {"stage_send", "stage_send_across_nodes", "stage_all_gather"}
    assert sum(calls for name, calls in sent.items() if name != "stage_all_gather") == stages - 1
    assert [row for row in many.kernels.to_pylist() if row["kernel"] in known] == list(known.values())
    for name, row in known.items():
        for column in TERM_NAMES:
            assert (term(many, f"{name}.{column}") == term(one, f"{name}.{column}")).all(), row
    by_kernel = many.stages.group_by("kernel").aggregate([("calls_count", "sum")]).to_pylist()
    totals = {row["kernel"]: row["calls_count_sum"] for row in by_kernel}
    assert totals == {row["kernel"]: row["calls_count"] for row in many.kernels.to_pylist()}
    assert one.stages.num_rows == 0
    assert (one.limits.pipeline_stages, many.limits.pipeline_stages) == (1, stages)
    shapes = steps().shapes(one.limits)
    extra_s = step_seconds(many, shapes).device_s[0] - step_seconds(one, shapes).device_s[0]
    priced = sum(
        calls * float(term(many, f"{name}.launch_s")[65 + 48] + term(many, f"{name}.sync_s")[65 + 48]) for name, calls in sent.items()
    )
    assert extra_s == pytest.approx(priced)


def test_the_host_launches_a_graph_for_every_stage_and_all_devices_count():
    one, four = (compiled("[parallelism]", f"pipeline = {stages}", model=LLAMA_8B).table for stages in (1, 4))
    assert four.host_graph_launch_s == 4 * one.host_graph_launch_s
    assert four.reference_flops_per_s == 4 * one.reference_flops_per_s
    assert four.launches_count == one.launches_count + 3  # what is sent


@pytest.mark.parametrize("tied", [False, True])
def test_more_stages_leave_more_room_for_the_cache(tied):
    model = replace(LLAMA_8B, tied_embeddings=tied)
    pools = [compiled("[parallelism]", f"pipeline = {stages}", model=model).table.pool for stages in (1, 2, 3, 4, 5, 8, 32)]
    blocks = [pool.blocks_count for pool in pools]
    assert blocks == sorted(set(blocks))
    assert blocks[1] > 2 * blocks[0]  # each device has half of the layers' cache, and half of their weights less
    assert pools[0].block_bytes == 2 * pools[1].block_bytes


def test_a_stage_holds_its_layers_and_the_ends_hold_embedding_and_head():
    layer = 4096 * (48 * 128 + 4096) * 2 + 3 * 4096 * 14336 * 2
    end = 128256 * 4096 * 2
    pool = compiled("[parallelism]", "pipeline = 4", model=LLAMA_8B).table.pool
    assert pool.weights_bytes == 8 * layer + end  # the last one: its logits take more than nothing


def test_a_copy_from_the_host_adds_to_what_it_cannot_hide_behind():
    lines = ("[placement]", '"weights@mlp" = "host"')
    copy_s = 4096 * 14336 * 2 / ROUND.host_link_bytes_per_s
    device, hidden, exposed = (compiled(*more, model=LLAMA_8B).table for more in ((), lines, (*lines, "copy_overlap = false")))
    times = []
    for table in (device, hidden, exposed):
        times.append(joined_s(table, "down_proj")[1:65])
    alone_s, hidden_s, exposed_s = times
    assert exposed_s == pytest.approx(alone_s + copy_s)  # a copy before the kernel: the sum
    assert (hidden_s >= np.maximum(alone_s, copy_s)).all()  # one beside it: between the longer of the two and the sum
    assert (hidden_s <= exposed_s * (1 + 1e-12)).all()
    assert (hidden_s < exposed_s).any()
    assert term(hidden, "down_proj.memory_s")[1] - term(device, "down_proj.memory_s")[1] == pytest.approx(copy_s)
    assert hidden.pool == exposed.pool
