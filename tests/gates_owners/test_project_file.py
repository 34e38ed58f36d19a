"""The project file: found nearest upwards, read strictly, its paths relative to itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from gates.project import Project, find_project, read_project
from replay.errors import SpecError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_nearest_project_upwards_is_found(tmp_path: Path) -> None:
    write(tmp_path / "replay.toml", 'model = "far"')
    near = write(tmp_path / "service" / "replay.toml", 'model = "near"')
    inside = tmp_path / "service" / "a" / "b"
    inside.mkdir(parents=True)
    project = find_project(inside)
    assert project == Project(path=near, model="near")


def test_replay_toml_comes_before_pyproject_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[tool.replay]\nmodel = "from pyproject"')
    write(tmp_path / "replay.toml", 'model = "from replay.toml"')
    project = find_project(tmp_path)
    assert project is not None
    assert project.model == "from replay.toml"


def test_a_pyproject_without_the_table_is_passed_by(tmp_path: Path) -> None:
    outer = write(tmp_path / "pyproject.toml", "[tool.replay]\nseed = 3")
    write(tmp_path / "inner" / "pyproject.toml", '[project]\nname = "x"\n[tool.ruff]\nline-length = 100')
    project = find_project(tmp_path / "inner")
    assert project == Project(path=outer, seed=3)


def test_an_empty_table_is_a_project_with_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", "[tool.replay]")
    assert find_project(tmp_path) == Project(path=path, out="replay-out", seed=0)


def test_no_project_is_none(tmp_path: Path) -> None:
    # The folders above a temporary folder hold no project file.
    assert find_project(tmp_path) is None


@pytest.mark.parametrize(("written", "read"), [('"a"', ("a",)), ('["a", "b"]', ("a", "b"))])
def test_one_text_is_a_list_of_one(written: str, read: tuple[str, ...], tmp_path: Path) -> None:
    project = read_project(write(tmp_path / "replay.toml", f"hardware = {written}\ntraces = {written}"))
    assert project.hardware == project.traces == read


def test_paths_are_relative_to_the_project_file(tmp_path: Path) -> None:
    project = read_project(write(tmp_path / "replay.toml", 'mapping = "mappings/new.toml"'))
    assert project.mapping == "mappings/new.toml"
    assert project.path_of(project.mapping) == tmp_path / "mappings" / "new.toml"
    assert project.path_of("/elsewhere/policy.toml") == Path("/elsewhere/policy.toml")


BAD_PROJECTS = {
    "unknown key": ('trace = "a"', "'trace'; did you mean 'traces'"),
    "number for text": ("model = 3", "model is 3"),
    "empty text": ('policy = ""', "policy"),
    "blank text": ('owners = "  "', "owners"),
    "empty list": ("traces = []", "a path, or a list of paths"),
    "list of numbers": ("hardware = [1]", "a name, or a list of names"),
    "twice in a list": ('hardware = ["l40s", "l40s"]', "hardware"),
    "negative seed": ("seed = -1", "seed is -1"),
    "fractional seed": ("seed = 1.5", "seed is 1.5"),
    "boolean seed": ("seed = true", "seed is true"),
    "oversized seed": ("seed = 9223372036854775808", "63 bits"),
    "not toml": ("model =", "TOML"),
    "empty": ("", "empty"),
}


@pytest.mark.parametrize("case", BAD_PROJECTS)
def test_a_bad_project_file_is_one_sentence(case: str, tmp_path: Path) -> None:
    text, named = BAD_PROJECTS[case]
    path = write(tmp_path / "replay.toml", text)
    with pytest.raises(SpecError) as caught:
        find_project(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert named in message
    assert "Fix: " in message
    assert "\n" not in message


def test_the_line_of_an_unknown_key_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "replay.toml", 'model = "m"\n\ntrace = "a"\n')
    with pytest.raises(SpecError) as caught:
        read_project(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("text", "named"),
    [("[tool.replay]\ntrace = 'a'", "[tool.replay]"), ("[tool]\nreplay = 3", "a table"), ("[tool.replay", "TOML")],
)
def test_a_bad_table_in_pyproject_is_one_sentence(text: str, named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", text)
    with pytest.raises(SpecError) as caught:
        find_project(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert named in str(caught.value)


def test_a_pyproject_named_outright_needs_the_table(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no table"):
        read_project(write(tmp_path / "pyproject.toml", '[project]\nname = "x"'))


def test_reading_a_project_loads_no_heavy_library() -> None:
    code = "import sys, gates.project; print(sorted({'numpy', 'pyarrow', 'scipy', 'numba', 'pandas'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
