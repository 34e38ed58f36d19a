"""CODEOWNERS as GitHub documents it: patterns, precedence, places, and lines it skips."""

from pathlib import Path, PurePosixPath

import pytest

from gates.codeowners import Codeowners, find_codeowners, parse_codeowners
from replay.errors import SpecError


def owners_of(text: str, path: str) -> tuple[str, ...] | None:
    rule = parse_codeowners(text, "CODEOWNERS").rule_of(PurePosixPath(path))
    return None if rule is None else rule.owners


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        ("*", ["a", "a/b.toml"], []),
        ("*.toml", ["mapping.toml", "deep/in/mapping.toml"], ["mapping.tom", "a.toml.bak"]),
        ("/build/logs/", ["build/logs/x", "build/logs/a/b"], ["build/logs", "src/build/logs/x"]),
        ("docs/*", ["docs/x.md"], ["docs/a/x.md", "src/docs/x.md"]),
        ("apps/", ["apps/x", "src/apps/x"], ["apps"]),
        ("/docs/", ["docs/x", "docs/a/b"], ["src/docs/x"]),
        ("/scripts", ["scripts", "scripts/a/b"], ["src/scripts"]),
        ("**/logs", ["logs/x", "build/logs/x", "deep/a/logs"], ["logsx"]),
        ("/apps/**/mapping.toml", ["apps/mapping.toml", "apps/a/mapping.toml", "apps/a/b/mapping.toml"], ["mapping.toml"]),
        ("/a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("/a/*/c", ["a/b/c", "a/b/c/d"], ["a/b/d/c", "a/c"]),
        ("map?ing.toml", ["mapping.toml", "x/mapping.toml"], ["maping.toml", "map/ing.toml"]),
        ("/*", ["a"], ["a/b"]),
        ("a.b+c", ["a.b+c"], ["aXb+c", "a.bb+c"]),
        ("my\\ docs/", ["my docs/x"], ["my\\ docs/x", "docs/x"]),
    ],
)
def test_a_pattern_covers_what_github_says(pattern: str, covered: list[str], not_covered: list[str]) -> None:
    line = f"{pattern} @team"
    assert [path for path in covered if owners_of(line, path) is None] == []
    assert [path for path in not_covered if owners_of(line, path) is not None] == []


def test_the_last_match_wins_even_when_it_names_nobody() -> None:
    text = "* @all\n/apps/ @apps @org/serving-team\n/apps/public/\n"
    assert owners_of(text, "x") == ("@all",)
    assert owners_of(text, "apps/x") == ("@apps", "@org/serving-team")
    assert owners_of(text, "apps/public/x") == ()


def test_comments_blank_lines_and_windows_line_ends_are_no_rules() -> None:
    text = "# header\r\n\r\n  \r\n*.toml @a someone@example.com # inline\r\n"
    codeowners = parse_codeowners(text, "CODEOWNERS")
    assert codeowners.warnings == ()
    assert [(rule.pattern, rule.owners, rule.line) for rule in codeowners.rules] == [("*.toml", ("@a", "someone@example.com"), 4)]


@pytest.mark.parametrize("line", ["!secret @a", "[ab].toml @a", "*.toml team-without-at", "*.toml @a nobody@nowhere", "\\#x @a", "* @"])
def test_a_line_that_github_skips_is_set_aside_with_a_warning(line: str) -> None:
    codeowners = parse_codeowners(f"* @all\n{line}\n", "CODEOWNERS")
    assert [rule.pattern for rule in codeowners.rules] == ["*"]
    assert len(codeowners.warnings) == 1
    assert codeowners.warnings[0].startswith("CODEOWNERS:2: ")


def test_a_real_file_parses_whole(shared: Path) -> None:
    text = (shared / "data" / "formats" / "codeowners" / "aiconfigurator.CODEOWNERS").read_text(encoding="utf-8")
    codeowners = parse_codeowners(text, "CODEOWNERS")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert codeowners.warnings == ()
    assert len(codeowners.rules) == len(lines)
    for path, owner in {
        "src/x/y.py": "@ai-dynamo/aiconfigurator-runtime",
        "tools/x.py": "@ai-dynamo/aiconfigurator-generators",
        "docker/a/Dockerfile": "@ai-dynamo/aiconfigurator-infra",
        "a/tools/x.py": "@ai-dynamo/contributors-aiconfigurator",
    }.items():
        rule = codeowners.rule_of(PurePosixPath(path))
        assert rule is not None
        assert owner in rule.owners, path


def repository(folder: Path, place: str, text: str) -> Path:
    (folder / ".git").mkdir(exist_ok=True)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder


def test_the_first_place_that_has_one_is_used_alone(tmp_path: Path) -> None:
    repository(tmp_path, "docs/CODEOWNERS", "* @docs")
    repository(tmp_path, "CODEOWNERS", "* @top")
    assert found(tmp_path)[0].where == "CODEOWNERS"
    repository(tmp_path, ".github/CODEOWNERS", "*.md @nobody")
    codeowners, path = found(tmp_path)
    assert codeowners.where == ".github/CODEOWNERS"
    assert codeowners.rule_of(path) is None


def found(top: Path) -> tuple[Codeowners, PurePosixPath]:
    result = find_codeowners(top / "service" / "mapping.toml")
    assert result is not None
    return result


def test_the_path_is_relative_to_the_top_of_the_nearest_repository(tmp_path: Path) -> None:
    repository(tmp_path, "CODEOWNERS", "* @outer")
    (tmp_path / "service").mkdir()
    repository(tmp_path / "service", "CODEOWNERS", "/mapping.toml @inner")
    codeowners, path = found(tmp_path)
    assert path == PurePosixPath("mapping.toml")
    rule = codeowners.rule_of(path)
    assert rule is not None
    assert rule.owners == ("@inner",)


def test_outside_a_repository_or_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert find_codeowners(tmp_path / "mapping.toml") is None
    (tmp_path / ".git").write_text("gitdir: elsewhere\n", encoding="utf-8")
    assert find_codeowners(tmp_path / "mapping.toml") is None


def test_an_empty_file_gives_nobody(tmp_path: Path) -> None:
    repository(tmp_path, ".github/CODEOWNERS", "")
    repository(tmp_path, "CODEOWNERS", "* @all")
    assert found(tmp_path)[0].rules == ()


def test_a_file_that_is_not_text_is_one_sentence(tmp_path: Path) -> None:
    repository(tmp_path, "CODEOWNERS", "")
    (tmp_path / "CODEOWNERS").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="UTF-8"):
        find_codeowners(tmp_path / "mapping.toml")
