"""Tuned tables beside a mapping file: in every verb, at a commit, and in bundles that no longer need the file."""

import json
import subprocess

import pytest

TABLE = "tables/E=128,N=768,device_name=NVIDIA_A100-SXM4-80GB.json"
MAPPING = f'name = "experts"\n[gemm]\n"tile_table@moe" = "{TABLE}"\n'
GOOD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 16, "num_warps": 4, "num_stages": 3}
WIDE = {**GOOD, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "num_warps": 8}


@pytest.fixture
def experts(project):
    """A mixture of experts on 400 requests, with a table for it."""
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.parquet", "--max-requests", "400").exit_code == 0
    project.write("replay.toml", project.read("replay.toml").replace("llama-3.1-8b", "qwen3-30b-a3b"))
    (project.folder / "tables").mkdir()
    write_table(project, GOOD)
    project.write("mapping.toml", MAPPING)
    return project


def write_table(project, entry):
    project.write(TABLE, json.dumps({str(2**power): entry for power in range(12)}))


def git(folder, *arguments):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def kernels(project, source):
    return json.loads(project.replay("map", "--mapping", source, "--format", "json").output)["kernels"]


def test_a_change_of_a_table_alone_is_a_change_of_its_knob(experts):
    git(experts.folder, "init", "-q", "-b", "main")
    git(experts.folder, "add", "-A")
    git(experts.folder, "commit", "-q", "-m", "in service")
    write_table(experts, WIDE)
    result = experts.replay("gate", "--baseline", "git:main", "--candidate", "mapping.toml", "--format", "json")
    assert result.exit_code in (10, 20), result.output
    predicate = json.loads(result.stdout)["predicate"]
    [knob] = predicate["knobs"]
    assert knob["knob"] == "gemm.tile_table@moe"
    assert knob["baseline"] != knob["candidate"]
    assert knob["baseline"].startswith(f"{TABLE} (sha256:")
    assert predicate["mitigation"] is None or predicate["mitigation"]["patch"] is None  # no edit of the mapping file brings it back
    evidence = json.loads(experts.read("replay-out/evidence/candidate-mapping.json"))
    assert evidence["settings"]["gemm.tile_table@moe"]["tables"][0]["batches"]["1"] == WIDE


def test_a_bundle_carries_the_table(experts):
    assert experts.replay("baseline", "--mapping", "mapping.toml", "--out", "b.json").exit_code == 0
    before = kernels(experts, "mapping.toml")
    assert "batch 32" in {row["tile_source"] for row in before}
    (experts.folder / TABLE).unlink()
    assert kernels(experts, "b.json") == before
    result = experts.replay("map", "--mapping", "mapping.toml")
    assert result.exit_code == 2
    assert "want a tuned kernel table (JSON)" in result.stderr
    assert experts.replay("validate", "mapping.toml").exit_code == 2


def test_a_diff_of_two_tables_shows_the_experts(experts):
    other = TABLE.replace("tables/", "")
    experts.write(other, json.dumps({"32": WIDE}))
    experts.write("b.toml", MAPPING.replace(TABLE, other))
    printed = experts.replay("map", "--diff", "mapping.toml", "b.toml").output
    assert "gemm.tile_table@moe: tables/E=128" in printed
    assert "tile 64x128x64 -> 128x256x64" in printed
    assert "rows 65-2048 are more than twice batch 32" in printed
    assert "qkv" not in printed
