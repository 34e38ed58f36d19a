"""`replay tune`: what it writes, and what it refuses."""

import json

import pytest


@pytest.fixture
def small(project):
    """The demo on 300 requests."""
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.parquet", "--max-requests", "300").exit_code == 0
    return project


def test_a_tuned_file_is_what_is_printed_and_valid(small):
    result = small.replay("tune", "--mapping", "mapping.toml", "--out", "tuned.toml")
    assert result.exit_code == 0, result.output
    assert "tuned by `replay tune` for llama-3.1-8b on a100-sxm-80gb, demo (300 synthetic requests" in result.stdout
    assert result.stdout.endswith("wrote tuned.toml\n")
    assert small.replay("validate", "tuned.toml").exit_code == 0
    printed = small.replay("tune", "--mapping", "mapping.toml").stdout
    assert printed == small.read("tuned.toml")
    assert max(map(len, result.stdout.splitlines())) <= 160


def test_a_mapping_that_serves_nothing_is_refused_in_one_sentence(small):
    small.write("none.toml", small.read("mapping.toml").replace("memory_ratio = 0.90", "memory_ratio = 0.01"))
    result = small.replay("tune", "--mapping", "none.toml")
    assert result.exit_code == 2
    assert "no request of demo can ever run" in result.stderr


def test_replays_without_the_objective_that_replays_are_refused(small):
    result = small.replay("tune", "--mapping", "mapping.toml", "--replays", "4")
    assert result.exit_code == 2
    assert "--objective p99" in result.stderr


@pytest.mark.slow
def test_a_mapping_tuned_for_a_trace_is_released_on_it(project):
    assert project.replay("tune", "--mapping", "mapping.toml", "--out", "tuned.toml").exit_code == 0
    result = project.replay("gate", "--baseline", "mapping.toml", "--candidate", "tuned.toml")
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_tuning_for_tails_replays_no_more_often_than_asked(small):
    result = small.replay("tune", "--mapping", "mapping.toml", "--objective", "p99", "--replays", "3")
    assert result.exit_code == 0, result.output
    assert "# p99 after 3 replays: E2E " in result.stdout


@pytest.mark.slow
def test_without_a_mapping_the_defaults_are_tuned(small):
    (small.folder / "replay.toml").unlink()
    result = small.replay("tune", "--trace", "trace.parquet", "--model", "llama-3.1-8b", "--hardware", "l40s")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("# the defaults tuned by `replay tune`")
    assert 'name = "defaults, tuned for demo"' in result.stdout


def test_a_file_away_from_the_tables_it_names_is_refused(small):
    entry = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64}
    small.write("E=8,N=4,device_name=NVIDIA_A100.json", json.dumps({"1": entry}))
    small.write("m.toml", 'name = "m"\ngemm.tile_table = "E=8,N=4,device_name=NVIDIA_A100.json"\n')
    result = small.replay("tune", "--mapping", "m.toml", "--out", "elsewhere/tuned.toml")
    assert result.exit_code == 2
    assert "which names its tables by relative paths" in result.stderr
    assert small.replay("tune", "--mapping", "m.toml", "--out", "tuned.toml").exit_code == 0
    assert 'tile_table = "E=8,N=4,device_name=NVIDIA_A100.json"' in small.read("tuned.toml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--objective", "p50"), "'p50'"),
        (("--replays", "0"), "0"),
        (("--trace", "gone.parquet"), "no such file"),
        (("--out", "."), "a folder"),
    ],
)
def test_a_bad_call_is_a_usage_error(project, arguments, says):
    result = project.replay("tune", *arguments)
    assert result.exit_code == 2
    assert says in result.output
