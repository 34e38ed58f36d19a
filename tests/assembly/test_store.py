"""Run directories: written whole or not at all, read back equal, refused where damaged or foreign."""

import json
import os
from pathlib import Path

import pytest

from replay.assembly.assemble import assemble, summary
from replay.assembly.store import read_run, write_run
from replay.catalog.hardware import read_hardware
from replay.errors import SchemaError, SpecError
from replay.execution.engine import replay
from replay.provenance import digest_bytes
from tests.models import LLAMA_8B, mapping
from tests.step_tables import constant_table, make_limits, make_trace

FILES = {"run.json", "requests.parquet", "steps.parquet", "layers.parquet", "windows.parquet", "token_gaps.parquet"}


def make_run(step_s=0.5):
    trace = make_trace([0.0, 1.0, 2.0], [4, 50, 6], [2, 1, 3])
    table = constant_table(step_s, limits=make_limits(max_context_tokens=40))
    return assemble(trace=trace, table=table, replayed=replay(trace, table), model="m", hardware="h", mapping_digest="sha256:0", seed=2**60)


def manifest():
    trace = {"name": "test", "digest": "sha256:" + "ab" * 32, "locator": "trace.parquet", "kind": "synthetic"}
    return {
        "mapping": mapping().to_document(),
        "model": LLAMA_8B.to_document(),
        "cells": [{"trace": trace, "hardware": read_hardware("a100-sxm-80gb").to_document()}],
        "seed": "7",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(make_run(), tmp_path / "out" / "run", manifest())
    return tmp_path / "out" / "run"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_is_written_is_read_back_equal(folder):
    run, document = read_run(folder)
    assert run == make_run()
    assert document == manifest()
    assert names(folder) == FILES


def test_run_json_carries_summary_and_digests_and_is_what_was_returned(tmp_path):
    returned = write_run(make_run(), tmp_path / "run", manifest())
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document == returned
    assert document["summary"] == summary(make_run())
    assert document["run"]["rejected"] == [{"reason": "context_limit", "requests": 1}]
    assert document["files"] == {name: digest_bytes((tmp_path / "run" / name).read_bytes()) for name in FILES - {"run.json"}}


def test_the_same_run_gives_the_same_bytes(folder, tmp_path):
    write_run(make_run(), tmp_path / "again", manifest())
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_run_directory_is_replaced_and_nothing_else_is_left(folder):
    write_run(make_run(step_s=0.75), folder, manifest())
    assert read_run(folder)[0] == make_run(step_s=0.75)
    assert names(folder.parent) == {"run"}


def test_an_empty_folder_is_filled(tmp_path):
    write_run(make_run(), tmp_path, manifest())
    assert names(tmp_path) == FILES


@pytest.mark.parametrize("name", ["notes.txt", "run.json", "steps.parquet"])
def test_a_folder_with_other_content_is_left_alone(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(SpecError, match="a folder with other content"):
        write_run(make_run(), tmp_path / "run", manifest())
    assert (names(tmp_path), (tmp_path / "run" / name).read_text()) == ({"run"}, "{}")


def test_a_file_beside_the_tables_protects_a_run_directory(folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"other content \(notes.txt\)"):
        write_run(make_run(step_s=0.75), folder, manifest())
    assert read_run(folder)[0] == make_run()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(SpecError, match="a file of that name"):
        write_run(make_run(), tmp_path / "run", manifest())
    with pytest.raises(SpecError, match="it cannot be written"):
        write_run(make_run(), tmp_path / "run" / "below", manifest())


def test_a_manifest_that_breaks_its_schema_leaves_nothing_behind(folder):
    before = {name: (folder / name).read_bytes() for name in FILES}
    with pytest.raises(SchemaError, match="has no 'mapping'"):
        write_run(make_run(step_s=0.75), folder, {name: value for name, value in manifest().items() if name != "mapping"})
    assert names(folder.parent) == {"run"}
    assert {name: (folder / name).read_bytes() for name in FILES} == before


def test_a_failing_rename_puts_the_old_run_back(folder, monkeypatch):
    rename, calls = os.rename, []

    def fail_once(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(SpecError, match="No space left on device"):
        write_run(make_run(step_s=0.75), folder, manifest())
    assert read_run(folder)[0] == make_run()
    assert names(folder.parent) == {"run"}


@pytest.mark.parametrize("name", sorted(FILES - {"run.json"}))
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-10], "does not have the digest"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "does not have the digest"),
        (lambda _: b"", "the file is empty"),
    ],
)
def test_a_damaged_table_is_refused(folder, name, damage, message):
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(SpecError, match=message):
        read_run(folder)


def test_a_missing_table_is_named(folder):
    (folder / "steps.parquet").unlink()
    with pytest.raises(SpecError, match=r"steps\.parquet: no such file"):
        read_run(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ("[]", "a JSON list at the top"),
        ("{}", "has no 'schema_version'"),
        ('{"schema_version": NaN}', "the value NaN"),
    ],
)
def test_a_run_json_that_is_none_is_refused(folder, text, message):
    (folder / "run.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        read_run(folder)


def rewrite(folder, **changes):
    document = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def test_a_bundle_without_tables_is_no_run(folder):
    rewrite(folder, run=None, files=None)
    with pytest.raises(SpecError, match=r"has no 'run'.*a baseline bundle has no tables"):
        read_run(folder)


def test_a_run_without_a_figure_is_refused(folder):
    rewrite(folder, run={"trace": "test"})
    with pytest.raises(SchemaError, match="run has no 'trace_digest'"):
        read_run(folder)


@pytest.mark.parametrize(("data", "message"), [(b"no parquet", "it is not a Parquet file"), ("layers.parquet", "columns are not those")])
def test_a_file_that_is_not_the_table_is_refused_even_with_its_digest(folder, data, message):
    content = (folder / data).read_bytes() if isinstance(data, str) else data
    (folder / "steps.parquet").write_bytes(content)
    digests = {name: digest_bytes((folder / name).read_bytes()) for name in FILES - {"run.json"}}
    rewrite(folder, files=digests)
    with pytest.raises(SpecError, match=message):
        read_run(folder)


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no such folder"):
        read_run(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="not a folder"):
        read_run(tmp_path / "file")
    with pytest.raises(SpecError, match=r"a folder without run\.json"):
        read_run(tmp_path)
