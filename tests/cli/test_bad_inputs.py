"""Every bad input gives one sentence - where, what was found, what is wanted, the fix - exit code 2, and leaves nothing behind."""

import json

import pytest

MAPPING = 'name = "m"\n'
TRACE = "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.0,20,5\n"

# (id, file to write, content, what the sentence says)
MAPPINGS = [
    ("empty", "", "the file is empty"),
    ("not toml", "name = \n", "not valid TOML"),
    ("truncated", 'name = "m"\n[gemm]\ntile = [128, ', "not valid TOML"),
    ("not text", b"\xff\xfe\x00\x01", "not UTF-8"),
    ("no name", "[gemm]\n", "it has no name"),
    ("name of a wrong type", "name = 3\n", "name is 3"),
    ("unknown section", MAPPING + "[gem]\ntile = [64, 64, 64]\n", "unknown knob 'gem.tile'; did you mean 'gemm.tile'?"),
    ("unknown knob", MAPPING + "[gemm]\ntlie = [64, 64, 64]\n", "mapping.toml:3: unknown knob 'gemm.tlie'; did you mean 'gemm.tile'?"),
    ("key outside a section", MAPPING + "gemm = 3\n", "outside a section"),
    ("wrong type", MAPPING + '[batching]\nmax_running = "many"\n', "batching.max_running is 'many'; want a whole number >= 1"),
    ("boolean for a number", MAPPING + "[batching]\nmax_running = true\n", "want a whole number >= 1"),
    ("zero", MAPPING + "[batching]\nmax_running = 0\n", "want a whole number >= 1"),
    ("negative", MAPPING + "[kv]\nblock_tokens = -16\n", "want a whole number >= 1"),
    ("fraction", MAPPING + "[kv]\nblock_tokens = 1.5\n", "want a whole number >= 1"),
    ("not a number", MAPPING + "[kv]\nmemory_ratio = nan\n", "want a number above 0 and at most 1"),
    ("a percentage for a ratio", MAPPING + "[kv]\nmemory_ratio = 90\n", "want a number above 0 and at most 1"),
    ("tile of two", MAPPING + "[gemm]\ntile = [64, 64]\n", "a list of 3 whole numbers"),
    ("odd tile", MAPPING + "[gemm]\ntile = [64, 64, 7]\n", "multiples of 8"),
    ("unknown choice", MAPPING + '[graph]\nmode = "some"\n', 'one of "none", "decode", "full"'),
    ("descending sizes", MAPPING + "[graph]\nsizes = [8, 4]\n", "an ascending list"),
    ("unknown phase", MAPPING + '[gemm]\n"tile@decoding" = [64, 64, 64]\n', "neither a phase nor a layer type"),
    ("scope the knob has not", MAPPING + '[kv]\n"block_tokens@decode" = 8\n', "cannot be scoped to a phase"),
    ("layer the knob has not", MAPPING + '[gemm]\n"tile@norm" = [64, 64, 64]\n', "cannot be scoped to the layer type norm"),
    ("broken scope", MAPPING + '[gemm]\n"tile@mlp[rows=16]" = [64, 64, 64]\n', "rows<=N"),
    ("empty scope", MAPPING + '[gemm]\n"tile@" = [64, 64, 64]\n', "not of the form"),
    ("rows that exclude all", MAPPING + '[gemm]\n"tile@mlp[rows>=9,rows<=4]" = [64, 64, 64]\n', "exclude every row"),
    ("one scope twice", MAPPING + '[gemm]\n"tile@mlp[rows<17]" = [64, 64, 64]\n"tile@mlp[rows<=16]" = [64, 64, 64]\n', "set twice"),
    ("ranks that do not divide", MAPPING + "[parallelism]\ntensor = 3\n", "which 3 ranks cannot share"),
]


def one_sentence(result):
    """Return the message, having checked its form."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("replay: ")
    assert "; want " in lines[0]
    assert " Fix: " in lines[0]
    return lines[0]


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in MAPPINGS], ids=[row[0] for row in MAPPINGS])
def test_a_bad_mapping_is_one_sentence(project, content, says):
    project.write("mapping.toml", content)
    assert says in one_sentence(project.replay("map", "--mapping", "mapping.toml"))


def test_a_bad_candidate_leaves_no_file_behind(project):
    project.write("mapping.candidate.toml", MAPPING + "[gemm]\ntlie = 3\n")
    before = sorted(project.folder.iterdir())
    one_sentence(project.replay("gate"))
    assert sorted(project.folder.iterdir()) == before


OPTIONS = [
    ("missing mapping file", ("map", "--mapping", "gone.toml"), "no such file"),
    ("a folder for a mapping", ("map", "--mapping", "."), "a folder without run.json"),
    ("unknown hardware", ("map", "--hardware", "a100"), "unknown accelerator 'a100'"),
    ("unknown model", ("map", "--model", "lama-3.1-8b"), "lama-3.1-8b"),
    ("missing trace", ("run", "--trace", "gone.csv"), "no such file"),
    ("one trace twice", ("run", "--trace", "trace.parquet", "--trace", "trace.parquet"), "two traces are named"),
    ("unknown basis", ("gate", "--fail-on", "regresion"), "did you mean 'regression'?"),
    ("no commit", ("gate", "--baseline", "git:"), "names no commit"),
    ("a flag for a commit", ("gate", "--baseline", "git:--output=x"), "names no commit"),
    ("a time that is none", ("gate", "--as-of", "yesterday"), "an ISO time"),
    ("missing policy", ("gate", "--policy", "gone.toml"), "no such file"),
    ("missing owners", ("gate", "--owners", "gone.toml"), "no such file"),
    ("a trace for a policy", ("gate", "--policy", "trace.parquet"), "not UTF-8"),
    (
        "a rate for a trace with arrivals",
        ("trace", "import", "trace.parquet", "--out", "x.parquet", "--rate", "3"),
        "recorded arrivals are never replaced",
    ),
    ("an empty window", ("trace", "slice", "trace.parquet", "--out", "x.parquet", "--start", "5", "--end", "2"), "a time after --start"),
    ("csv out", ("trace", "import", "trace.parquet", "--out", "x.csv"), "provenance"),
    ("demo over files", ("demo", "."), "not an empty folder"),
]


@pytest.mark.parametrize(("arguments", "says"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS])
def test_a_bad_option_is_one_sentence(project, arguments, says):
    assert says in one_sentence(project.replay(*arguments))


def test_outside_a_project_the_missing_option_is_named(empty):
    assert "--baseline is missing" in one_sentence(empty.replay("gate"))
    assert "--mapping is missing" in one_sentence(empty.replay("run"))


TRACES = [
    ("empty", "", "empty"),
    ("header only", "arrival_s,prompt_tokens,output_tokens\n", "a header without rows"),
    ("unknown format", "a,b,c\n1,2,3\n", "format"),
    ("negative time", "arrival_s,prompt_tokens,output_tokens\n-1,2,3\n", "arrival_s"),
    ("nan", "arrival_s,prompt_tokens,output_tokens\nnan,2,3\n", "arrival_s"),
    ("fractional tokens", "arrival_s,prompt_tokens,output_tokens\n0,2.5,3\n", "prompt_tokens"),
    ("negative tokens", "arrival_s,prompt_tokens,output_tokens\n0,-2,3\n", "prompt_tokens"),
    ("truncated json", '{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]}\n{"timestamp": 1, "inp', "line"),
    ("binary", bytes(range(256)), "format"),
    ("truncated parquet", b"PAR1\x00\x00\x00", "Parquet"),
]


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in TRACES], ids=[row[0] for row in TRACES])
def test_a_bad_trace_is_one_sentence(project, content, says):
    project.write("bad.csv", content)
    sentence = one_sentence(project.replay("run", "--trace", "bad.csv"))
    assert "bad.csv" in sentence
    assert says.lower() in sentence.lower()


BUNDLES = [
    ("not json", "{", "not valid JSON"),
    ("a list", "[1]", "it has no name"),
    ("another document", "{}", "has no 'schema_version'"),
    ("newer schema", json.dumps({"schema_version": "2", "mapping": {}, "model": {}, "cells": [], "seed": "0"}), "schema_version is"),
    ("nan inside", '{"schema_version": NaN}', "NaN"),
    ("a key twice", '{"schema_version": "1", "schema_version": "1"}', "twice"),
]


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in BUNDLES], ids=[row[0] for row in BUNDLES])
def test_a_bad_bundle_is_one_sentence(project, content, says):
    project.write("bundle.json", content)
    assert says in one_sentence(project.replay("gate", "--baseline", "bundle.json"))


PROJECTS = [
    ("unknown key", 'modle = "x"\n', "did you mean 'model'?"),
    ("wrong type", "seed = -1\n", "seed"),
    ("not toml", "model = ", "not valid TOML"),
]


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in PROJECTS], ids=[row[0] for row in PROJECTS])
def test_a_bad_project_file_is_one_sentence(project, content, says):
    project.write("replay.toml", content)
    assert says in one_sentence(project.replay("gate"))


def test_an_unknown_verb_names_the_nearest(empty):
    result = empty.replay("gaet")
    assert result.exit_code == 2
    assert "did you mean 'gate'?" in result.stderr
