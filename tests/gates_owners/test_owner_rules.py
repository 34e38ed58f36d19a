"""Owners: rules over knobs, layer types and stages, their precedence, the fallback, and bad files."""

from pathlib import Path, PurePosixPath

import pytest

from gates.codeowners import parse_codeowners
from gates.owners import UNOWNED, OwnerMatch, Owners, codeowners_match, parse_owners, read_owners
from replay.errors import InvariantError, SpecError
from replay.specs.knobs import KNOBS, STAGES
from replay.specs.scopes import LAYER_TYPES


def owners(*rules: tuple[str, str], fallback: OwnerMatch | None = None) -> Owners:
    text = "\n".join(f'[[rules]]\nmatch = "{match}"\nteam = "{team}"\n' for match, team in rules)
    return parse_owners(text, "owners.toml", fallback=fallback)


def test_the_last_rule_that_matches_wins_as_in_codeowners() -> None:
    table = owners(("*", "all"), ("gemm.*", "gemm"), ("gemm.tile", "tiles"))
    assert table.of("gemm.tile").owner == "tiles"
    assert table.of("gemm.split_k").owner == "gemm"
    assert table.of("kv.block_tokens").owner == "all"
    assert owners(("gemm.tile", "tiles"), ("*", "all")).of("gemm.tile").owner == "all"


def test_knob_rules_beat_layer_rules_beat_stage_rules_wherever_they_stand() -> None:
    rules = (("gemm.tile", "knob"), ("layer:mlp", "layer"), ("stage:tiling", "stage"))
    for order in (rules, rules[::-1], (rules[1], rules[0], rules[2])):
        table = owners(*order)
        assert table.of("gemm.tile@mlp").owner == "knob"
        assert table.of("gemm.split_k@mlp").owner == "layer"
        assert table.of("gemm.split_k@decode").owner == "stage"
        assert table.of("gemm.backend@decode").owner == UNOWNED


def test_a_rule_on_a_knob_name_covers_its_scoped_forms_and_a_scoped_rule_only_those() -> None:
    table = owners(("gemm.tile", "tiles"), ("gemm.tile@decode*", "decode"))
    assert table.of("gemm.tile@prefill").owner == "tiles"
    assert table.of("gemm.tile@decode[rows<=16]").owner == "decode"
    assert table.of("gemm.tile").owner == "tiles"


def test_brackets_in_a_pattern_are_literal() -> None:
    table = owners(("gemm.tile@decode[rows<=16]", "narrow"))
    assert table.of("gemm.tile@decode[rows<=16]").owner == "narrow"
    assert table.of("gemm.tile@decode[rows<=32]").owner == UNOWNED
    assert table.warnings == ()


def test_findings_of_checks_are_owned_by_their_code_then_by_their_stage() -> None:
    table = owners(("stage:ingress", "traces"), ("check:cache_*", "serving"), ("check:*", "gate"), ("check:cache_state_differs", "cache"))
    assert table.of_check("cache_state_differs", "ingress").owner == "cache"
    assert table.of_check("trace_too_old", "ingress").owner == "gate"
    assert owners(("stage:ingress", "traces")).of_check("trace_too_old", "ingress").owner == "traces"
    assert owners(("cache*", "knobs")).of_check("cache_state_differs", "ingress").owner == UNOWNED


def test_whom_to_call_next_travels_with_the_owner() -> None:
    text = '[[rules]]\nmatch = "gemm.*"\nteam = "kernels"\ncontact = "#kernels"\nescalation = "on-call accelerators"\n'
    match = parse_owners(text, "owners.toml").of("gemm.tile")
    assert (match.contact, match.escalation) == ("#kernels", "on-call accelerators")


def test_stages_and_layer_types_are_findings_of_their_own() -> None:
    table = owners(("stage:*", "platform"), ("layer:attention", "attention"), ("attention.*", "attention knobs"))
    assert table.of("quality_sla").owner == "platform"
    assert table.of("stage:quality_sla").owner == "platform"
    assert table.of("attention").owner == table.of("layer:attention").owner == "attention"
    assert table.of("moe").owner == UNOWNED


def test_everything_that_can_be_a_finding_has_an_owner_under_catch_all_rules() -> None:
    table = owners(("*", "knobs"), ("layer:*", "layers"), ("stage:*", "stages"))
    assert {table.of(knob).owner for knob in KNOBS} == {"knobs"}
    assert {table.of(layer).owner for layer in LAYER_TYPES} == {"layers"}
    assert {table.of(stage).owner for stage in STAGES} == {"stages"}


@pytest.mark.parametrize("finding", ["", "gemm.tiles", "nowhere", "layer:nowhere", "stage:moe", "layer:tiling"])
def test_what_is_no_knob_layer_or_stage_is_our_own_fault(finding: str) -> None:
    with pytest.raises(InvariantError):
        Owners().of(finding)


def test_the_source_is_the_line_of_the_rule_and_the_contact_travels() -> None:
    text = '# who owns what\n\n[[rules]]\nmatch = "*"\nteam = "all"\n\n[[rules]]\nmatch = "kv.*"\nteam = "kv"\ncontact = "#kv"\n'
    table = parse_owners(text, "owners.toml")
    assert table.of("kv.block_tokens") == OwnerMatch(owner="kv", contact="#kv", source="owners.toml:7")
    assert table.of("gemm.tile") == OwnerMatch(owner="all", contact=None, source="owners.toml:3")
    inline = parse_owners('rules = [{ match = "*", team = "all" }]', "owners.toml")
    assert inline.of("gemm.tile").source == "owners.toml"


def test_codeowners_of_the_mapping_is_the_fallback() -> None:
    codeowners = parse_codeowners("*.md @docs\n*.toml @a @org/b\n/private/\n", ".github/CODEOWNERS")
    fallback = codeowners_match(codeowners, PurePosixPath("service/mapping.toml"))
    assert fallback == OwnerMatch(owner="@a @org/b", source=".github/CODEOWNERS:2")
    table = owners(("gemm.tile", "tiles"), fallback=fallback)
    assert table.of("gemm.tile").owner == "tiles"
    assert table.of("kv.block_tokens") == fallback
    assert codeowners_match(codeowners, PurePosixPath("private/mapping.toml")) is None
    assert codeowners_match(codeowners, PurePosixPath("mapping.json")) is None


def test_nobody_owns_what_nothing_matches() -> None:
    assert Owners().of("gemm.tile") == OwnerMatch(owner="unowned", contact=None, source=None)


@pytest.mark.parametrize(
    ("match", "named"),
    [
        ("gemm.tiel", "did you mean 'gemm.tile'"),
        ("atention.*", "no knob"),
        ("layer:mlpp", "did you mean 'mlp'"),
        ("stage:tilling", "did you mean 'tiling'"),
        ("gemm.tile@decoding", "'decoding'"),
        ("layer:mlp@decode", "no layer"),
        ("check:cache_state_difers", "did you mean 'cache_state_differs'"),
    ],
)
def test_a_rule_that_can_match_nothing_is_reported(match: str, named: str) -> None:
    table = owners(("*", "all"), (match, "typo"))
    assert len(table.warnings) == 1
    assert table.warnings[0].startswith(f"owners.toml:5: {match!r} matches nothing")
    assert named in table.warnings[0]


@pytest.mark.parametrize(
    "match",
    ["*", "gemm.*", "*.tile", "gemm.tile@*", "*@decode", "layer:*", "layer:m*", "stage:???ing", "check:cache_*", "stage:quality_sla"],
)
def test_a_rule_that_can_match_is_not_reported(match: str) -> None:
    assert owners((match, "someone")).warnings == ()


BAD_OWNERS = {
    "no rules": ("# nothing here", "'rules'"),
    "empty rules": ("rules = []", "at least one"),
    "rules is a table": ('[rules]\nmatch = "*"', "rules"),
    "no team": ('[[rules]]\nmatch = "*"', "'team'"),
    "no match": ('[[rules]]\nteam = "a"', "'match'"),
    "empty team": ('[[rules]]\nmatch = "*"\nteam = ""', "team"),
    "team is a list": ('[[rules]]\nmatch = "*"\nteam = ["a"]', "team"),
    "unknown key": ('[[rules]]\nmatch = "*"\nteams = "a"', "did you mean 'team'"),
    "unknown kind": ('[[rules]]\nmatch = "op:moe"\nteam = "a"', "layer:moe"),
    "space in match": ('[[rules]]\nmatch = "gemm tile"\nteam = "a"', "match"),
    "empty match": ('[[rules]]\nmatch = ""\nteam = "a"', "match"),
    "contact is a number": ('[[rules]]\nmatch = "*"\nteam = "a"\ncontact = 7', "contact"),
    "rule is text": ('rules = ["*"]', "a table with match"),
    "not toml": ("[[rules]", "TOML"),
    "empty": ("", "empty"),
}


@pytest.mark.parametrize("case", BAD_OWNERS)
def test_a_bad_owners_file_is_one_sentence(case: str, tmp_path: Path) -> None:
    text, named = BAD_OWNERS[case]
    path = tmp_path / "owners.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_owners(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert named in message
    assert "Fix: " in message
    assert "\n" not in message


def test_a_missing_owners_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_owners(tmp_path / "owners.toml")
