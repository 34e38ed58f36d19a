"""Meta files of runs: where settings are found, what is assumed where they are not, and which servers are refused."""

import json

import pytest

from replay.calibration.runs.server import read_server
from replay.errors import SpecError
from tests.calibration.run_logs import META


def read(folder, meta, longest=2000):
    path = folder / "meta.json"
    path.write_text(meta if isinstance(meta, str) else json.dumps(meta))
    return read_server(path, longest_request_tokens=longest)


def asked(**settings):
    return META | {"engine_kwargs": META["engine_kwargs"] | settings}


def resolved(part, **settings):
    return META | {"resolved_config": {f"{part}_config": settings}}


def test_a_server_is_what_the_file_states(tmp_path):
    server = read(tmp_path, META | {"hardware": {"device_name": "ACME 1"}})
    assert (server.model, server.software, server.hardware) == ("acme/tiny", "vllm 0.19.0", "ACME 1")
    assert (server.limits.max_running, server.limits.max_batched_tokens, server.limits.max_context_tokens) == (16, 256, 4096)
    assert (server.blocks_count, server.block_tokens) == (1000, 16)  # one of the reported 1001 is the null block
    assert server.notes == ()


def test_what_was_resolved_wins_over_what_was_asked_for(tmp_path):
    server = read(tmp_path, resolved("scheduler", max_num_seqs=4, async_scheduling=False))
    assert (server.limits.max_running, server.limits.max_batched_tokens, server.limits.async_scheduling) == (4, 256, False)


@pytest.mark.parametrize(
    ("version", "async_scheduling", "kv_policy"),
    [("0.13.1", False, "on_demand"), ("0.14.0", True, "on_demand"), ("0.19.0", True, "whole_prompt"), ("1.0", True, "whole_prompt")],
)
def test_rules_that_nothing_states_are_the_defaults_of_the_version(tmp_path, version, async_scheduling, kv_policy):
    limits = read(tmp_path, META | {"vllm_version": version}).limits
    assert (limits.async_scheduling, limits.kv_policy, limits.prefix_cache) == (async_scheduling, kv_policy, True)


def test_a_context_and_a_cache_that_nothing_states_never_bind_and_are_noted(tmp_path):
    meta = {"vllm_version": "0.19.0", "engine_kwargs": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": None}}
    server = read(tmp_path, meta, longest=1001)
    assert (server.limits.max_context_tokens, server.blocks_count) == (1001, 16 * 63)
    assert [note.split(" ")[0] for note in server.notes] == ["max_model_len", "num_gpu_blocks"]


@pytest.mark.parametrize(
    ("meta", "sizes"),
    [
        (META, (1, 2, 4, 8, 16, 24, 32)),  # up to twice the sequences
        (asked(enforce_eager=True), ()),
        (resolved("compilation", cudagraph_capture_sizes=[64, 8]), (8, 64)),
    ],
)
def test_captured_sizes_are_stated_or_those_of_the_version_or_none(tmp_path, meta, sizes):
    assert read(tmp_path, meta).captured_sizes == sizes


REFUSED = {
    "not JSON": ("{", "meta.json"),
    "a list": ("[]", "meta.json"),
    "no version": (META | {"vllm_version": None}, "vllm_version"),
    "V0": (META | {"vllm_version": "0.6.3"}, "the V1 engine"),
    "several replicas": (asked(data_parallel_size=2), "data_parallel_size"),
    "a pipeline": (resolved("parallel", pipeline_parallel_size=2), "pipeline_parallel_size"),
    "whole prompts": (asked(enable_chunked_prefill=False), "enable_chunked_prefill"),
    "priorities": (asked(scheduling_policy="priority"), "policy"),
    "speculation": (asked(speculative_config={"method": "ngram"}), "speculative_config"),
    "no seats": (asked(max_num_seqs=None), "max_num_seqs"),
    "no seats at all": (asked(max_num_seqs=0), "max_num_seqs"),
    "seats as text": (asked(max_num_seqs="16"), "max_num_seqs"),
    "a flag as text": (asked(enable_prefix_caching="yes"), "enable_prefix_caching"),
    "sizes as text": (resolved("compilation", cudagraph_capture_sizes=["8"]), "cudagraph_capture_sizes"),
    "half a block": (META | {"kv_cache": {"num_gpu_blocks": 0.5}}, "num_gpu_blocks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_server_of_other_rules_or_settings_that_cannot_be_is_one_sentence(tmp_path, case):
    meta, says = REFUSED[case]
    with pytest.raises(SpecError) as caught:
        read(tmp_path, meta)
    assert "meta.json" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_meta_file_says_what_it_holds(tmp_path):
    with pytest.raises(SpecError, match=r'"vllm_version".*--meta'):
        read_server(tmp_path / "meta.json", longest_request_tokens=100)
