"""From weights to a verdict: `replay quality` measures the drift of a real model, and `replay gate` decides on it."""

import json
import re
from pathlib import Path

import pytest

from tests.probe_models import inside_package, word_probes

README = Path(__file__).resolve().parents[2] / "README.md"
POLICY = """
allow_synthetic = true
resimulations = 60
max_resimulations = 60
[blocking]
tpot_s = { p95 = "30 %" }
[quality]
min_traffic_ratio = 1.0
degenerate_ratio = "1 point"
"""
"""Words are short prompts: evidence about longer ones is not asked for here. 400 answers show no margin below 0.7 points."""


@pytest.mark.parametrize(
    ("formats", "code"),
    [('"bf16"', 0), ('"int8"', 0), ('"int4"\nweight_scales = "channel"', 10), ('"int4"\nweight_scales = "tensor"', 10)],
    ids=["bf16", "int8", "int4 per channel", "int4 per tensor"],
)
def test_the_ladder_of_formats_on_real_weights_ends_in_rollback(project, formats, code):
    weights = inside_package("g2p_en", "checkpoint20.npz")
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z]{4,}", README.read_text())})[:400]
    word_probes(project.folder / "words.jsonl", words)
    project.write("narrow.toml", project.read("mapping.toml").replace('weights = "model"', f"weights = {formats}"))
    project.write("policy.quality.toml", POLICY)
    arms = ("--baseline", "mapping.toml", "--answer-tokens", "20", "--attribution-tokens", "0")
    probed = project.replay("quality", "--mapping", "narrow.toml", *arms, "--weights", weights, "--probes", "words.jsonl", "--out", "drift")
    assert probed.exit_code == 0, probed.output
    evidence = ("--quality-baseline", "drift/baseline.jsonl", "--quality-candidate", "drift/candidate.jsonl")
    gated = ("--baseline", "mapping.toml", "--candidate", "narrow.toml", "--hardware", "h100-sxm", "--policy", "policy.quality.toml")
    result = project.replay("gate", *gated, *evidence, "--out", "out", "--format", "json")
    assert result.exit_code == code, result.output[:3000]
    claims = {claim["metric"]: claim for claim in json.loads(result.stdout)["predicate"]["claims"]}
    assert claims["kl_nats_per_token"]["n"] == 400
    assert claims["kl_nats_per_token"]["outcome"] == ("holds" if code == 0 else "disproved")
    assert claims["kl_nats_per_token"]["baseline"] < 1e-9
