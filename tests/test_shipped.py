"""What is shipped: schemas and their examples, sample traces and their digests, the wheel, the lock file, text that must not leak."""

import csv
import hashlib
import json
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.version import Version

from gates.cli import main
from replay.documents import shipped_path

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = sorted((ROOT / "schemas").glob("*.schema.json"))
MANIFEST = json.loads((ROOT / "traces" / "MANIFEST.json").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def schema_name(path: Path) -> str:
    return path.name.removesuffix(".schema.json")


def examples(path: Path, kind: str) -> list[Path]:
    return sorted((ROOT / "schemas" / "examples").glob(f"{schema_name(path)}.{kind}.*"))


def load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


@pytest.mark.parametrize("path", SCHEMAS, ids=schema_name)
def test_a_schema_is_valid_and_names_its_version(path: Path) -> None:
    schema = load(path)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].endswith(f"/{path.name}")
    assert re.fullmatch(r"[a-z-]+\.v\d+\.schema\.json", path.name)
    assert schema["title"]


@pytest.mark.parametrize("path", SCHEMAS, ids=schema_name)
def test_a_schema_has_an_example_that_is_valid_and_one_that_is_not(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(load(path))
    valid, invalid = examples(path, "valid"), examples(path, "invalid")
    assert valid
    assert invalid
    for example in valid:
        assert [error.message for error in validator.iter_errors(load(example))] == [], example.name
    for example in invalid:
        assert not validator.is_valid(load(example)), example.name


def test_every_example_belongs_to_a_schema() -> None:
    known = {example for path in SCHEMAS for kind in ("valid", "invalid") for example in examples(path, kind)}
    assert set((ROOT / "schemas" / "examples").iterdir()) == known


def test_sample_traces_have_the_digests_of_the_manifest_and_a_card() -> None:
    data = {path.relative_to(ROOT / "traces").as_posix() for path in (ROOT / "traces").rglob("*") if path.suffix in (".parquet", ".jsonl")}
    assert {name for name in data if "replay-out/" not in name} == set(MANIFEST)
    for name, entry in MANIFEST.items():
        path = ROOT / "traces" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], name
        assert (path.parent / "card.md").is_file(), name


def test_the_demo_project_holds_the_files_of_the_contract() -> None:
    demo = ROOT / "traces" / "demo"
    for name in ("replay.toml", "mapping.toml", "mapping.candidate.toml", "policy.toml", "owners.toml", "card.md"):
        assert (demo / name).is_file(), name
    project = tomllib.loads((demo / "replay.toml").read_text(encoding="utf-8"))
    for key in ("traces", "baseline", "mapping", "policy", "owners"):
        assert (demo / project[key]).is_file(), key


def test_the_demo_says_that_its_trace_is_synthetic_and_its_policy_allows_that() -> None:
    from gates.policy import read_policy
    from replay.ingress.reader import read_trace

    demo = ROOT / "traces" / "demo"
    assert read_trace(demo / "trace.parquet").provenance.kind == "synthetic"
    assert read_policy(demo / "policy.toml").allow_synthetic
    assert "synthetic" in (demo / "card.md").read_text(encoding="utf-8")


def test_every_changed_knob_of_the_demo_has_an_owner_and_no_rule_is_idle() -> None:
    from gates.owners import UNOWNED, read_owners
    from replay.specs.mapping import diff, parse_mapping

    demo = ROOT / "traces" / "demo"
    baseline, candidate = (
        parse_mapping((demo / name).read_text(encoding="utf-8"), name) for name in ("mapping.toml", "mapping.candidate.toml")
    )
    owners = read_owners(demo / "owners.toml")
    assert owners.warnings == ()
    changed = [change.knob for change in diff(baseline, candidate)]
    assert changed == ["gemm.tile", "gemm.tile@decode", "kv.memory_ratio"]
    assert len({owners.of(knob).owner for knob in changed} - {UNOWNED}) == 3


def test_the_wheel_carries_code_schemas_catalog_and_demo_and_nothing_else(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shipped = {f"replay/_shipped/schemas/{path.name}" for path in SCHEMAS}
    shipped |= {f"replay/_shipped/traces/{name}" for name in ("MANIFEST.json", *MANIFEST, "demo/replay.toml", "demo/mapping.toml")}
    shipped |= {
        path.relative_to(ROOT).as_posix()
        for package in ("replay", "gates")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".toml", ".json")
    }
    assert shipped <= names
    top = {name.split("/")[0] for name in names}
    assert top == {"replay", "gates", f"replay_gate-{PROJECT['project']['version']}.dist-info"}
    assert not [name for name in names if "replay-out" in name or "__pycache__" in name or name.startswith("tests")]


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    return dict(pin.split("==") for pin in pins)


def test_the_lock_file_pins_everything_the_project_asks_for() -> None:
    pins = locked()
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"], *PROJECT["build-system"]["requires"]]
    for text in asked:
        requirement = Requirement(text)
        assert Version(pins[requirement.name]) in requirement.specifier, text


def test_the_lock_file_is_closed_under_dependence() -> None:
    from importlib.metadata import requires

    pins = locked()
    for name in pins:
        if name == "editables":  # only needed to install a checkout in place
            continue
        for text in requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert requirement.name.lower().replace("_", "-") in pins, f"{name} needs {text}"


LEAKS = re.compile(r"/(?:home|root|tmp)/\w|(?<![\w.])/work/|\bTODO\b|\bFIXME\b|\bXXX\b|localhost:\d", re.IGNORECASE)


def text_files() -> list[Path]:
    places = ("replay", "gates", "schemas", "traces", ".github", ".ci")
    files = [path for place in places for path in (ROOT / place).rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "requirements.lock")]
    return [path for path in files if not {"__pycache__", "replay-out"} & set(path.parts) and path.suffix not in (".parquet", ".pyc")]


def test_no_shipped_text_names_a_machine_or_is_unfinished() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEAKS.search(line)
    ]
    assert found == []


def test_the_winner_of_the_multiply_sweep_is_faster_on_every_multiply_and_loses_in_service_by_the_pool(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(shipped_path("traces") / "demo")
    replay = CliRunner()
    table = replay.invoke(main, ["map", "--diff", "mapping.toml", "mapping.gemm.toml", "--prompt", "2048", "--format", "csv"]).stdout
    rows = [row for row in csv.DictReader(table.splitlines()) if (row["step"], row["field"]) == ("prefill", "time_s")]
    times = {row["name"]: float(row["candidate"]) / float(row["baseline"]) for row in rows if row["candidate"] and row["baseline"]}
    assert all(times[name] < 0.9 for name in ("qkv", "o_proj", "gate_up", "down_proj"))
    result = replay.invoke(main, ["gate", "--candidate", "mapping.gemm.toml", "--out", str(tmp_path / "out"), "--format", "json"])
    assert result.exit_code == 10
    predicate = json.loads(result.stdout)["predicate"]
    assert (predicate["first_failing_stage"], predicate["bottleneck_class"]) == ("tiling", "memory_capacity")
    assert predicate["mitigation"]["revert"] == ["kv.memory_ratio"]
    assert {row["knob"]: row["effect"] < 0 for row in predicate["attribution"] if row["metric"] == "ttft_s.p99"}["gemm.tile"]
