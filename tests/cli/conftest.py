"""A runner of the command line inside the process, and small projects to run it on."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gates.cli import main
from replay.documents import shipped_path
from replay.ingress.native import write_trace
from replay.ingress.normalize import slice_trace
from replay.ingress.reader import read_trace

DEMO = shipped_path("traces") / "demo"
SMALL_DEMO_REQUESTS = 1200


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


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory) -> Path:
    """Return the demo project with a fifth of its trace and fewer blocking claims, so that a gate takes a second: see `tests.test_readme`
    for the whole of it.
    """
    folder = tmp_path_factory.mktemp("demo") / "project"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("replay-out"))
    write_trace(slice_trace(read_trace(folder / "trace.parquet"), max_requests=SMALL_DEMO_REQUESTS), folder / "trace.parquet")
    policy = (folder / "policy.toml").read_text()
    blocking = 'ttft_s = { p95 = "3 %" }\ntpot_s = { p95 = "3 %" }\ne2e_s = { p95 = "3 %" }\n'
    policy = re.sub(r"(?s)(\[blocking\]\n).*?\n(?=\n\[advisory\])", rf"\1{blocking}", policy)
    (folder / "policy.toml").write_text("resimulations = 60\nmax_resimulations = 60\n" + policy)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch, small_demo) -> Project:
    """Return a copy of the small demo project, with the current folder inside it."""
    folder = tmp_path / "project"
    shutil.copytree(small_demo, folder)
    monkeypatch.chdir(folder)
    return Project(folder)


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Project:
    """Return an empty folder, with the current folder inside it."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)
