"""The documentation: verb pages are the command line's own words, every command runs, every path and link is there, the site builds."""

import re
import shutil

import pytest
from click.testing import CliRunner

from gates.cli import VERBS, main
from replay.documents import shipped_path
from tests.docs.verb_pages import FOLDER, pages
from tests.test_readme import console_commands, missing_paths

DOCS = FOLDER.parent
WRITTEN = [path for path in sorted(DOCS.rglob("*.md")) if path.parent != FOLDER]


def test_the_verb_pages_are_what_the_command_line_says():
    assert {path.name: path.read_text() for path in FOLDER.glob("*.md")} == pages(), "run python tests/docs/verb_pages.py"
    assert set(pages()) == {f"{verb}.md" for verb in VERBS}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "my-project"
    shutil.copytree(shipped_path("traces") / "demo", folder, ignore=shutil.ignore_patterns("replay-out"))
    return folder


COMMANDS = [command for path in WRITTEN for command in console_commands(path.read_text())]


def test_the_quick_start_shows_commands():
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(("arguments", "code"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_a_documented_command_runs_as_written(sample, monkeypatch, arguments, code):
    monkeypatch.chdir(sample)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_paths_links_and_names_that_a_page_uses_exist(path):
    text = path.read_text()
    assert missing_paths(text) == []
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (path.parent / target).is_file(), target
    code = "\n".join(one.read_text() for folder in ("replay", "gates") for one in (DOCS.parents[1] / folder).rglob("*.py"))
    for name in re.findall(r"`([A-Z][A-Za-z]+|[A-Z_]{4,}|[a-z]+_[a-z_]+)`", text):
        assert re.search(rf"\b{name}\b", code), f"{path.name} names {name}"


def test_the_site_builds(tmp_path):
    config = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed")
    build = pytest.importorskip("mkdocs.commands.build")
    loaded = config.load_config(str(DOCS.parent / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    build.build(loaded)
    assert (tmp_path / "site" / "verbs" / "gate" / "index.html").is_file()
    assert not re.findall(r"""(?:src|href)=["']https?:""", (tmp_path / "site" / "index.html").read_text().split("<footer", 1)[0])
