"""A runner of the command line inside the process, and small projects to run it on."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gates.cli import main
from replay.documents import shipped_path

DEMO = shipped_path("traces") / "demo"


class Project:
    """A folder with the shipped demo, and the command line run inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def replay(self, *arguments: str | Path) -> Result:
        """Run `replay` and return its result; a crash is raised as it is."""
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file of the project."""
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def read(self, name: str) -> str:
        """Return a file's text."""
        return (self.folder / name).read_text()


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    """Return a copy of the demo project, with the current folder inside it."""
    folder = tmp_path / "project"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("replay-out"))
    monkeypatch.chdir(folder)
    return Project(folder)


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Project:
    """Return an empty folder, with the current folder inside it."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)
