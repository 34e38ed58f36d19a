"""Tuned tables: names, the nearest batch, and content that travels with the mapping."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.specs.mapping import MappingSpec, diff, parse_mapping
from replay.specs.tile_table import parse_table

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "formats" / "fused_moe_config"
NAME = "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
ENTRY = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 4}


def body(*batches, **changes):
    return {str(batch): {**ENTRY, "BLOCK_SIZE_M": 16 * (place + 1), **changes} for place, batch in enumerate(batches)}


def table(*batches):
    return parse_table(NAME, body(*batches), "mapping.toml:3")


def tabled(content, name=NAME, knob='"tile_table@moe"'):
    return parse_mapping(f'name = "m"\n[gemm]\n{knob} = {json.dumps(name)}\n', "mapping.toml", lambda path: json.dumps(content))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True), st.integers(1, 400))
def test_every_row_count_gets_the_entry_that_the_stacks_look_up(batches, rows_to):
    found = table(*batches)
    keys = [batch for batch, _ in found.batches]
    ranges = list(found.ranges(rows_to))
    rows = [row for range_ in ranges for row in range(range_.first_row, range_.last_row + 1)]
    assert rows == list(range(1, rows_to + 1))
    for range_ in ranges:
        for row in range(range_.first_row, range_.last_row + 1):
            assert range_.batch == min(keys, key=lambda key, row=row: abs(key - row))  # vLLM's rule, ties in the file's order
            assert range_.entry == dict(found.batches)[range_.batch]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, (8, 14336, None, "NVIDIA_H100_80GB_HBM3", "", "")),
        ("tables/E=1,N=2,device_name=AMD_Instinct_MI300X,dtype=int8_w8a16.json", (1, 2, None, "AMD_Instinct_MI300X", "int8_w8a16", "")),
        (
            "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json",
            (None, 2112, 7168, "NVIDIA_H200", "fp8_w8a8", "128,128"),
        ),
    ],
)
def test_a_name_says_what_a_table_was_tuned_for(name, expected):
    found = parse_table(name, body(1), "m")
    assert (found.experts_count, found.columns, found.depth, found.device_name, found.dtype, found.block_shape) == expected


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("moe.json", body(1), "named 'moe.json'"),
        ("N=4,device_name=x.json", body(1), "N=4"),
        ("E=1,N=4,K=4,device_name=x.json", body(1), "K=4"),
        (NAME.replace(".json", "_down.json"), body(1), "_down.json"),
        (NAME, [], "no JSON object"),
        (NAME, {}, "no batch"),
        (NAME, {"triton_version": "3.4.0"}, "no batch"),
        (NAME, {"1": 3}, "batch 1 is 3"),
        (NAME, {"0": ENTRY}, "the key '0'"),
        (NAME, {"M": ENTRY}, "the key 'M'"),
        (NAME, body(1, BLOCK_SIZE_N=0), "columns 0"),
        (NAME, body(1, BLOCK_SIZE_N=1.5), "columns 1.5"),
        (NAME, body(1, num_warp=4), "did you mean 'num_warps'?"),
    ],
)
def test_what_is_no_table_is_refused(name, content, says):
    with pytest.raises(SpecError) as caught:
        parse_table(name, content, "m")
    assert says in str(caught.value)


def test_a_version_beside_the_batches_and_hints_for_amd_are_no_batches():
    found = parse_table(NAME, {"triton_version": "3.4.0", **body(4, waves_per_eu=0, kpack=1)}, "m")
    assert [batch for batch, _ in found.batches] == [4]


@pytest.mark.parametrize("value", ["/etc/" + NAME, "", 3, [], [NAME, 4], True])
def test_a_table_is_named_by_a_relative_path(value):
    with pytest.raises(SpecError, match="table is"):
        tabled(body(1), value)


def test_a_mapping_that_was_read_from_no_file_has_no_tables():
    with pytest.raises(SpecError, match="read from none"):
        parse_mapping(f'name = "m"\ngemm.tile_table = "{NAME}"\n', "mapping.toml")
    assert parse_mapping('name = "m"\ngemm.tile_table = "none"\n', "mapping.toml").tables == ()


def test_the_rows_of_a_table_are_part_of_the_mapping_its_document_and_its_digest():
    one, other = tabled(body(1, 8)), tabled(body(1, 8, num_stages=3))
    assert one.digest != other.digest
    assert [change.knob for change in diff(one, other)] == ["gemm.tile_table@moe"]
    for spec in (one, other):
        again = MappingSpec.from_document(json.loads(json.dumps(spec.to_document())), "bundle.json")
        assert (again.digest, again.tables) == (spec.digest, spec.tables)
    assert one.to_document()["settings"]["gemm.tile_table@moe"]["tables"][0]["batches"]["8"]["BLOCK_SIZE_M"] == 32


@pytest.mark.parametrize(
    "document", [{}, "moe.json", {"tables": []}, {"tables": [{"path": "moe.json", "batches": {}}]}, {"tables": [{"path": 3}]}]
)
def test_a_forged_document_is_refused(document):
    with pytest.raises(SpecError):
        MappingSpec.from_document({"name": "m", "settings": {"gemm.tile_table": document}}, "bundle.json")


def test_a_document_gives_tables_to_no_other_knob():
    with pytest.raises(SpecError, match=r"gemm\.tile is"):
        MappingSpec.from_document({"name": "m", "settings": {"gemm.tile": {"tables": [{"path": NAME, "batches": body(1)}]}}}, "bundle.json")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the checkout")
def test_real_files_of_vllm_and_sglang_are_read_whole():
    files = sorted(SHARED.glob("*.json"))
    assert files
    for path in files:
        found = parse_table(path.name, json.loads(path.read_text()), "m")
        assert len(found.batches) == len(json.loads(path.read_text()))
        assert [range_.batch for range_ in found.ranges(10**6)] == sorted(batch for batch, _ in found.batches)
