"""Laws of the revert patch: it applies with git and gives exactly the mapping that was replayed."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gates.attribution.patch import MappingFile, revert_patch
from replay.specs.mapping import diff, parse_mapping
from replay.toml_lines import statements

VALUES = {
    ("gemm", "tile"): ['"auto"', "[128, 128, 64]", "[\n  64,  # rows\n  64,\n  32,\n]"],
    ("gemm", '"tile@mlp"'): ["[64, 64, 32]", "[256, 128, 64]"],
    ("gemm", '"tile@mlp.decode[rows<=16]"'): ["[16, 64, 64]", '"auto"'],
    ("gemm", "'split_k@decode'"): ["2", "8", '"auto"'],
    ("attention", "backend"): ['"flash"', "'unfused'"],
    ("attention", '"tile@decode[rows<17]"'): ["[16, 64]", "[32, 64]"],
    ("fusion", "qkv"): ["true", "false"],
    ("kv", "memory_ratio"): ["0.9", "0.5", "1"],
    ("kv", "block_tokens"): ["16", "3_2"],
    ("graph", "sizes"): ["[1, 2, 4]", "[\n  1,\n  2, # [two]\n]", "[]"],
}
SPELLINGS = {'"tile@decode[rows<17]"': '"tile@decode[rows<=16]"', "'split_k@decode'": '"split_k@decode"', "qkv": '"qkv"'}
COMMENTS = ["", " # kept: a = [1]", "  # 'quoted\" # twice"]


@st.composite
def mapping_texts(draw):
    """A mapping file in any of the spellings TOML allows: sections, dotted keys or inline tables, comments, blank lines, line ends."""
    lines = ["# a mapping", f'name = "{draw(st.sampled_from(["a", "b #1"]))}"{draw(st.sampled_from(COMMENTS))}']
    tail = []
    for section in sorted({section for section, _ in VALUES}):
        keys = [key for of, key in VALUES if of == section and draw(st.booleans())]
        pairs = [(SPELLINGS.get(key, key) if draw(st.booleans()) else key, draw(st.sampled_from(VALUES[section, key]))) for key in keys]
        form = draw(st.sampled_from(["section", "section", "dotted", "inline"]))
        if form == "inline":
            inline = ", ".join(f"{key} = {value}" for key, value in pairs if "\n" not in value)
            lines.append(f"{section} = {{ {inline} }}{draw(st.sampled_from(COMMENTS))}")
        elif form == "dotted":
            lines += [f"{section}.{key} = {value}{draw(st.sampled_from(COMMENTS))}" for key, value in pairs]
        else:
            tail += ["", draw(st.sampled_from([f"[{section}]", f'[ "{section}" ] # of it']))]
            for key, value in pairs:
                tail += draw(st.sampled_from([[], ["# about it", ""]]))
                tail.append(
                    f"{draw(st.sampled_from(['', '  ']))}{key}{draw(st.sampled_from([' = ', '=']))}{value}{draw(st.sampled_from(COMMENTS))}"
                )
    text = "\n".join([*lines, *tail]) + draw(st.sampled_from(["", "\n", "\n\n# end"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def apply(folder: Path, file: MappingFile, patch: str) -> str:
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.text.encode())
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=patch.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return path.read_bytes().decode()


def settings_of(spec):
    return {setting.knob: setting.value for setting in spec.settings}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(candidate_text=mapping_texts(), baseline_text=mapping_texts(), data=st.data())
def test_the_patch_applies_and_parses_to_the_reverted_mapping(tmp_path, candidate_text, baseline_text, data):
    candidate, baseline = parse_mapping(candidate_text, "c"), parse_mapping(baseline_text, "b")
    changed = [change.knob for change in diff(baseline, candidate)]
    knobs = tuple(sorted(knob for knob in changed if data.draw(st.booleans())))
    file = MappingFile(name="mappings/c.toml", text=candidate_text)
    patch = revert_patch(file, knobs, baseline)
    if patch is None:
        assert not knobs
        return
    patched = apply(tmp_path, file, patch)
    wanted = candidate.reverted(knobs, baseline)
    assert settings_of(parse_mapping(patched, "patched")) == settings_of(wanted)
    assert parse_mapping(patched, "patched").digest == wanted.digest


@given(text=mapping_texts())
def test_statements_tile_the_text_in_order_and_hold_every_assignment(text):
    found = list(statements(text))
    assert all(left.after <= right.first for left, right in itertools.pairwise(found))
    values = [statement for statement in found if not statement.is_header]
    assert all("\n" not in text[statement.value[1] : statement.after].rstrip("\r\n") for statement in values)
    assert [statement.path for statement in values if statement.path == ("name",)] == [("name",)]


BASELINE = parse_mapping('name = "b"\n[gemm]\ntile = [128, 128, 64]\n"split_k@decode" = 2\n', "b")


def patched(text: str, *knobs: str, name: str = "mapping.toml") -> str | None:
    return revert_patch(MappingFile(name=name, text=text), knobs, BASELINE)


def test_a_value_is_replaced_on_its_line_and_its_comment_stays():
    patch = patched('name = "c"\n[gemm]\ntile = [64, 64, 32]  # tuned\n\n[kv]\nblock_tokens = 16\n', "gemm.tile")
    assert patch == (
        "--- a/mapping.toml\n+++ b/mapping.toml\n@@ -1,6 +1,6 @@\n"
        ' name = "c"\n [gemm]\n-tile = [64, 64, 32]  # tuned\n+tile = [128, 128, 64]  # tuned\n \n [kv]\n block_tokens = 16\n'
    )


def test_a_knob_the_baseline_does_not_set_is_deleted_with_its_line(tmp_path):
    text = 'name = "c"\n[kv]\nblock_tokens = 32 # gone\nmemory_ratio = 0.8'
    patch = patched(text, "kv.block_tokens")
    assert apply(tmp_path, MappingFile(name="mapping.toml", text=text), patch) == 'name = "c"\n[kv]\nmemory_ratio = 0.8'


def test_a_knob_the_candidate_dropped_is_written_at_the_end_of_its_section():
    patch = patched('name = "c"\n[gemm]\ntile = [128, 128, 64]\n\n[kv]\nblock_tokens = 16\n', "gemm.split_k@decode")
    assert ' tile = [128, 128, 64]\n+"split_k@decode" = 2\n \n' in patch


def test_a_missing_section_is_made_at_the_end(tmp_path):
    text = 'name = "c"'
    patch = patched(text, "gemm.split_k@decode")
    wanted = 'name = "c"\n\n[gemm]\n"split_k@decode" = 2\n'
    assert apply(tmp_path, MappingFile(name="mapping.toml", text=text), patch) == wanted


@pytest.mark.parametrize("name", ["with space/mapping.toml", 'quo"te.toml', "grün.toml", "./mapping.toml"])
def test_file_names_that_need_care_apply(tmp_path, name):
    file = MappingFile(name=name, text='name = "c"\ngemm.tile = [64, 64, 32]\n')
    patch = patched(file.text, "gemm.tile", name=name)
    assert "gemm.tile = [128, 128, 64]" in apply(tmp_path, file, patch)


def test_a_byte_order_mark_stays_where_it_is(tmp_path):
    file = MappingFile(name="mapping.toml", text='\ufeffname = "c"\ngemm.tile = [64, 64, 32]\n')
    assert apply(tmp_path, file, patched(file.text, "gemm.tile")) == '\ufeffname = "c"\ngemm.tile = [128, 128, 64]\n'


OLD_TABLE, NEW_TABLE = (f"{folder}E=8,N=14336,device_name=NVIDIA_H100.json" for folder in ("", "tuned/"))
ENTRY = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64}


def with_tables(text: str, entry: dict[str, int]):
    return parse_mapping(text, "m", lambda path: json.dumps({"1": entry}))


@pytest.mark.parametrize("form", ["[gemm]\ntile_table = {}\n", "gemm = {{ tile_table = {}, split_k = 2 }}\n"])
def test_a_table_goes_back_by_its_path(tmp_path, form):
    before, text = with_tables(f'name = "b"\ngemm.tile_table = "{OLD_TABLE}"', ENTRY), 'name = "c"\n' + form.format(f'["{NEW_TABLE}"]')
    file = MappingFile(name="m", text=text, tables=with_tables(text, ENTRY).tables)
    reverted = apply(tmp_path, file, revert_patch(file, ("gemm.tile_table",), before))
    assert reverted == 'name = "c"\n' + form.format(f'"{OLD_TABLE}"')


def test_a_table_whose_content_alone_changed_has_no_patch():
    text = f'name = "b"\ngemm.tile_table = "{OLD_TABLE}"\n'
    before, after = with_tables(text, ENTRY), with_tables(text, {**ENTRY, "BLOCK_SIZE_M": 128})
    assert revert_patch(MappingFile(name="m", text=text, tables=after.tables), ("gemm.tile_table",), before) is None
