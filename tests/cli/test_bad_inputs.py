"""Every bad input gives one sentence - where, what was found, what is wanted, the fix - exit code 2, and leaves nothing behind."""

import json

import pytest

from replay.documents import shipped_path

DEMO = shipped_path("traces") / "demo"

MAPPING = 'name = "m"\n'
TRACE = "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.0,20,5\n"

# (id, file to write, content, what the sentence says)
MAPPINGS = [
    ("empty", "", "the file is empty"),
    (
        "more tokens than any machine holds",
        MAPPING + "[batching]\nmax_batched_tokens = 100000000\n",
        "batching.max_batched_tokens is 100000000",
    ),
    ("more seats than any machine has", MAPPING + "[batching]\nmax_running = 1000000000\n", "batching.max_running is 1000000000"),
    ("not toml", "name = \n", "not valid TOML"),
    ("truncated", 'name = "m"\n[gemm]\ntile = [128, ', "not valid TOML"),
    ("not text", b"\xff\xfe\x00\x01", "not UTF-8"),
    ("no name", "[gemm]\n", "it has no name"),
    ("name of a wrong type", "name = 3\n", "name is 3"),
    ("unknown section", MAPPING + "[gem]\ntile = [64, 64, 64]\n", "unknown knob 'gem.tile'; did you mean 'gemm.tile'?"),
    ("unknown knob", MAPPING + "[gemm]\ntlie = [64, 64, 64]\n", "mapping.toml:3: unknown knob 'gemm.tlie'; did you mean 'gemm.tile'?"),
    ("key outside a section", MAPPING + "gemm = 3\n", "outside a section"),
    ("wrong type", MAPPING + '[batching]\nmax_running = "many"\n', "batching.max_running is 'many'; want a whole number from 1 to"),
    ("boolean for a number", MAPPING + "[batching]\nmax_running = true\n", "want a whole number from 1 to"),
    ("zero", MAPPING + "[batching]\nmax_running = 0\n", "want a whole number from 1 to"),
    ("negative", MAPPING + "[kv]\nblock_tokens = -16\n", "want a whole number from 1 to"),
    ("fraction", MAPPING + "[kv]\nblock_tokens = 1.5\n", "want a whole number from 1 to"),
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


PLACES = [
    ("a folder for a bundle", ("baseline", "--mapping", "mapping.toml", "--out", "."), "a folder of that name"),
    ("a bundle in no file system", ("baseline", "--mapping", "mapping.toml", "--out", "/proc/x/y"), "it cannot be written"),
    ("a bundle below a file", ("baseline", "--mapping", "mapping.toml", "--out", "policy.toml/b.json"), "it cannot be written"),
    ("runs in no file system", ("run", "--out", "/proc/x/y"), "it cannot be written"),
    ("runs below a file", ("run", "--out", "policy.toml"), "it cannot be written"),
    ("a verdict in no file system", ("gate", "--out", "/proc/x/y"), "it cannot be written"),
    ("a verdict below a file", ("gate", "--out", "policy.toml"), "it cannot be written"),
    (
        "a trace in no file system",
        ("trace", "slice", "trace.parquet", "--max-requests", "2", "--out", "/proc/x/y.parquet"),
        "cannot be written",
    ),
]


LONG = "n" * 300
PLACES += [
    ("a demo in no file system", ("demo", "/proc/x/y"), "it cannot be written"),
    ("a demo under too long a name", ("demo", LONG), "it cannot be written"),
    ("a verdict under too long a name", ("gate", "--out", LONG), "it cannot be written"),
    ("runs under too long a name", ("run", "--out", LONG), "it cannot be written"),
    ("a bundle under too long a name", ("baseline", "--mapping", "mapping.toml", "--out", LONG), "it cannot be written"),
    ("a mapping under too long a name", ("gate", "--candidate", LONG), "it cannot be read"),
    ("a model under too long a name", ("gate", "--model", LONG), "no such model or file"),
    ("a policy under too long a name", ("gate", "--policy", LONG), "it cannot be read"),
    ("owners under too long a name", ("gate", "--owners", LONG), "it cannot be read"),
    ("a trace under too long a name", ("gate", "--trace", LONG), "it cannot be read"),
]


def test_a_project_that_writes_into_a_name_with_a_nul_byte_is_one_sentence(project):
    project.write("replay.toml", project.read("replay.toml").replace('"replay-out"', '"a\\u0000b"'))
    for verb in ("gate", "run"):
        assert "it cannot be written" in one_sentence(project.replay(verb))


@pytest.mark.parametrize(("arguments", "says"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_a_place_that_takes_no_file_is_one_sentence_before_anything_is_replayed(project, monkeypatch, arguments, says):
    monkeypatch.setattr("replay.pipeline.Replayer.run", None)
    before = sorted(project.folder.rglob("*"))
    assert says in one_sentence(project.replay(*arguments))
    assert sorted(project.folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["verdict.json", "summary.md", "evidence/mine.txt"])
def test_a_gate_takes_the_place_of_nothing_that_it_did_not_write(project, name):
    path = project.folder / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert "out" in one_sentence(project.replay("gate", "--out", "out"))
    path.unlink()
    path.mkdir()
    if name != "evidence/mine.txt":
        assert "out" in one_sentence(project.replay("gate", "--out", "out"))


def test_a_bad_candidate_leaves_no_file_behind(project):
    project.write("mapping.candidate.toml", MAPPING + "[gemm]\ntlie = 3\n")
    before = sorted(project.folder.iterdir())
    one_sentence(project.replay("gate"))
    assert sorted(project.folder.iterdir()) == before


OPTIONS = [
    ("missing mapping file", ("map", "--mapping", "gone.toml"), "no such file"),
    ("one accelerator twice", ("gate", "--hardware", "l40s", "--hardware", "l40s"), "two accelerators are named 'l40s'"),
    (
        "a trace name that is a path",
        ("trace", "slice", "trace.parquet", "--out", "x.parquet", "--max-requests", "2", "--name", "../x"),
        "trace name '../x'",
    ),
    ("an empty trace name", ("trace", "import", "trace.parquet", "--out", "x.parquet", "--name", ""), "trace name ''"),
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
    ("a cell beyond all measure", "arrival_s,prompt_tokens,output_tokens\n0,5,3\n1," + "9" * 200_000 + ",3\n", "prompt_tokens"),
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


NAMES = [
    "../../escaped/evil",
    "/abs",
    "a/b",
    "..",
    ".hidden",
    "-x",
    " a",
    "a ",
    "a\n::error::b",
    "a\x1b[31m",
    "a\x00",
    "x" * 200,
    "\u202eabc",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_that_calls_itself_something_unsafe_is_one_sentence_and_writes_nothing(project, name):
    provenance = {"kind": "recorded", "origin": "x", "source_digest": "sha256:" + "0" * 64, "rows_read": 1, "rows_kept": 1}
    rows = {"arrival_s": 0.0, "prompt_tokens": 5, "output_tokens": 3}
    project.write("evil.jsonl", json.dumps({"replay_gate_trace": provenance, "name": name}) + "\n" + json.dumps(rows) + "\n")
    before = sorted(project.folder.parent.rglob("*"))
    sentence = one_sentence(project.replay("run", "--trace", "evil.jsonl", "--out", "runs"))
    assert "the trace name" in sentence
    assert sorted(project.folder.parent.rglob("*")) == before


@pytest.fixture
def bundle(project):
    """The text of a baseline bundle of the demo, made without replaying it."""
    return json.loads((DEMO.parents[1] / "schemas/examples/baseline.v1.valid.json").read_text())


def changed_bundle(document, path, value):
    """Return a bundle with one entry set, or removed where the value is None."""
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(document)


CHIP = ("cells", 0, "hardware")
FORGED = [
    ("no bf16 rate", (*CHIP, "matrix_flops_per_s", "bf16"), None, "has no 'bf16'"),
    ("units beyond any device", (*CHIP, "units_count"), 1e308, "units_count.value is 1e+308"),
    ("a count that is a fraction", (*CHIP, "units_count"), 1.5, "units_count.value is 1.5"),
    ("memory below zero", (*CHIP, "memory_bytes"), -1.0, "memory_bytes.value is -1.0"),
    ("a figure that is text", (*CHIP, "clock_hz"), "fast", "clock_hz is"),
    ("a figure that is a list", (*CHIP, "clock_hz"), [1], "clock_hz.value is [1]"),
    ("a nested figure gone", (*CHIP, "host", "launch_s"), None, "has no 'launch_s'"),
    ("an unknown figure", (*CHIP, "warp_size"), 32, "names no source"),
    ("sources gone", (*CHIP, "sources"), None, "sources is None"),
    ("an accelerator named as a path", (*CHIP, "name"), "../../h", "name is"),
    ("a trace named as a path", ("cells", 0, "trace", "name"), "../../t", "the trace name '../../t'"),
    ("a model named as a path", ("model", "name"), "../m", "model: name"),
    ("heads that do not divide", ("model", "query_heads"), 7, "a divisor of query_heads (7)"),
    ("layers beyond any model", ("model", "layers_count"), 1e308, "layers_count"),
    ("a window that is a float", ("model", "attention_window_tokens"), 2.0, "attention_window_tokens"),
    (
        "more experts chosen than there are",
        ("model", "experts"),
        {"experts_count": 2, "experts_per_token": 3, "intermediate_size": 8, "shared_experts_count": 0, "dense_layers_count": 0},
        "at most",
    ),
    (
        "as many dense layers as there are",
        ("model", "experts"),
        {"experts_count": 2, "experts_per_token": 1, "intermediate_size": 8, "shared_experts_count": 0, "dense_layers_count": 32},
        "fewer than layers_count (32)",
    ),
    (
        "a latent beyond any model",
        ("model", "mla"),
        {"q_lora_rank": None, "kv_lora_rank": 1e308, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
        "kv_lora_rank",
    ),
    (
        "parts of a head that do not add up",
        ("model", "mla"),
        {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
        "head_size (128)",
    ),
    ("one scope in two spellings", ("mapping", "settings"), {"gemm.split_k@mlp[rows<17]": 1, "gemm.split_k@mlp[rows<=16]": 1}, "set twice"),
    ("a knob that is none", ("mapping", "settings"), {"gemm.tlie": 1}, "unknown knob 'gemm.tlie'"),
    ("a value the knob does not take", ("mapping", "settings"), {"kv.block_tokens": {"a": 1}}, "kv.block_tokens is"),
]


@pytest.mark.parametrize(("path", "value", "says"), [row[1:] for row in FORGED], ids=[row[0] for row in FORGED])
def test_what_a_bundle_embeds_passes_the_checks_of_a_file(project, bundle, path, value, says):
    project.write("forged.json", changed_bundle(bundle, path, value))
    for role in ("--baseline", "--candidate"):
        assert says in one_sentence(project.replay("gate", role, "forged.json"))
    assert says in one_sentence(project.replay("validate", "forged.json"))


def test_the_bundle_that_the_forged_ones_are_made_from_is_good(project, bundle):
    project.write("bundle.json", json.dumps(bundle))
    assert project.replay("validate", "bundle.json").exit_code == 0


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


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "::error::x\n::error::y"])
def test_control_characters_of_names_never_reach_the_terminal(project, name):
    sentence = one_sentence(project.replay("trace", "info", name))
    assert sentence.isprintable()


def test_an_interrupt_is_no_crash(project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.pipeline.Replayer.run", interrupt)
    result = project.replay("run", "--mapping", "mapping.toml")
    assert result.exit_code == 130
    assert result.stderr == "replay: interrupted; nothing half-written is left\n"
    assert not (project.folder / "replay-out").exists()


def test_a_place_that_cannot_be_used_is_one_sentence(project, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "secret/mapping.toml")

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    assert "secret/mapping.toml" in one_sentence(project.replay("gate"))
