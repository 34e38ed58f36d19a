"""`replay run --stream` writes what `replay run` writes, or says in one sentence why it cannot."""

import json

import pytest

from gates.cli.arms import read_arm
from replay.documents import read_json_object
from replay.ingress.streamed import StreamedTrace
from replay.pipeline import PieceReplayer

PLACE = "demo-a100-sxm-80gb"


@pytest.fixture
def small(project):
    """The demo on 600 requests."""
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.parquet", "--max-requests", "600").exit_code == 0
    return project


def documents(project, *arguments):
    result = project.replay("run", "--format", "json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_stream_writes_the_run_directory_of_the_plain_run(small):
    plain, stream = documents(small, "--out", "plain"), documents(small, "--out", "stream", "--stream")
    assert stream == plain
    for path in (small.folder / "plain" / PLACE).iterdir():
        assert (small.folder / "stream" / PLACE / path.name).read_bytes() == path.read_bytes()
    arms = [read_arm(str(small.folder / out / PLACE), role="baseline", folder=small.folder) for out in ("plain", "stream")]
    assert arms[0].cells == arms[1].cells


def test_a_stream_says_what_the_plain_run_says(small):
    plain, stream = (small.replay("run", *more).stdout for more in ([], ["--stream"]))
    assert stream == plain
    assert "600 requests" in stream


def test_pieces_that_follow_one_another_are_one_run(small, monkeypatch):
    monkeypatch.setitem(PieceReplayer.write.__kwdefaults__, "rows", 70)
    sizes, pieces = [], StreamedTrace.pieces

    def counted(self, rows):
        for piece in pieces(self, rows):
            sizes.append(piece.num_rows)
            yield piece

    monkeypatch.setattr(StreamedTrace, "pieces", counted)
    plain, stream = documents(small, "--out", "plain")[0], documents(small, "--out", "stream", "--stream")[0]
    assert sizes == [70] * 8 + [40]
    assert stream["summary"]["percentiles"] == plain["summary"]["percentiles"]
    assert read_json_object(small.folder / "stream" / PLACE / "run.json", "a run") == stream


def refusal(project, *arguments):
    result = project.replay("run", "--stream", "--out", "out", *arguments)
    assert result.exit_code == 2
    assert not (project.folder / "out").exists() or not any((project.folder / "out").iterdir())
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_what_cannot_be_replayed_in_pieces_is_one_sentence(small):
    small.write("cached.toml", small.read("mapping.toml").replace("[kv]\n", "[kv]\nprefix_cache = true\n"))
    assert "kv.prefix_cache: true" in refusal(small, "--mapping", "cached.toml")
    assert small.replay("trace", "load", "trace.parquet", "--out", "loaded.parquet", "--concurrency", "4").exit_code == 0
    assert "requests that clients send" in refusal(small, "--trace", "loaded.parquet")
    assert small.replay("trace", "slice", "trace.parquet", "--out", "trace.jsonl", "--max-requests", "9").exit_code == 0
    assert "no native Parquet trace" in refusal(small, "--trace", "trace.jsonl")
