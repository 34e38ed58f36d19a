"""The schema of the mapping file against the parser: editors and the product accept the same files."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mapping_schema import SCHEMA_PATH, SECTIONS, mapping_schema

from replay.errors import SpecError
from replay.specs.knobs import KNOBS, KnobDefinition
from replay.specs.mapping import parse_mapping

SCHEMA = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
DEMO = Path(__file__).resolve().parents[2] / "traces" / "demo"


def parser_accepts(text: str) -> bool:
    try:
        parse_mapping(text, "mapping.toml")
    except SpecError:
        return False
    return True


def schema_accepts(text: str) -> bool:
    return VALIDATOR.is_valid(tomllib.loads(text))


def test_the_schema_is_what_the_table_of_knobs_implies() -> None:
    assert mapping_schema() == SCHEMA, "run `python tests/specs/mapping_schema.py` to rewrite the schema"


def test_every_section_of_the_table_of_knobs_is_in_the_schema() -> None:
    assert {name.split(".")[0] for name in KNOBS} == set(SECTIONS)


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS)
def test_every_knob_says_what_it_does_where_it_belongs_and_how_reports_spell_it(knob: KnobDefinition) -> None:
    section, key = knob.name.split(".", 1)
    entry = SCHEMA["properties"][section]["properties"][key]
    assert entry["description"].lower().startswith(knob.meaning[:20].lower())
    assert (entry["x-stage"], entry["x-revert-cost"], entry["x-reported-as"]) == (knob.stage, knob.revert_cost, knob.reported_as)
    assert knob.reported_as
    assert jsonschema.Draft202012Validator(entry).is_valid(entry["default"])


@pytest.mark.parametrize("path", sorted(DEMO.glob("mapping*.toml")), ids=lambda path: path.name)
def test_the_demo_mappings_are_accepted_by_both(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert parser_accepts(text)
    assert schema_accepts(text)


ACCEPTED = [
    "",
    "[gemm]\ntile = [128, 128, 64]",
    '[gemm]\n"tile@decode" = [16, 64, 128]',
    '[gemm]\n"tile@decode.mlp" = "auto"',
    '[gemm]\n"tile@mlp.decode[rows<=16,chip=h100-sxm]" = [16, 64, 128]',
    '[gemm]\n"tile@[rows>64, rows<=128]" = [64, 64, 64]',
    '[gemm]\n"split_k@moe" = 4',
    '[gemm]\n"backend@[chip=l40s]" = "vector"',
    '[attention]\n"tile@prefill" = [128, 64]\n"kv_split@[rows<8]" = "auto"',
    '[formats]\n"weights@lm_head" = "bf16"\n"kv@[chip=h100-sxm]" = "fp8"',
    "[kv]\nblock_tokens = 32\nmemory_ratio = 1",
    "[graph]\nmode = \"none\"\nsizes = []",
    "[all_reduce]\none_shot_max_bytes = 0",
    "[batching]\nmax_context_tokens = 4096",
    "[fusion]",
]  # fmt: skip
REFUSED = [
    "[gemm]\ntile = [128, 128]",
    "[gemm]\ntile = [128, 128, 12]",
    "[gemm]\ntiles = [128, 128, 64]",
    '[gemm]\n"tile@decoding" = "auto"',
    '[gemm]\n"tile@norm" = "auto"',
    '[gemm]\n"tile@" = "auto"',
    '[gemm]\n"tile@decode.prefill" = "auto"',
    '[gemm]\n"tile@mlp.moe" = "auto"',
    '[gemm]\n"tile@decode[rows=16]" = "auto"',
    '[fusion]\n"qkv@decode" = true',
    '[kv]\n"block_tokens@[rows<=8]" = 16',
    '[attention]\n"tile@mlp" = "auto"',
    "[fusion]\nqkv = 1",
    "[kv]\nmemory_ratio = 0",
    "[kv]\nmemory_ratio = 90",
    "[kv]\nblock_tokens = 0",
    "[graph]\nmode = \"partial\"",
    "[graph]\nsizes = [1, 1]",
    "[formats]\nweights = \"fp4\"",
    "[parallelism]\ntensor = true",
    "[batching]\nmax_running = \"many\"",
    "[speculation]\ndepth = 3",
    "tile = 8",
]  # fmt: skip


@pytest.mark.parametrize("body", ACCEPTED)
def test_the_schema_accepts_what_the_parser_accepts(body: str) -> None:
    text = f'name = "m"\n{body}'
    assert parser_accepts(text)
    assert schema_accepts(text)


@pytest.mark.parametrize("body", REFUSED)
def test_the_schema_refuses_what_the_parser_refuses(body: str) -> None:
    text = f'name = "m"\n{body}'
    assert not parser_accepts(text)
    assert not schema_accepts(text)


@pytest.mark.parametrize("text", ["[gemm]", 'name = ""', "name = 3"])
def test_a_mapping_needs_a_name(text: str) -> None:
    assert not parser_accepts(text)
    assert not schema_accepts(text)


@given(data=st.data())
def test_the_default_of_any_knob_under_any_scope_it_takes_is_accepted_by_both(data: st.DataObject) -> None:
    knob = data.draw(st.sampled_from(sorted(KNOBS.values(), key=lambda knob: knob.name)))
    parts = data.draw(st.permutations([*data.draw(st.sets(st.sampled_from(knob.layers or ("",)), max_size=1)), *phase(data, knob)]))
    bounds = data.draw(st.lists(st.sampled_from(bounds_of(knob)), max_size=2, unique_by=lambda bound: bound[:5]))
    scope = ".".join(filter(None, parts)) + (f"[{','.join(bounds)}]" if bounds else "")
    section, key = knob.name.split(".", 1)
    name = f'"{key}@{scope}"' if scope else key
    default = list(knob.default) if isinstance(knob.default, tuple) else knob.default
    text = f'name = "m"\n[{section}]\n{name} = {json.dumps(default)}'
    possible = not {"lm_head", "prefill"} <= set(parts)  # the LM head has no prefill phase
    assert parser_accepts(text) == possible
    assert schema_accepts(text) == possible


def phase(data: st.DataObject, knob: KnobDefinition) -> list[str]:
    return [data.draw(st.sampled_from(["", "prefill", "decode"]))] if knob.phases else []


def bounds_of(knob: KnobDefinition) -> list[str]:
    return ["chip=mi300x", *(["rows<=16", "rows>4", "rows<7", "rows>=2"] if knob.rows else [])]
