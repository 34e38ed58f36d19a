"""`replay map` of ONNX models: three forms of one table, and one sentence for what cannot be used."""

import csv
import io
import json
import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="the optional package onnx is not installed")

from onnx import TensorProto, helper

from tests.onnx_models import Net, conv_net, encoder, save


@pytest.fixture
def folder(empty):
    save(conv_net(), empty.folder / "net.onnx")
    save(encoder(), empty.folder / "encoder.onnx")
    save(conv_net(4), empty.folder / "fixed.onnx")
    return empty


def one_sentence(result):
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("replay: ")
    assert "; want " in line
    assert ". Fix: " in line
    return line


def test_json_and_csv_hold_the_same_rows_and_totals_are_their_sums(folder):
    arguments = ("map", "--model", "net.onnx", "--hardware", "l40s", "--batch", "1,8", "--format")
    document = json.loads(folder.replay(*arguments, "json").stdout)
    rows = list(csv.DictReader(io.StringIO(folder.replay(*arguments, "csv").stdout)))
    assert (document["model"], document["hardware"], document["batch_axis"]) == ("net.onnx", "l40s", "batch")
    assert [row["name"] for row in rows] == [entry["name"] for entry in document["costs"]]
    assert [float(row["time_s"]) for row in rows] == [entry["time_s"] for entry in document["costs"]]
    for total in document["totals"]:
        times = [entry["time_s"] for entry in document["costs"] if entry["batch_count"] == total["batch_count"]]
        assert total["time_s"] == pytest.approx(sum(times))
    one, eight = document["totals"]
    assert eight["flops"] == pytest.approx(8 * one["flops"])


def test_text_shows_every_operator_its_total_and_what_has_no_kernel(folder):
    net = Net()
    odd = net.add("Mystery", net.input("x", ["n", 6]), name="odd/and/with/a/path/longer/than/the/column", domain="acme")
    net.value_info.append(helper.make_tensor_value_info(odd, TensorProto.FLOAT, ["n", 9]))
    save(net.model(net.add("Relu", odd, name="active"), domains=["acme"]), folder.folder / "odd.onnx")
    lines = folder.replay("map", "--model", "odd.onnx", "--hardware", "h100-sxm", "--batch", "16").stdout.splitlines()
    assert lines[0] == "odd.onnx on h100-sxm, batch 16"
    assert lines[2].startswith("...a/path/longer/than/the/column Mystery")
    assert lines[3].startswith("active ")
    assert lines[4].startswith("total of 2 operators ")
    assert lines[-2] == "without a kernel, costed by their bytes"
    assert "(Mystery): no kernel is known for the operator type Mystery (acme)" in lines[-1]


def test_a_model_is_told_by_its_content_and_the_project_may_name_it(project):
    save(conv_net(), project.folder / "net.model")
    shown = project.replay("map", "--model", "net.model").stdout
    assert shown.startswith("net.model on a100-sxm-80gb, batch 1\n")
    text = project.read("replay.toml")
    assert 'model = "llama-3.1-8b"' in text
    project.write("replay.toml", text.replace('model = "llama-3.1-8b"', 'model = "net.model"'))
    assert project.replay("map").stdout == shown


def test_without_fusion_every_operator_stands_for_itself(folder):
    arguments = ("map", "--model", "net.onnx", "--hardware", "l40s", "--format", "json")
    fused, plain = (json.loads(folder.replay(*arguments, *more).stdout) for more in ((), ("--no-fusion",)))
    assert "+" in fused["costs"][0]["members"]
    assert not [entry for entry in plain["costs"] if "+" in entry["members"]]
    assert fused["totals"][0]["flops"] == plain["totals"][0]["flops"]
    assert fused["totals"][0]["time_s"] < plain["totals"][0]["time_s"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "encoder.onnx"], "add --axis sequence=SIZE"),
        (["--model", "encoder.onnx", "--axis", "sequence"], "--axis: 'sequence'; want each axis once, as NAME=SIZE"),
        (["--model", "encoder.onnx", "--axis", "sequence=many"], "--axis: 'sequence=many'"),
        (["--model", "encoder.onnx", "--axis", "sequence=3", "--axis", "sequence=4"], "the axis 'sequence' twice"),
        (["--model", "encoder.onnx", "--axis", "seqence=3"], "did you mean 'sequence'?"),
        (["--model", "net.onnx", "--batch", "0"], "--batch: the batch size '0'"),
        (["--model", "net.onnx", "--batch", "1,"], "--batch: the batch size ''"),
        (["--model", "net.onnx", "--batch", "99999999999999999999"], "whole numbers from 1 to 2147483647"),
        (["--model", "net.onnx", "--batch", "\u00b2"], "--batch: the batch size"),
        (["--model", "net.onnx", "--context", "5"], "--context and a model that is an ONNX file"),
        (["--model", "net.onnx", "--mapping", "m.toml"], "--mapping and a model that is an ONNX file"),
        (["--model", "llama-3.1-8b", "--batch", "3"], "--batch and a model that is not an ONNX file"),
        (["--model", "llama-3.1-8b", "--axis", "a=3"], "--axis and a model that is not an ONNX file"),
        (["--model", "fixed.onnx", "--batch", "2"], "no axis of the model is dynamic"),
        (["--model", "absent.onnx"], "absent.onnx: no such file"),
        (["--model", "net.onnx", "--hardware", "h1000"], "unknown accelerator 'h1000'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_one_sentence(folder, arguments, says):
    more = [] if "--hardware" in arguments else ["--hardware", "l40s"]
    assert says in one_sentence(folder.replay("map", *arguments, *more))


def test_verbs_that_replay_requests_say_that_an_onnx_model_serves_none(project):
    save(conv_net(), project.folder / "net.onnx")
    assert "print its costs with `replay map --model`" in one_sentence(project.replay("run", "--model", "net.onnx"))
    assert "print its costs with `replay map --model`" in one_sentence(project.replay("validate", "net.onnx"))


def test_a_package_that_is_not_there_is_named_with_its_fix(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    line = one_sentence(folder.replay("map", "--model", "net.onnx", "--hardware", "l40s"))
    assert "pip install 'replay-gate[onnx]'" in line


@pytest.mark.parametrize("arguments", [["map", "--help"], ["validate", "mapping.toml"]])
def test_what_needs_no_onnx_does_not_load_it(project, arguments):
    code = f"""
import sys
from gates.cli import main
try:
    main({arguments!r})
except SystemExit as error:
    assert not error.code, error.code
assert "onnx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project.folder)
