"""What the probe writes: a report (schema `quality-probe.v1`), and items of both arms in the form that `replay gate` reads as evidence."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.quality.compare import Compared, Floats
from replay.quality.probe import Probed, ProbedItem, figures_of
from replay.quality.probes import ProbeSet
from replay.quality.weights.checkpoint import Checkpoint

SCHEMA = "quality-probe.v1"
REPORT, BASELINE, CANDIDATE = "report.json", "baseline.jsonl", "candidate.jsonl"
BIN_EDGES_TOKENS = (512, 2048, 8192, 32768)
"""Where prompt lengths are parted, as in the default policy of the gate."""
_FEW_PREDICTIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """A probe and what it was made of."""

    weights_name: str
    checkpoint: Checkpoint
    probes: ProbeSet
    baseline: tuple[str, str | None]
    """Name and digest of the mapping; without digest, the checkpoint's own weights in float32."""
    candidate: tuple[str, str | None]
    answer_tokens: int
    probed: Probed


def report_document(run: ProbeRun) -> dict[str, Any]:
    """Return the report."""
    items = run.probed.items
    return {
        "schema_version": SCHEMA,
        "weights": {
            "name": run.weights_name,
            "digest": run.checkpoint.digest,
            "tensors_by_format": dict(run.checkpoint.stored_as),
            "dequantised": run.checkpoint.is_dequantised,
        },
        "probes": {"name": run.probes.name, "digest": run.probes.digest, "items": len(items), "answer_tokens": run.answer_tokens},
        "baseline": {"name": run.baseline[0], "digest": run.baseline[1]},
        "candidate": {"name": run.candidate[0], "digest": run.candidate[1]},
        "overall": figures_of(items),
        "by_prompt_bin": list(_bins(items)),
        "floor": {
            "kl_mean_nats": _mean(np.concatenate([item.floor.kl_nats for item in items])),
            "kl_max_nats": _most(np.concatenate([item.floor.kl_nats for item in items])),
            "top1_agreement_ratio": float(np.concatenate([item.floor.top1_equal for item in items]).mean()),
        },
        "batch_invariance": _batch_invariance(items),
        "layers": list(run.probed.layers),
        "reverts": list(run.probed.reverts),
        "attributed": {"items": len(run.probed.attributed), "kl_mean_nats": run.probed.attributed_kl_nats},
        "findings": list(_findings(items)),
        "limits": list(_limits(run)),
    }


def _bins(items: Sequence[ProbedItem]) -> Iterator[dict[str, Any]]:
    for low, high in itertools.pairwise((0, *BIN_EDGES_TOKENS, None)):
        inside = [item for item in items if len(item.probe.tokens) >= (low or 0) and (high is None or len(item.probe.tokens) < high)]
        yield {"tokens_from": low, "tokens_to": high, "figures": figures_of(inside) if inside else None}


def _batch_invariance(items: Sequence[ProbedItem]) -> dict[str, float] | None:
    """Return the share of answers that do not depend on the batch, of both arms; None where that was not asked."""
    pairs = [item.alone_equal for item in items if item.alone_equal is not None]
    if not pairs:
        return None
    return {
        "baseline_ratio": sum(before for before, _ in pairs) / len(pairs),
        "candidate_ratio": sum(after for _, after in pairs) / len(pairs),
    }


def _findings(items: Sequence[ProbedItem]) -> Iterator[dict[str, str]]:
    broken = [item for item in items if item.compared.not_finite]
    if broken:
        count = sum(item.compared.not_finite for item in broken)
        message = (
            f"the candidate's logits are not finite in {count} predictions of {len(broken)} probes, first of {broken[0].probe.item_id}"
        )
        yield {"code": "logits_not_finite", "message": message}
    lost = sum(int(np.isnan(item.compared.nll_baseline_nats).sum()) for item in items)
    if lost:
        yield {"code": "baseline_logits_not_finite", "message": f"the baseline's logits are not finite in {lost} predictions"}


def _limits(run: ProbeRun) -> Iterator[str]:
    """Yield what the figures do not show."""
    if run.checkpoint.is_dequantised:
        formats = ", ".join(f"{count} {name}" for name, count in run.checkpoint.stored_as.items())
        yield f"the weights are dequantised from a quantised file ({formats}): drift is from that file, not from the model it was made of"
    yield "number formats are emulated in float32: kernels of a device sum in orders of their own, which moves results by about the floor"
    predictions = sum(len(item.labels) for item in run.probed.items)
    if predictions < _FEW_PREDICTIONS:
        yield f"{predictions} predictions are few: tails (p99, largest) rest on the worst of them"
    if run.checkpoint.spec is None:
        yield "without a text of its own the model is judged on the baseline's answers: likelihoods are of those"


def evidence_lines(run: ProbeRun) -> tuple[str, str]:
    """Return the items of baseline and candidate as JSON Lines, a table that `replay gate` takes as quality evidence.

    The baseline's divergence and agreement are its own, from sums in another order: the floor. Items with
    logits that are not finite are left out of the candidate's, which makes the evidence incomplete and never a pass.
    """
    before, after = [], []
    for item in run.probed.items:
        about = {
            "task": run.probes.name,
            "item_id": item.probe.item_id,
            "cluster": item.probe.cluster,
            "prompt_tokens": len(item.probe.tokens),
            "prompt_hash": item.probe.prompt_hash,
            "tokens": len(item.labels),
        }
        own, other = ({} if item.alone_equal is None else {"batch_invariant": int(equal)} for equal in item.alone_equal or (True, True))
        before.append(_line(about | own, item.floor, item.compared.nll_baseline_nats, item.answers.baseline))
        if not item.compared.not_finite:
            after.append(_line(about | other, item.compared, item.compared.nll_candidate_nats, item.answers.candidate))
    return "".join(before), "".join(after)


def _line(about: dict[str, Any], compared: Compared, nll: Floats, answer: Sequence[int]) -> str:
    measured = {
        "nll_nats_per_token": _mean(nll),
        "kl_nats_per_token": _mean(compared.kl_nats),
        "top1_equal": float(compared.top1_equal.mean()),
        "output": " ".join(map(str, answer)),
    }
    return json.dumps({**about, **measured}, allow_nan=False) + "\n"


def _mean(values: Floats) -> float | None:
    """Return the mean; None where a value is not finite."""
    mean = float(values.mean())
    return mean if np.isfinite(mean) else None


def _most(values: Floats) -> float | None:
    most = float(values.max())
    return most if np.isfinite(most) else None
