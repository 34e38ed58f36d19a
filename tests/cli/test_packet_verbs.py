"""`replay verify`, `reproduce` and `explain` on packets that `replay gate` wrote, and on what became of them."""

import itertools
import json
import random
import shutil
import subprocess
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gates.cli import main
from gates.packet.packet import folder_contents, open_packet, zip_bytes
from gates.packet.verify import verify
from replay.documents import pretty_json
from replay.ingress.native import write_trace
from replay.ingress.normalize import slice_trace
from replay.ingress.reader import read_trace
from replay.provenance import digest_document
from tests.runs import lognormal_s

FAILED, MISSING = 10, 30


@pytest.fixture(scope="module")
def packed(tmp_path_factory, small_demo):
    """A project with a packet of its change (`replay-out`), the same as a zip, signed with `key.pem`."""
    folder = tmp_path_factory.mktemp("packed") / "project"
    shutil.copytree(small_demo, folder)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "key.pem"], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", folder / "key.pem", "-pubout", "-out", folder / "key.pub"], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ["--packet", "packet.zip", "--sign-key", "key.pem"]
        result = CliRunner().invoke(main, ["gate", "--baseline", "mapping.toml", "--candidate", "mapping.candidate.toml", *options])
    assert result.exit_code == 10, result.output
    return folder


@pytest.fixture
def packet(tmp_path, monkeypatch, packed, project):
    """A copy of that project, with the current folder inside it."""
    shutil.copytree(packed, project.folder, dirs_exist_ok=True)
    return project


def failed(result):
    return {line.split()[1].rstrip(":") for line in result.stdout.splitlines() if line.startswith("FAILED")}


def test_a_packet_is_intact_as_a_folder_as_a_zip_and_by_its_verdict_and_says_what_it_did_not_check(packet):
    for place in ("replay-out", "packet.zip", "replay-out/verdict.json"):
        result = packet.replay("verify", place)
        assert result.exit_code == 0, result.output
        assert "not checked  signature" in result.stdout
        assert "not checked  recomputation" in result.stdout
    checks = json.loads(packet.replay("verify", "packet.zip", "--format", "json").stdout)
    assert checks["is_intact"]
    assert {check["check"] for check in checks["checks"]} == {"zip", "index", "files", "verdict", "evidence", "signature", "recomputation"}


def test_the_zip_holds_the_bytes_of_the_folder(packet):
    with zipfile.ZipFile(packet.folder / "packet.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == folder_contents(packet.folder / "replay-out")


def test_a_changed_byte_anywhere_in_a_packet_is_found(packet):
    draw = random.Random(7)
    zipped = (packet.folder / "packet.zip").read_bytes()
    files = [path for path in (packet.folder / "replay-out").rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        for place in draw.sample(range(len(data)), min(len(data), 12)):
            path.write_bytes(data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :])
            assert any(check.state == "fails" for check in verify(open_packet(packet.folder / "replay-out"))), (path, place)
        path.write_bytes(data)
    for place in [*draw.sample(range(len(zipped)), 40), *range(len(zipped) - 40, len(zipped))]:
        packet.write("changed.zip", zipped[:place] + bytes([zipped[place] ^ (1 << draw.randrange(8))]) + zipped[place + 1 :])
        assert packet.replay("verify", "changed.zip").exit_code in (FAILED, 2), place
    assert packet.replay("verify", "replay-out").exit_code == 0


@pytest.mark.parametrize(
    ("name", "check"),
    [("summary.md", "files"), ("evidence/plan.json", "evidence"), ("evidence/manifest.json", "evidence"), ("verdict.dsse.json", "files")],
)
def test_a_missing_file_is_found(packet, name, check):
    (packet.folder / "replay-out" / name).unlink()
    result = packet.replay("verify", "replay-out")
    assert result.exit_code == FAILED
    assert check in failed(result)


def test_a_file_beside_the_evidence_is_named_and_one_inside_it_is_a_failure(packet):
    packet.write("replay-out/notes.txt", "mine")
    result = packet.replay("verify", "replay-out")
    assert result.exit_code == 0
    assert "not checked  other files: notes.txt" in result.stdout
    packet.write("replay-out/evidence/more.csv", "mine")
    assert failed(packet.replay("verify", "replay-out")) == {"evidence"}


def test_a_verdict_alone_is_checked_by_itself_and_what_it_rests_on_is_not(packet):
    alone = packet.folder / "alone"
    alone.mkdir()
    shutil.copy(packet.folder / "replay-out/verdict.json", alone)
    result = packet.replay("verify", "alone/verdict.json")
    assert result.exit_code == 0
    assert {"index", "evidence", "signature", "recomputation"} == {
        line.split()[2].rstrip(":") for line in result.stdout.splitlines() if line.startswith("not checked")
    }
    assert packet.replay("reproduce", "alone/verdict.json").exit_code == MISSING


def edited(packet, change):
    """Write a verdict changed by hand, with its plan's digest made anew, where nothing else speaks against it."""
    document = json.loads(packet.read("replay-out/verdict.json"))
    change(document["predicate"])
    plan = {key: value for key, value in document["predicate"]["plan"].items() if key != "digest"}
    document["predicate"]["plan"]["digest"] = digest_document(plan)
    (packet.folder / "alone").mkdir()
    packet.write("alone/verdict.json", pretty_json(document))
    return packet.replay("verify", "alone/verdict.json")


def release_it(predicate):
    predicate["decision"], predicate["basis"] = "release", "proven_safe"


def hold_it(predicate):
    for holder in (predicate, *predicate["per_trace"]):
        for claim in holder["claims"]:
            claim["outcome"] = "holds"


def drop_a_claim(predicate):
    del predicate["claims"][0]


@pytest.mark.parametrize("change", [release_it, hold_it, drop_a_claim])
def test_a_verdict_whose_parts_speak_against_each_other_is_found_even_without_its_packet(packet, change):
    result = edited(packet, change)
    assert result.exit_code == FAILED
    assert failed(result) == {"verdict"}


def test_a_signature_is_by_the_key_that_is_named_or_it_is_a_failure(packet):
    assert "ok           signature" in packet.replay("verify", "packet.zip", "--key", "key.pub").stdout
    for name in ("other.pem", "rsa.pem"):
        kind = ["-algorithm", "ed25519"] if name == "other.pem" else ["-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:2048"]
        subprocess.run(["openssl", "genpkey", *kind, "-out", name], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", name, "-pubout", "-out", f"{name}.pub"], check=True, capture_output=True)
    assert failed(packet.replay("verify", "packet.zip", "--key", "other.pem.pub")) == {"signature"}
    for key in ("rsa.pem.pub", "mapping.toml", "no.pub", "key.pem"):
        result = packet.replay("verify", "packet.zip", "--key", key)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    (packet.folder / "replay-out/verdict.dsse.json").unlink()
    assert "signature" in failed(packet.replay("verify", "replay-out", "--key", "key.pub"))


def test_a_key_that_cannot_sign_stops_the_gate_before_anything_is_replayed(packet):
    for key in ("key.pub", "no.pem", "mapping.toml"):
        result = packet.replay("gate", "--baseline", "mapping.toml", "--sign-key", key)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr


def test_a_verdict_is_recomputed_byte_for_byte_in_another_checkout(packet, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copy(packet.folder / "packet.zip", other)
    shutil.copy(packet.folder / "trace.parquet", other / "renamed.parquet")
    monkeypatch.chdir(other)
    result = packet.replay("reproduce", "packet.zip")
    assert (result.exit_code, "the trace demo is not to be had" in result.stderr) == (MISSING, True)
    result = packet.replay("reproduce", "packet.zip", "--trace", "renamed.parquet", "--out", "again")
    assert (result.exit_code, result.stdout) == (0, "packet.zip: identical, byte for byte\n")
    assert folder_contents(other / "again").keys() | {"verdict.dsse.json"} == folder_contents(packet.folder / "replay-out").keys()


def test_another_trace_does_not_stand_in_and_a_damaged_packet_is_not_recomputed(packet):
    write_trace(slice_trace(read_trace(packet.folder / "trace.parquet"), max_requests=1000), packet.folder / "trace.parquet")
    result = packet.replay("reproduce", "replay-out")
    assert (result.exit_code, "another digest" in result.stderr) == (MISSING, True)
    packet.write("replay-out/evidence/plan.json", "{}")
    result = packet.replay("reproduce", "replay-out")
    assert (result.exit_code, "evidence: evidence/plan.json changed" in result.stderr) == (MISSING, True)


def with_evidence(packet, name, change):
    """Change a JSON file of the evidence and make every digest above it anew: a packet that somebody else wrote."""
    contents = folder_contents(packet.folder / "replay-out")
    contents.pop("verdict.dsse.json")
    document = json.loads(contents[f"evidence/{name}"])
    change(document)
    contents[f"evidence/{name}"] = pretty_json(document).encode()
    from gates.packet.packet import file_rows, index_bytes
    from replay.provenance import digest_bytes

    inner = {key.removeprefix("evidence/"): data for key, data in contents.items() if key.startswith("evidence/")}
    inner.pop("manifest.json")
    contents["evidence/manifest.json"] = pretty_json({"files": file_rows(inner)}).encode()
    verdict = json.loads(contents["verdict.json"])
    verdict["predicate"]["evidence"]["digest"] = digest_bytes(contents["evidence/manifest.json"])
    contents["verdict.json"] = pretty_json(verdict).encode()
    index = json.loads(contents.pop("packet.json"))
    listed = {key: data for key, data in contents.items() if key == "evidence/manifest.json" or not key.startswith("evidence/")}
    contents["packet.json"] = index_bytes(listed, index["traces"])
    return packet.write("other.zip", zip_bytes(contents))


def test_what_differs_is_listed_where_the_request_of_a_packet_is_another(packet):
    place = with_evidence(packet, "request.json", lambda request: request.update(seed="12"))
    assert packet.replay("verify", place).exit_code == 0
    result = packet.replay("reproduce", place)
    assert result.exit_code == FAILED
    assert result.stdout.splitlines()[1].strip().startswith("plan.digest: ")
    assert "plan.seed: 0 -> 12" in result.stdout
    found = json.loads(packet.replay("reproduce", place, "--format", "json").stdout)
    assert not found["is_identical"]
    assert any(line.startswith("plan.digest: ") for line in found["differences"])
    assert not any(line.startswith("inputs") for line in found["differences"])


@pytest.mark.parametrize(
    "change", [lambda request: request.pop("cells"), lambda request: request.update(seed="x"), lambda request: request.update(policy={})]
)
def test_a_request_that_no_gate_wrote_is_one_sentence(packet, change):
    result = packet.replay("reproduce", with_evidence(packet, "request.json", change))
    assert (result.exit_code, result.stderr.strip().count("\n")) == (2, 0), result.stderr


def test_a_packet_of_a_newer_version_is_refused_and_not_judged(packet):
    for name, old, new in (
        ("packet.json", '"schema_version": "1"', '"schema_version": "2"'),
        ("verdict.json", "gate-verdict/v1", "gate-verdict/v2"),
    ):
        text = packet.read(f"replay-out/{name}")
        assert old in text
        packet.write(f"replay-out/{name}", text.replace(old, new))
        for verb in ("verify", "reproduce"):
            result = packet.replay(verb, "replay-out")
            assert (result.exit_code, "install the version that wrote it" in result.stderr, result.stdout) == (2, True, "")
        packet.write(f"replay-out/{name}", text)


def test_what_is_no_packet_is_one_sentence(packet):
    zipped = (packet.folder / "packet.zip").read_bytes()
    packet.write("cut.zip", zipped[: len(zipped) // 2])
    with zipfile.ZipFile(packet.folder / "squeezed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("verdict.json", "{}" * 10_000)
    (packet.folder / "nothing").mkdir()
    for verb in ("verify", "reproduce", "explain"):
        for place in ("cut.zip", "squeezed.zip", "nothing", "absent", "mapping.toml", "trace.parquet"):
            result = packet.replay(verb, place)
            assert (result.exit_code, result.stderr.strip().count("\n")) == (2, 0), (verb, place, result.stderr)


def test_an_explanation_names_the_decision_the_cause_the_owner_and_how_to_check_it(packet):
    text = packet.replay("explain", "packet.zip").stdout
    assert text == packet.replay("explain", "replay-out/verdict.json").stdout
    assert text.startswith("ROLLBACK (regression)\n")
    titles = ["What was asked", "What came out", "Why", "What got better", "Who, and what to do", "How sure this is", "How to check it"]
    lines = text.splitlines()
    assert [line for line, under in itertools.pairwise(lines) if under and set(under) == {"-"}] == titles
    assert "gemm.tile@decode" in text
    assert "decode-kernels" in text
    assert "replay reproduce verdict.json" in text
    assert len(lines) < 120


def test_the_minimal_slice_shows_the_regression_by_itself(packet):
    place = next((packet.folder / "replay-out/evidence").glob("*/minimal-slice.json"))
    found = json.loads(place.read_text())
    requests = pq.read_table(place.with_suffix(".parquet"))
    assert requests.num_rows == found["requests"] < 1200
    assert found["claim"]["ratio"] > 1 + found["claim"]["margin"]
    window = ("--start", str(found["start_s"]), "--max-requests", str(found["requests"]), "--name", "demo")
    assert packet.replay("trace", "slice", "trace.parquet", "--out", "small.parquet", *window).exit_code == 0
    assert read_trace(packet.folder / "small.parquet").requests["prompt_tokens"].equals(requests["prompt_tokens"])
    arms = ("--baseline", "mapping.toml", "--candidate", "mapping.candidate.toml")
    result = packet.replay("gate", *arms, "--trace", "small.parquet", "--out", "small", "--format", "json")
    claim = next(claim for claim in json.loads(result.stdout)["predicate"]["claims"] if claim["id"] == found["claim"]["id"])
    assert claim["ratio"] == pytest.approx(found["claim"]["ratio"], rel=1e-12)


def test_measured_runs_are_recomputed_from_the_packet_alone(empty):
    values = lognormal_s(2000)
    for name, factor in (("a", 1.0), ("b", 1.1)):
        for run in range(2):
            noise = np.exp(0.01 * np.random.default_rng([run, len(name)]).standard_normal(2000))
            pq.write_table(
                pa.table({
                    "request_id": [f"r{row}" for row in range(2000)],
                    "arrival_s": [0.5 * row for row in range(2000)],
                    "ttft_s": factor * values * noise,
                    "e2e_s": 2 * factor * values * noise,
                    "prompt_tokens": [100] * 2000,
                    "output_tokens": [10] * 2000,
                }),
                f"{name}{run}.parquet",
            )  # fmt: skip
    arms = [
        part for role, name in (("--baseline", "a"), ("--candidate", "b")) for run in range(2) for part in (role, f"{name}{run}.parquet")
    ]
    result = empty.replay("gate", *arms, "--packet", "packet.zip", "--seed", "3", "--out", "out")
    assert result.exit_code in (10, 20), result.output
    for path in empty.folder.glob("*.parquet"):
        path.unlink()
    result = empty.replay("reproduce", "packet.zip")
    assert (result.exit_code, result.stdout) == (0, "packet.zip: identical, byte for byte\n"), result.output
