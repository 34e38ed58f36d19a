"""Facts of a trace against the published table of the real files, and against figures worked by hand."""

import csv
from pathlib import Path

import numpy as np
import pytest

from replay.ingress.reader import read_trace
from replay.ingress.summary import summarize

# file under data/traces, then: requests, span s, rate, peak 1 s, peak 60 s, CV, prompt p50 p95 p99 max, output p50 p95 p99 max, ties
PUBLISHED = [
    (
        "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
        19366,
        3501.72,
        5.53,
        16,
        507,
        1.09,
        (1020, 4083, 4142, 14050),
        (129, 451, 601, 1000),
        0,
    ),
    ("vidur_processed/splitwise_conv.csv", 19366, 3501.72, 5.53, 16, 507, 1.09, (1020, 4083, 4142, 14050), (129, 451, 601, 1000), 0),
    (
        "mooncake/conversation_trace.jsonl",
        12031,
        3537.00,
        3.40,
        28,
        247,
        3.03,
        (6909, 39550.5, 85400.4, 126195),
        (350, 698, 1118.5, 2000),
        10851,
    ),
    (
        "burstgpt/BurstGPT_3_rows1-60.csv",
        60,
        17258,
        0.00342,
        1,
        3,
        1.61,
        (250.5, 1955.0, 5830.01, 5866),
        (167, 789.5, 868.97, 879),
        0,
    ),
    (
        "vllm_request_logs/RTX4090_Llama-3.1-8B_requests.jsonl",
        300,
        29.10,
        10.27,
        18,
        300,
        0.94,
        (731.5, 1748.9, 2765.2, 3998),
        (632, 773, 784.12, 1021),
        0,
    ),
    (
        "vllm_request_logs/RTXPRO6000_Qwen3-32B_requests.jsonl",
        300,
        29.12,
        10.27,
        17,
        300,
        0.942,
        (728.5, 1813.9, 2768.17, 4570),
        (638, 814.4, 1001.07, 1224),
        0,
    ),
]


def lengths(facts: dict) -> tuple[float, ...]:
    return tuple(facts[key] for key in ("p50", "p95", "p99", "max"))


@pytest.mark.parametrize("row", PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_facts_of_files_without_failed_rows_equal_the_published_table(shared, row):
    file, requests, span_s, rate, peak_1s, peak_60s, gap_cv, prompt, output, ties = row
    facts = summarize(read_trace(shared / "data/traces" / file))
    assert facts["requests"] == requests
    assert facts["span_s"] == pytest.approx(span_s, abs=0.0051)
    assert facts["mean_rate_per_s"] == pytest.approx(rate, rel=1e-3)
    assert (facts["peak_1s_requests"], facts["peak_60s_requests"], facts["same_arrival_pairs"]) == (peak_1s, peak_60s, ties)
    assert facts["gap_cv"] == pytest.approx(gap_cv, abs=0.0051)
    assert lengths(facts["prompt_tokens"]) == pytest.approx(prompt, abs=0.0051)
    assert lengths(facts["output_tokens"]) == pytest.approx(output, abs=0.0051)


def test_lengths_only_files_have_length_facts_and_null_arrival_facts(shared):
    facts = summarize(read_trace(shared / "data/traces/vidur_processed/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"))
    assert facts["requests"] == 28257
    assert lengths(facts["prompt_tokens"]) == pytest.approx((2730, 3813, 3933.44, 4054), abs=0.0051)
    assert lengths(facts["output_tokens"]) == pytest.approx((167, 736.2, 3271.32, 4056), abs=0.0051)
    for name in ("span_s", "mean_rate_per_s", "peak_1s_requests", "peak_60s_requests", "gap_cv", "same_arrival_pairs"):
        assert facts[name] is None


def test_percentiles_of_a_file_with_failed_rows_are_those_of_the_rest(shared):
    path = shared / "data/traces/burstgpt/BurstGPT_1_rows1-250.csv"
    with path.open(newline="") as file:
        kept = [int(row["Request tokens"]) for row in csv.DictReader(file) if row["Response tokens"] != "0"]
    facts = summarize(read_trace(path))
    assert facts["requests"] == len(kept) == 240
    assert facts["provenance"]["set_aside"] == [{"reason": "failed_zero_tokens", "rows": 10}]
    assert lengths(facts["prompt_tokens"]) == pytest.approx((*np.percentile(kept, (50, 95, 99)), max(kept)))
    assert facts["models"] == ["ChatGPT", "GPT-4"]


def read(tmp_path: Path, text: str) -> dict:
    (tmp_path / "x").write_text(text)
    return summarize(read_trace(tmp_path / "x"))


def test_facts_worked_by_hand(tmp_path):
    facts = read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,5\n0,2,5\n0.5,3,5\n1,4,5\n59.9,5,5\n61,6,5\n")
    assert facts["span_s"] == 61.0
    assert facts["mean_rate_per_s"] == 5 / 61
    assert facts["peak_1s_requests"] == 3
    assert facts["peak_60s_requests"] == 5
    assert facts["same_arrival_pairs"] == 1
    gaps = [0, 0.5, 0.5, 58.9, 1.1]
    assert facts["gap_cv"] == pytest.approx((sum(gap**2 for gap in gaps) / 5 - 12.2**2) ** 0.5 / 12.2)
    assert facts["prompt_tokens"] == {"mean": 3.5, "p50": 3.5, "p95": 5.75, "p99": 5.95, "max": 6}
    assert facts["prefix_reuse_ratio"] is None


def test_prefix_reuse_is_the_share_of_blocks_seen_before(tmp_path):
    line = '{{"timestamp": {0}, "input_length": {1}, "output_length": 1, "hash_ids": {2}}}\n'
    text = line.format(0, 1024, [7, 8]) + line.format(1, 1024, [7, 9]) + line.format(2, 512, [7])
    assert read(tmp_path, text)["prefix_reuse_ratio"] == pytest.approx(2 / 5)


def test_one_request_has_a_peak_and_no_rate(tmp_path):
    facts = read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n4,1,5\n")
    assert (facts["span_s"], facts["mean_rate_per_s"], facts["gap_cv"]) == (0.0, None, None)
    assert (facts["peak_1s_requests"], facts["same_arrival_pairs"]) == (1, 0)
