"""The evidence folder: deterministic, complete, whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gates.packet.evidence import CellEvidence, paired_requests, write_evidence
from replay import documents
from replay.errors import InvariantError, SpecError
from replay.provenance import digest_bytes
from tests.attribution.attribution_cells import make_claim
from tests.runs import make_run, slower

PLAN = {"digest": "sha256:0", "seed": "7"}


def write(folder, **more):
    baseline = make_run([0.1, 0.2, 0.3])
    cells = [
        CellEvidence(
            baseline=baseline, candidate=slower(baseline, 1.5), files={"baseline.sheet.csv": pa.table({"op": ["qkv"], "time_s": [0.5]})}
        )
    ]
    arguments = {"plan": PLAN, "claims": [make_claim()], "cells": cells, "files": {"mapping.toml": b"name = 'c'\n"}} | more
    return write_evidence(folder, **arguments)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_same_evidence_gives_the_same_bytes(tmp_path):
    first, second = (write(tmp_path / name / "evidence") for name in ("a", "b"))
    assert first == second
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_the_manifest_digests_every_file_in_order_and_the_verdict_digests_the_manifest(tmp_path):
    evidence = write(tmp_path / "evidence")
    found = files_of(tmp_path / "evidence")
    manifest = found.pop("manifest.json")
    rows = json.loads(manifest)["files"]
    assert [row["path"] for row in rows] == sorted(found)
    assert {row["path"]: (row["sha256"], row["bytes"]) for row in rows} == {
        name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in found.items()
    }
    assert evidence == {"path": "evidence", "digest": digest_bytes(manifest), "reproduce": "replay reproduce verdict.json"}
    assert sorted(found) == [
        "chat-h100-sxm-tiny/baseline.sheet.csv",
        "chat-h100-sxm-tiny/layers.csv",
        "chat-h100-sxm-tiny/requests.parquet",
        "chat-h100-sxm-tiny/steps.csv",
        "claims.csv",
        "mapping.toml",
        "plan.json",
    ]


def test_claims_and_totals_can_be_read_back(tmp_path):
    write(tmp_path / "evidence")
    [claim] = rows_of(tmp_path / "evidence/claims.csv")
    assert (claim["id"], float(claim["margin"]), claim["interval_lower"]) == ("t/chip/ttft_s.p99", 0.03, "")
    totals = rows_of(tmp_path / "evidence/chat-h100-sxm-tiny/steps.csv")
    assert [row["arm"] for row in totals] == ["baseline", "candidate"]
    requests = pq.read_table(tmp_path / "evidence/chat-h100-sxm-tiny/requests.parquet")
    assert requests["candidate_ttft_s"].to_pylist() == pytest.approx([value * 1.5 for value in requests["baseline_ttft_s"].to_pylist()])


def test_requests_that_only_one_arm_has_are_kept():
    baseline = make_run([0.1, 0.2], request_ids=["a", "b"])
    candidate = make_run([0.3, 0.4], request_ids=["c", "a"])
    table = paired_requests(baseline, candidate)
    assert table["request_id"].to_pylist() == ["a", "b", "c"]
    assert table["baseline_ttft_s"].to_pylist() == [0.1, 0.2, None]
    assert table["candidate_ttft_s"].to_pylist() == [0.4, None, 0.3]
    assert table["prompt_tokens"].null_count == 0


def test_cells_whose_names_meet_keep_folders_of_their_own(tmp_path):
    runs = [make_run([0.1], trace=trace) for trace in ("a/b", "a b", "../up")]
    write(tmp_path / "evidence", cells=[CellEvidence(baseline=run, candidate=run) for run in runs])
    folders = sorted(path.name for path in (tmp_path / "evidence").iterdir() if path.is_dir())
    assert folders == ["_up-h100-sxm-tiny", "a_b-h100-sxm-tiny", "a_b-h100-sxm-tiny.2"]


def test_new_evidence_replaces_old_evidence_and_leaves_nothing_beside_it(tmp_path):
    write(tmp_path / "evidence", files={"old.txt": b"x"})
    write(tmp_path / "evidence")
    assert "old.txt" not in files_of(tmp_path / "evidence")
    assert [path.name for path in tmp_path.iterdir()] == ["evidence"]


def test_a_folder_that_is_no_evidence_is_not_touched(tmp_path):
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "mine.txt").write_text("precious")
    with pytest.raises(SpecError, match=r"other content \(mine.txt\)"):
        write(tmp_path / "evidence")
    assert [path.name for path in (tmp_path / "evidence").iterdir()] == ["mine.txt"]


def test_a_file_that_the_manifest_does_not_list_protects_an_evidence_folder(tmp_path):
    write(tmp_path / "evidence")
    (tmp_path / "evidence/chat-h100-sxm-tiny/notes.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"other content \(chat-h100-sxm-tiny/notes.txt\)"):
        write(tmp_path / "evidence")
    assert "chat-h100-sxm-tiny/notes.txt" in files_of(tmp_path / "evidence")


@pytest.mark.parametrize("manifest", ["{}", "[]", '{"files": [{"path": "mine.txt"}]}', '{"files": 3}', "no json"])
def test_a_manifest_of_something_else_makes_no_evidence_folder(tmp_path, manifest):
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/manifest.json").write_text(manifest)
    (tmp_path / "evidence/mine.txt").write_text("precious")
    with pytest.raises(SpecError, match="other content"):
        write(tmp_path / "evidence")
    assert (tmp_path / "evidence/mine.txt").read_text() == "precious"


def test_a_failed_write_leaves_the_old_evidence_whole(tmp_path, monkeypatch):
    before = write(tmp_path / "evidence")
    real, written = documents.write_atomic, []

    def full_disk(path, data):
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(documents, "write_atomic", full_disk)
    with pytest.raises(SpecError, match="No space left on device"):
        write(tmp_path / "evidence", files={"new.txt": b"x"})
    assert digest_bytes((tmp_path / "evidence" / "manifest.json").read_bytes()) == before["digest"]
    assert [path.name for path in tmp_path.iterdir()] == ["evidence"]


def test_two_files_of_one_name_are_refused(tmp_path):
    with pytest.raises(InvariantError, match=r"claims\.csv"):
        write(tmp_path / "evidence", files={"claims.csv": b"x"})
