"""`replay map` and `replay map --diff`: what is printed, in which forms."""

import csv
import io
import json

import pytest

from replay import documents

FUSED = 'name = "fused"\n'
SPLIT = 'name = "split"\n[fusion]\ngate_up = false\n[gemm]\n"tile@qkv.decode" = [16, 128, 64]\n[kv]\nmemory_ratio = 0.8\n'
WIDEST = 160


@pytest.fixture
def two(project):
    project.write("a.toml", FUSED)
    project.write("b.toml", SPLIT)
    return project


def diffed(project, *arguments):
    result = project.replay("map", "--diff", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_identical_mappings_have_no_difference(two, form):
    two.write("c.toml", FUSED.replace("fused", "another name") + "[gemm]\nbackend = 'matrix'\n")
    printed = diffed(two, "a.toml", "c.toml", "--format", form)
    if form == "json":
        document = json.loads(printed)
        assert document["identical"]
        assert not any(document[name] for name in ("knobs", "decisions", "operators", "serving", "kernels", "steps"))
    else:
        assert (
            printed
            == {
                "text": "a.toml -> c.toml: llama-3.1-8b on a100-sxm-80gb: no difference\n",
                "csv": "kind,step,name,field,baseline,candidate\n",
            }[form]
        )


def test_the_text_of_a_diff_says_what_moves_and_by_how_much(two):
    printed = diffed(two, "a.toml", "b.toml")
    for part in (
        "gemm.tile@qkv.decode: - -> [16, 128, 64]",
        "gate_proj: gate_up -> gate_proj",
        "kv.memory_ratio: 90.0% -> 80.0%",
        "blocks_count: ",
        "gate_up (gate_proj, up_proj) disappears",
        "up_proj appears",
        "decode step: time ",
    ):
        assert part in printed
    assert "down_proj" not in printed
    assert max(map(len, printed.splitlines())) <= WIDEST


def test_a_rate_is_shown_as_a_rate(two):
    two.write("b.toml", FUSED + "[fleet]\nprefill_replicas = 1\nkv_link_bytes_per_s = 5e10\n")
    assert "fleet.kv_link_bytes_per_s: link -> 50 GB/s" in diffed(two, "a.toml", "b.toml")


def test_the_json_of_a_diff_matches_its_schema_and_the_csv_its_json(two):
    document = json.loads(diffed(two, "a.toml", "b.toml", "--format", "json"))
    documents.check(document, "mapping-diff.v1", "the output")
    rows = list(csv.DictReader(io.StringIO(diffed(two, "a.toml", "b.toml", "--format", "csv"))))
    fields = {(row["step"], row["name"], row["field"]) for row in rows if row["kind"] == "kernels"}
    assert fields == {(row["step"], row["kernel"], field["name"]) for row in document["kernels"] for field in row["fields"]}


def test_a_diff_takes_two_files_and_no_third(two):
    result = two.replay("map", "--diff", "a.toml", "b.toml", "--mapping", "a.toml")
    assert result.exit_code == 2
    assert "both --mapping and --diff" in result.output


def test_the_sheet_says_resources_bytes_bound_source_error_and_stack_and_fits_the_screen(project):
    printed = project.replay("map", "--mapping", "mapping.toml", "--model", "qwen3-30b-a3b").output
    assert max(map(len, printed.splitlines())) <= WIDEST
    runs, costs = (line for line in printed.splitlines()[:45] if line.startswith("experts "))
    assert "64x64x64" in runs
    assert "32 KiB+16 KiB x5" in runs
    for part in ("memory_bandwidth", "calibrated +-8%", "GiB", "sglang_0.5.10"):
        assert part in costs
    assert printed.startswith("decode step: ")


def test_the_sheets_of_json_and_csv_hold_the_same_kernels(project):
    document = json.loads(project.replay("map", "--mapping", "mapping.toml", "--format", "json").output)
    rows = list(csv.DictReader(io.StringIO(project.replay("map", "--mapping", "mapping.toml", "--format", "csv").output)))
    assert [row["kernel"] for row in rows] == [row["kernel"] for row in document["kernels"]]
    assert set(rows[0]) == set(document["kernels"][0])
    assert [total["step"] for total in document["steps"]] == ["decode", "prefill"]


def test_steps_beyond_the_limits_are_cut_and_it_is_said(project):
    result = project.replay("map", "--sequences", "999", "--context", "999999", "--prompt", "9999")
    assert result.exit_code == 0
    assert "--sequences 999 is shown as 256" in result.stderr
    assert "--context 999999 is shown as 131072" in result.stderr
    assert "--prompt 9999 is shown as 2048" in result.stderr


@pytest.mark.parametrize(("memory_ratio", "says"), [(0.01, "the cache holds 0 tokens"), (0.9, "")])
def test_a_step_that_the_cache_cannot_hold_is_said(project, memory_ratio, says):
    project.write("small.toml", f'name = "s"\n[kv]\nmemory_ratio = {memory_ratio}\n')
    result = project.replay("map", "--mapping", "small.toml")
    assert result.exit_code == 0
    assert says in result.stderr
    assert bool(result.stderr) == bool(says)
