"""The README's commands run as written, in order, in a copy of the sample project, with the exit codes it states."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gates.cli import main
from replay.documents import shipped_path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def console_commands(text):
    """Return (arguments, exit code) of every `$ replay ...` line of a text that works inside the sample project."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            command, _, note = line.removeprefix("$ ").partition("    # exit ")
            if command.startswith("replay ") and "&&" not in command:
                found.append((shlex.split(command)[1:], int(note or 0)))
    return found


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme") / "my-project"
    shutil.copytree(shipped_path("traces") / "demo", folder, ignore=shutil.ignore_patterns("replay-out"))
    return folder


def test_the_readme_shows_commands():
    assert len(console_commands(README)) >= 7


@pytest.mark.parametrize(
    ("arguments", "code"), console_commands(README), ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_a_readme_command_runs_as_written(sample, monkeypatch, arguments, code):
    monkeypatch.chdir(sample)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output


def test_the_verdict_shown_in_the_readme_is_what_the_demo_prints(sample, monkeypatch):
    monkeypatch.chdir(sample)
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1].splitlines()
    printed = CliRunner().invoke(main, ["gate"]).output
    for line in shown:
        assert line in printed or line == "...", line


def missing_paths(text):
    """Return the paths from the repository's top that a text names and that do not exist."""
    named = re.findall(r"(?<![\w./-])(?:replay|gates|traces|schemas|tests|bench|\.github)/[\w./-]*", text)
    return [name for name in named if not (Path(__file__).resolve().parents[1] / name.rstrip(".")).exists()]


def test_every_path_the_readme_names_exists():
    assert missing_paths(README) == []


@pytest.mark.parametrize(
    "folder", ["replay/catalog/hardware", "replay", "gates/render", "traces/demo", "schemas", "tests", "bench", ".github"]
)
def test_a_path_that_is_not_there_is_found_in_any_folder(folder):
    assert missing_paths(f"see `{folder}/absent.toml` and {folder}/.") == [f"{folder}/absent.toml"]


def test_no_figure_is_left_open():
    assert not re.findall(r"\b[A-Z]+_(?:[A-Z]+_)*S\b", README)
