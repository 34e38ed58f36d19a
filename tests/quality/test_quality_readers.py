"""Readers of quality results: what each holds, and what none of them lets pass."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.errors import SpecError
from replay.ingress.quality.reader import read_quality
from replay.ingress.quality.table import is_degenerate


def sample(number, score, *, kind="none", **more):
    return {
        "doc_id": number, "doc": {"q": "x"}, "target": "1", "arguments": {}, "resps": [["1"]], "filtered_resps": ["1"], "filter": kind,
        "metrics": ["exact_match"], "doc_hash": f"d{number}", "prompt_hash": f"p{number}", "target_hash": "t", "exact_match": score, **more,
    }  # fmt: skip


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refused(path, part):
    with pytest.raises(SpecError) as caught:
        read_quality(path)
    assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_samples_of_a_task_are_items_by_the_hash_of_their_document(tmp_path):
    path = lines(tmp_path / "samples_gsm8k_2026-01-02T03-04-05.678.jsonl", [sample(number, float(number % 2)) for number in range(10)])
    result = read_quality(path)
    assert result.items["task"].to_pylist() == ["gsm8k"] * 10
    assert result.items["item_id"].to_pylist() == [f"d{number}" for number in range(10)]
    assert result.items["value"].to_pylist() == [float(number % 2) for number in range(10)]
    assert result.items["prompt_hash"][3].as_py() == "p3"
    assert result.facts.notes == ()


def test_the_first_filter_and_metric_count_and_what_is_left_aside_is_said(tmp_path):
    rows = [sample(number, 1.0, kind=kind, f1=0.5, metrics=["exact_match", "f1"]) for number in range(3) for kind in ("strict", "flexible")]
    result = read_quality(lines(tmp_path / "samples_a_b_2026-01-02T03-04-05.jsonl", rows))
    assert (result.items.num_rows, result.items["task"][0].as_py()) == (3, "a_b")
    assert "f1, flexible left aside" in result.facts.notes[0]


def test_scores_written_as_true_and_false_are_read(tmp_path):
    result = read_quality(lines(tmp_path / "samples_a.jsonl", [sample(0, True), sample(1, False)]))
    assert result.items["value"].to_pylist() == [1.0, 0.0]


def test_a_folder_of_samples_takes_its_settings_from_the_results_beside_them(tmp_path):
    for task in ("a", "b"):
        lines(tmp_path / f"samples_{task}_2026-01-02T03-04-05.jsonl", [sample(number, 1.0) for number in range(3)])
    results = {
        "results": {"a": {"exact_match,none": 1.0}},
        "versions": {"a": 3},
        "n-shot": {"a": 5},
        "config": {"limit": 3},
        "model_name": "m",
    }
    (tmp_path / "results_2026-01-02T03-04-05.json").write_text(json.dumps(results))
    result = read_quality(tmp_path)
    assert result.items.num_rows == 6
    assert dict(result.facts.settings)["n-shot"] == '{"a": 5}'
    assert result.facts.model == "m"
    (tmp_path / "results_2026-02-02T03-04-05.json").write_text(json.dumps(results))
    refused(tmp_path, "2 of results")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "0 files of samples")


def test_results_of_the_older_layout_have_a_score_and_an_error_for_each_task(shared):
    result = read_quality(shared / "data/formats/lm_eval_results/1b-deduped_step93000.json")
    tasks = {one.task: one for one in result.summaries}
    assert len(tasks) == 87
    assert tasks["hendrycksTest-security_studies"].value == pytest.approx(0.29387755)
    assert tasks["hendrycksTest-security_studies"].standard_error == pytest.approx(0.02916274)
    assert "revision=step93000" in result.facts.model


def test_results_of_the_newer_layout_tell_errors_and_counts_and_leave_out_what_is_no_score(tmp_path):
    results = {
        "results": {
            "g": {"alias": "g", "acc,none": 0.9, "acc_stderr,none": "N/A"},
            "h": {"word_perplexity,none": 12.0, "acc_norm,none": 0.5, "acc_norm_stderr,none": 0.01},
        },
        "versions": {}, "config": {"model_args": "x"}, "n-samples": {"g": {"original": 50, "effective": 40}},
        "higher_is_better": {"h": {"word_perplexity": False, "acc_norm": True}},
    }  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps(results, indent=1))
    found = {one.task: one for one in read_quality(tmp_path / "r.json").summaries}
    assert (found["g"].standard_error, found["g"].items_count) == (None, 40)
    assert (found["h"].value, found["h"].standard_error) == (0.5, 0.01)


def test_expected_scores_in_yaml_and_a_key_that_stands_twice(shared, tmp_path):
    source = shared / "data/formats/lm_eval_baseline/Meta-Llama-3-8B-Instruct.yaml"
    [summary] = read_quality(source).summaries
    assert (summary.task, summary.value, summary.items_count) == ("gsm8k", 0.756, 250)
    (tmp_path / "twice.yaml").write_text(source.read_text() + "limit: 10\n")
    refused(tmp_path / "twice.yaml", "stands twice")
    (tmp_path / "none.yaml").write_text("tasks:\n- name: a\n  metrics:\n  - name: b\n    value: high\n")
    refused(tmp_path / "none.yaml", "without a score")


def test_the_means_of_a_kl_divergence_run(tmp_path):
    text = (
        "Mean ln(PPL(Q)/PPL(base))     :   0.013571 ±   0.000840\n====== KL divergence statistics ======\n"
        "Mean    KLD:   0.012345 ±   0.000120\nMaximum KLD:  9.1\nSame top p: 95.120 ± 0.050 %\n"
    )
    (tmp_path / "kl.txt").write_text(text)
    found = {one.metric: (one.value, one.standard_error) for one in read_quality(tmp_path / "kl.txt").summaries}
    assert found["kl_nats_per_token"] == (0.012345, 0.00012)
    assert found["top1_agreement_ratio"] == pytest.approx((0.9512, 0.0005))
    (tmp_path / "kl.txt").write_text(text.replace("0.012345", "nan"))
    refused(tmp_path / "kl.txt", "kl_nats_per_token is nan")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_table_declares_its_measures_by_its_columns(tmp_path, form):
    rows = [
        {"item_id": f"i{place}", "task": "t", "correct": place % 2, "nll_nats_per_token": 1.5, "tokens": 10 + place, "prompt_tokens": 100,
         "cluster": f"c{place // 2}", "output": "a" * place, "finish_reason": "length" if place == 3 else "stop"}
        for place in range(4)
    ]  # fmt: skip
    path = tmp_path / f"x.{form}"
    if form == "jsonl":
        lines(path, rows)
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    items = read_quality(path).items
    of = {metric: items.filter(pa.compute.equal(items["metric"], metric)) for metric in set(items["metric"].to_pylist())}
    assert of["task_accuracy_ratio"]["value"].to_pylist() == [0, 1, 0, 1]
    assert of["nll_nats_per_token"]["weight"].to_pylist() == [10, 11, 12, 13]
    assert of["task_accuracy_ratio"]["weight"].to_pylist() == [1, 1, 1, 1]
    assert of["degenerate_ratio"]["value"].to_pylist() == [1, 0, 0, 1]
    assert set(items["cluster"].to_pylist()) == {"c0", "c1"}


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([{"item_id": "a", "correct": 1}, {"item_id": "a", "correct": 1}], "stands twice"),
        ([{"item_id": "a", "correct": 2}], "a fraction from 0 to 1"),
        ([{"item_id": "a", "correct": None}], "a finite value"),
        ([{"item_id": None, "correct": 1}, {"item_id": "b", "correct": 1}], "item_id is missing"),
        ([{"item_id": "a", "correct": "yes"}], "column correct holds string"),
        ([{"item_id": "a", "kl_nats_per_token": -1.0}], "0 or more"),
        ([{"item_id": "a", "nll_nats_per_token": 1.0, "tokens": 0}], "weight"),
        ([{"item_id": "a", "correct": 1, "prompt_tokens": -1}], "prompt_tokens is negative"),
        ([{"name": "a", "correct": 1}], "a JSON document"),
        ([sample(0, 7.0)], "no metric that is a score"),
        ([sample(0, 1.0), sample(0, 1.0)], "stands twice"),
        ([sample(0, 1.0), sample(1, "N/A")], ":2: no exact_match"),
    ],
)
def test_what_is_wrong_with_an_item_is_one_sentence(tmp_path, rows, part):
    refused(lines(tmp_path / "x.jsonl", rows), part)


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "empty"), (b"\x00\xff\xfe", "UTF-8"), (b"hello\n", "no known form"), (b"PAR1xxxx", "parquet")]
)
def test_a_file_of_no_known_form_is_one_sentence(tmp_path, content, part):
    (tmp_path / "x").write_bytes(content)
    refused(tmp_path / "x", part)
    refused(tmp_path / "absent", "no such file")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("", True),
        ("   ", True),
        ("42", False),
        ("no no no no no no", False),
        ("the cat sat. " * 30, True),
        ("a, b, c " + "x" * 60, True),
        ("!!!!!", False),
    ],
)
def test_an_answer_is_degenerate_where_it_is_empty_or_ends_in_a_loop(output, found):
    assert is_degenerate(output) is found


@pytest.mark.slow
def test_a_million_samples_are_read_in_ten_seconds(tmp_path):
    import time

    rng = np.random.default_rng(1)
    path = tmp_path / "samples_big_2026-01-02T03-04-05.jsonl"
    with path.open("w") as file:
        for number, score in enumerate(rng.integers(0, 2, 1_000_000)):
            file.write(json.dumps(sample(number, float(score))) + "\n")
    start = time.perf_counter()
    assert read_quality(path).items.num_rows == 1_000_000
    assert time.perf_counter() - start < 10
