"""What a policy asks of quality evidence."""

from __future__ import annotations

from dataclasses import dataclass

OPT_IN = ("output_match_ratio", "batch_invariance_ratio", "preference_ratio")
"""Metrics that are judged only where a policy asks for them, then even if no file has them; the others wherever the baseline has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPolicy:
    """Margins of quality claims; every one of them blocks."""

    margins: tuple[tuple[str, float], ...]
    """(metric, largest worsening accepted) over all items."""
    by_prompt_bin: tuple[tuple[str, float], ...]
    """The same within each bin of prompt lengths that has traffic."""
    min_traffic_ratio: float
    """Share of the trace's requests from which a bin needs evidence of its own."""
    unknown_lengths_to_tokens: int
    """Up to which length items that do not tell theirs stand for prompts: those of usual benchmarks are no longer."""
