"""Names that become part of a path or a line, and TOML places, folders and files that everything else relies on."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay import documents
from replay.errors import SpecError
from replay.folders import write_folder
from replay.names import is_safe_name, safe_name
from replay.toml_lines import locate


@pytest.mark.parametrize("name", ["demo", "conv.head5000", "a b", "_x", "9", "llama-3.1-8b", "modèle", "a..b"])
def test_plain_names_are_safe_and_stay_as_they_are(name):
    assert is_safe_name(name)
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "-x", " x", "x ", "a/b", "a\\b", "a\nb", "a\x00", "a\x1b", "a\u202eb", "a:b", "x" * 81]
)
def test_what_could_leave_its_folder_or_its_line_is_not_safe(name):
    assert not is_safe_name(name)


@given(st.text())
def test_every_text_has_a_safe_name(text):
    assert is_safe_name(safe_name(text))


@given(st.text().filter(is_safe_name))
def test_a_safe_name_stays_in_its_folder(name):
    assert Path("/top", name).resolve() == Path("/top") / name
    assert len(name.splitlines()) == 1


TOML = '''name = "m"
text = """
[gemm]
tile = "not here"
"""

[gemm]
split_k = [
  1,  # tile = 3
]
"tile@mlp[rows<=16]" = [1, 2, 3]
tile = [128, 128, 64]
kv = { block_tokens = 3 }

[[rules]]
match = "x"
'''


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("gemm",), 7),
        (("gemm", "tile"), 12),
        (("gemm", "tile", 2), 12),
        (("gemm", "tile@mlp[rows<=16]"), 11),
        (("gemm", "split_k"), 8),
        (("gemm", "gone"), 7),
        (("gemm", "kv", "block_tokens"), 13),
        (("rules", 0, "match"), 16),
        (("name",), 1),
        (("gone",), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_key_is_found_on_the_line_that_sets_it(keys, line, line_end):
    assert locate(TOML.replace("\n", line_end), keys) == line


def listed(folder):
    return frozenset({"own", "below/own"}) if (folder / "own").is_file() else None


def write(folder, contents):
    write_folder(folder, contents, what="a test folder", listed=listed)


def found(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_takes_the_place_of_its_kind_and_of_an_empty_one_only(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    write(place, {"own": b"1", "below/own": b"2"})
    write(place, {"own": b"3"})
    assert found(place) == {"own": b"3"}
    (place / "mine").write_bytes(b"4")
    with pytest.raises(SpecError, match=r"other content \(mine\)"):
        write(place, {"own": b"5"})
    assert found(tmp_path) == {"place/own": b"3", "place/mine": b"4"}


def test_a_link_inside_protects_a_folder(tmp_path):
    write(tmp_path / "place", {"own": b"1"})
    (tmp_path / "place" / "link").symlink_to(tmp_path)
    with pytest.raises(SpecError, match=r"other content \(link\)"):
        write(tmp_path / "place", {"own": b"2"})


@pytest.mark.parametrize("place", ["/proc/x/y", "/dev/null/x", "{folder}", "{file}/x", "{folder}/" + "n" * 300])
def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").write_text("x")
    path = Path(place.format(folder=tmp_path, file=tmp_path / "file"))
    with pytest.raises(SpecError, match=r"want a "):
        documents.write_atomic(path, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
