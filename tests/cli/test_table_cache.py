"""The user's cache of tabulated mappings: what is in the folder, what is not believed, and that no artifact depends on it."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from gates.cli.table_cache import FOLDER, UserCache, user_cache

KEYS = [f"sha256:{index:064x}" for index in range(40)]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return an empty cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def cache(folder, limit_bytes=10**6):
    return UserCache(folder=folder, limit_bytes=limit_bytes, edition="1")


def artifacts(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_gate_writes_the_same_bytes_with_a_cold_a_warm_and_no_cache(project, own):
    found = []
    for more in ((), (), ("--no-cache",)):
        result = project.replay("gate", "--candidate", "mapping.toml", "--out", "out", *more)
        found.append((result.exit_code, result.output, artifacts(project.folder / "out")))
    assert found[0] == found[1] == found[2]
    assert list(own.iterdir())


def test_without_the_cache_nothing_is_read_or_written(project, own):
    for verb in (("map",), ("run", "--out", "runs"), ("baseline", "--out", "b.json")):
        assert project.replay(*verb, "--no-cache").exit_code == 0
    assert not own.exists()


def test_damaged_files_are_made_again(project, own):
    shown = project.replay("map").output
    [path] = own.iterdir()
    whole = path.read_bytes()
    for bad in (b"", whole[:-9], b"ARROW1"):
        path.write_bytes(bad)
        assert project.replay("map").output == shown
        assert path.read_bytes() == whole
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_the_tables_used_longest_ago_go_first_and_other_files_stay(tmp_path):
    kept = cache(tmp_path / "tables", limit_bytes=250)
    kept.write(KEYS[0], b"x" * 100)
    (kept.folder / "notes.txt").write_bytes(b"y" * 1000)
    kept.write(KEYS[1], b"x" * 100)
    for age, key in ((90, KEYS[0]), (60, KEYS[1])):
        os.utime(kept._path(key), (1e9 - age, 1e9 - age))
    assert kept.read(KEYS[0]) is not None  # now KEYS[1] is the oldest
    kept.write(KEYS[2], b"x" * 100)
    assert [kept.read(key) is not None for key in KEYS[:3]] == [True, False, True]
    assert (kept.folder / "notes.txt").exists()


def test_many_writers_and_readers_never_see_half_a_table(tmp_path):
    def work(index):
        one = cache(tmp_path / "tables", limit_bytes=5000)
        found = []
        for key in KEYS:
            one.write(key, key.encode() * 10)
            found.append((key, one.read(KEYS[index])))
        return [data in (None, KEYS[index].encode() * 10) for _, data in found]

    with ThreadPoolExecutor(8) as pool:
        assert all(all(whole) for whole in pool.map(work, range(8)))
    assert sum(path.stat().st_size for path in (tmp_path / "tables").iterdir()) <= 5000


def test_a_folder_that_cannot_be_written_only_costs_time(project, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert project.replay("map").exit_code == 0


def test_the_folder_is_the_users_and_a_relative_one_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache(False).folder == tmp_path / ".cache" / FOLDER
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert user_cache(False).folder == tmp_path / "there" / FOLDER
    assert user_cache(True) is None
