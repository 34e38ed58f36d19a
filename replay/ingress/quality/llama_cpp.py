"""What llama.cpp's `llama-perplexity --kl-divergence` prints: means over the tokens of a text against the logits of a base model."""

from __future__ import annotations

import re
from pathlib import Path

from replay.errors import SpecError
from replay.ingress.quality.items import joined_tables
from replay.ingress.quality.result import QualityFacts, QualityResult, Summary

_NUMBER = r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|-?nan|-?inf)"
_LINES = (
    ("nll_nats_per_token", 1.0, re.compile(rf"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s*:\s*{_NUMBER}\s*±\s*{_NUMBER}")),
    ("kl_nats_per_token", 1.0, re.compile(rf"Mean\s+KLD\s*:\s*{_NUMBER}\s*±\s*{_NUMBER}")),
    ("top1_agreement_ratio", 0.01, re.compile(rf"Same top p\s*:\s*{_NUMBER}\s*±\s*{_NUMBER}\s*%")),
)


def is_kl_divergence(head: str) -> bool:
    """Return whether a text is such an output."""
    return "KL divergence statistics" in head and "KLD" in head


def read_kl_divergence(text: str, path: Path, digest: str) -> QualityResult:
    """Return the means of an output; the negative log likelihood is that above the base model's.

    Raises:
        SpecError: a mean is missing or not finite.
    """
    summaries = []
    for metric, scale, pattern in _LINES:
        match = pattern.search(text)
        if match is None:
            continue
        value, error = (scale * float(part) for part in match.groups())
        if not (abs(value) < float("inf") and abs(error) < float("inf")):
            raise SpecError(str(path), f"{metric} is {match[1]} ± {match[2]}", "finite figures", "find out why logits are not finite")
        summaries.append(Summary(task="all", metric=metric, value=value, standard_error=error))
    if not summaries:
        raise SpecError(
            str(path), "none of the means that llama-perplexity prints", "its whole output", "write the output to the file again"
        )
    note = "the errors that llama-perplexity states take tokens for independent, which makes them too small"
    facts = QualityFacts(format="llama.cpp KL divergence", digest=digest, notes=(note,))
    return QualityResult(items=joined_tables([]), facts=facts, summaries=tuple(summaries))
