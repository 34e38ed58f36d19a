"""`--reference`: the trace beside recent traffic, for replays and for measured runs."""

import json
import shutil

from replay.ingress.native import write_trace
from replay.ingress.reader import read_trace
from tests.step_tables import make_trace

STRICT = '\n[representativeness]\neffect = "invalidates"\n'


def gated(project, *arguments, code):
    result = project.replay("gate", *arguments, "--format", "json")
    assert result.exit_code == code, result.stderr
    predicate = json.loads(result.stdout)["predicate"]
    return predicate, {reason["code"] for reason in predicate["reasons"]}


def test_the_projects_reference_is_an_input_is_planned_with_and_can_invalidate(project):
    write_trace(make_trace(range(50), [9] * 50, [9] * 50), project.folder / "recent.parquet")
    project.write("replay.toml", 'reference = "recent.parquet"\n' + project.read("replay.toml"))
    predicate, codes = gated(project, "--candidate", "mapping.toml", code=0)
    assert {"shape_mix_differs", "shapes_not_covered", "load_differs_from_reference"} <= codes
    record = next(one for one in predicate["inputs"] if one["role"] == "reference")
    assert (record["name"], record["digest"]) == ("recent.parquet", read_trace(project.folder / "recent.parquet").digest)
    assert {cell["reference_digest"] for cell in predicate["plan"]["cells"]} == {record["digest"]}
    project.write("policy.toml", project.read("policy.toml") + STRICT)
    _, codes = gated(project, "--candidate", "mapping.toml", code=30)
    assert "shape_mix_differs" in codes
    shutil.copy(project.folder / "trace.parquet", project.folder / "same.parquet")
    gated(project, "--candidate", "mapping.toml", "--reference", "same.parquet", code=0)


def test_measured_requests_are_held_against_the_reference(project):
    rows = "request_id,arrival_s,ttft_s,e2e_s,prompt_tokens,output_tokens\n"
    lines = "".join(f"r{index},{index * 0.1:.1f},0.{index % 7 + 1},1.{index % 7},1000,11\n" for index in range(1200))
    runs = [str(project.write(name, rows + lines)) for name in ("before.csv", "after.csv")]
    project.write("strict.toml", 'allow_synthetic = true\n[blocking]\nttft_s = { p95 = "3 %" }\n' + STRICT)
    arms = ("--baseline", runs[0], "--candidate", runs[1], "--policy", "strict.toml")
    assert "reference_missing" in gated(project, *arms, code=30)[1]
    for name, prompt, code in (("alike.parquet", 900, 0), ("unlike.parquet", 90, 30)):
        write_trace(make_trace(range(1200), [prompt] * 1200, [10] * 1200), project.folder / name)
        assert ("shape_mix_differs" in gated(project, *arms, "--reference", name, code=code)[1]) is (code == 30)
