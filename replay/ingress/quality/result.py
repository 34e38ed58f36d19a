"""QualityResult: what an evaluation says about a model's answers, item by item where it has items."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

ITEMS_SCHEMA = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),  # one of METRICS
        pa.field("item_id", pa.string(), nullable=False),  # distinct within task and metric
        pa.field("cluster", pa.string(), nullable=False),  # document or prompt whose items depend on each other
        pa.field("prompt_tokens", pa.int64()),
        pa.field("prompt_hash", pa.string()),
        pa.field("target_hash", pa.string()),
        pa.field("weight", pa.float64(), nullable=False),  # tokens behind a mean per token, else 1
        pa.field("value", pa.float64()),  # null for `output_match_ratio`
        pa.field("output", pa.string()),  # digest of the output, for `output_match_ratio`
    ]
)
"""`QualityResult.items`: one row per item and metric."""

METRICS = (
    "task_accuracy_ratio", "nll_nats_per_token", "kl_nats_per_token", "top1_agreement_ratio", "output_match_ratio", "degenerate_ratio",
    "batch_invariance_ratio", "preference_ratio",
)  # fmt: skip
"""What an item can be measured by; `preference_ratio` rows hold 1, 0 or 0.5 (a tie) of the candidate against the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A mean that a tool reports without its items."""

    task: str
    metric: str
    value: float
    standard_error: float | None
    """None where the tool states none."""
    items_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFacts:
    """What a file says about the evaluation as a whole."""

    format: str
    digest: str
    """Of the files' bytes."""
    settings: tuple[tuple[str, str], ...] = ()
    """What must be the same in both arms: task versions, shots, chat template, limit."""
    model: str | None = None
    mapping_digest: str | None = None
    notes: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "settings": dict(self.settings), "notes": list(self.notes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """One evaluation of one arm."""

    items: pa.Table
    """ITEMS_SCHEMA; without rows where the file holds means alone."""
    facts: QualityFacts
    summaries: tuple[Summary, ...] = ()
