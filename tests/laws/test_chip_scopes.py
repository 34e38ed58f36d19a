"""A setting scoped to a chip is that setting on this chip and nothing on any other - for every knob there is."""

import pytest

from replay.catalog.hardware import read_hardware
from replay.pipeline import compile_mapping
from replay.specs.knobs import KNOBS
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.specs.routing import ExpertLoad
from tests.models import LLAMA_8B, MIXTRAL

VALUES = {
    "formats.weights": '"fp8"', "formats.activations": '"fp8"', "formats.kv": '"fp8"', "gemm.backend": '"vector"',
    "attention.backend": '"unfused"', "layout.activations": '"column_major"', "gemm.tile": "[16, 32, 64]", "gemm.split_k": "2",
    "attention.tile": "[16, 16]", "attention.kv_split": "3", "placement.weights": '"host"', "kv.block_tokens": "32",
    "kv.memory_ratio": "0.5", "parallelism.tensor": "2", "all_reduce.one_shot_max_bytes": "1024", "graph.mode": '"none"',
    "graph.sizes": "[7]", "batching.max_running": "17", "batching.max_batched_tokens": "100", "batching.max_context_tokens": "999",
    "formats.sparsity": '"2:4"', "kernels.stack": '"sglang_0.5.10"',
    "batching.async_scheduling": "true", "kv.prefix_cache": "true", "kv.policy": '"reserve"', "kv.watermark_ratio": "0.01",
    "power.cap_w": "500", "power.max_clock_hz": "1e9",
    "batching.scheduler": '"static"', "batching.max_delay_s": "0.1", "batching.queue": '"sjf"',
    "batching.unfit": '"skip"', "batching.preferred_sizes": "[4]", "kv.preemption": '"swap"',
    "placement.experts": '"round_robin"', "parallelism.expert": "2", "parallelism.expert_exchange": '"all_to_all"',
    "parallelism.pipeline": "2",
    "host.call_s": "1e-4", "kv.prefix_cache_formats": '"16bit"',
    "compile.bins": "[7, 64]", "compile.variant_s": "0.5", "compile.warmup": '"at_start"', "compile.max_variants": "3",
    "batching.inflight_microbatches": "3",
    "fleet.replicas": "2", "fleet.routing": '"least_loaded"',
    "fleet.prefill_replicas": "2", "fleet.kv_link_bytes_per_s": "1e9",
}  # fmt: skip
CHIPS = {"power.cap_w": "b200-sxm", "power.max_clock_hz": "b200-sxm"}
"""Where a knob does something, if not on every chip."""
ALONE = {
    "formats.activations": ("formats", 'weights = "fp8"'),  # takes both operands in one format
    "all_reduce.one_shot_max_bytes": ("parallelism", "tensor = 2"),  # takes ranks to join
    "placement.copy_overlap": ("placement", 'weights = "host"'),  # takes something to copy
    "kv.prefix_cache_formats": ("kv", 'prefix_cache = true\n[formats]\nkv = "fp8"'),
    "parallelism.expert": ("parallelism", "tensor = 2"),
    "parallelism.expert_exchange": ("parallelism", "tensor = 2\nexpert = 2"),
    "placement.experts": ("parallelism", "tensor = 2\nexpert = 2"),
    "batching.inflight_microbatches": ("parallelism", "pipeline = 2"),  # takes stages to fill
    "fleet.kv_link_bytes_per_s": ("fleet", "prefill_replicas = 1"),
}
EXPERTS = ("parallelism.expert", "parallelism.expert_exchange", "placement.experts")
"""Knobs of models that have some."""
SKEWED = ExpertLoad(origin="test", layers=((0.5, 0.4, 0.3, 0.2, 0.2, 0.15, 0.15, 0.1),))


def mapping(*assignments: tuple[str, str]) -> MappingSpec:
    sections: dict[str, list[str]] = {"batching": ["max_batched_tokens = 64", "max_running = 32"]}
    for section, line in assignments:
        key = line.split(" = ")[0]
        kept = [other for other in sections.get(section, []) if not other.startswith(key)]
        sections[section] = [*kept, line]
    return parse_mapping('name = "m"\n' + "\n".join(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items()), "m.toml")


def table(spec: MappingSpec, chip: str, *, experts: bool):
    return compile_mapping(MIXTRAL if experts else LLAMA_8B, read_hardware(chip), spec, routing=SKEWED if experts else None).table


@pytest.mark.parametrize("name", [name for name in KNOBS if KNOBS[name].priced and name != "gemm.tile_table"])  # a file: test_tuned_tables
def test_a_chip_scope_is_the_setting_there_and_nothing_elsewhere(name):
    section, key = name.split(".", 1)
    value = VALUES.get(name, "false")
    with_it = [ALONE[name]] if name in ALONE else []
    if name == "kv.prefix_cache_formats":
        with_it = [("kv", "prefix_cache = true"), ("formats", 'kv = "fp8"')]
    plain = mapping(*with_it)
    everywhere = mapping(*with_it, (section, f"{key} = {value}"))
    chip, moe = CHIPS.get(name, "h100-sxm"), name in EXPERTS
    scoped = mapping(*with_it, (section, f'"{key}@[chip={chip}]" = {value}'))
    assert table(everywhere, chip, experts=moe) != table(plain, chip, experts=moe), "the setting changes nothing"
    assert table(scoped, chip, experts=moe) == table(everywhere, chip, experts=moe)
    assert table(scoped, "h200-sxm", experts=moe) == table(plain, "h200-sxm", experts=moe)


@pytest.mark.parametrize("line", ['weight_scales = "group32"', 'accumulation = "fp22"', "accumulation_interval = 128"])
def test_a_knob_that_is_not_priced_changes_no_cost(line):
    assert not KNOBS[f"formats.{line.split(' = ')[0]}"].priced
    assert table(mapping(("formats", line)), "h100-sxm", experts=False) == table(mapping(), "h100-sxm", experts=False)
