"""Validity of quality evidence: that both arms were asked the same, and that what was asked is what the trace asks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from gates.finding import Finding
from gates.quality.claims import beyond_traffic
from gates.quality.measure import QualityPair
from gates.quality.pairs import PairedItems, pair_items

_SHOWN = 4


def quality_findings(pair: QualityPair) -> Iterator[Finding]:
    """Find evaluations that are not of the same items under the same settings, and what limits what they show."""
    pairs = pair_items(pair.baseline, pair.candidate)
    yield from _items(pairs)
    yield from _settings(pair)
    yield from _floor(pairs)
    yield from _beyond(pair, pairs)
    for result, arm in ((pair.baseline, "baseline"), (pair.candidate, "candidate")):
        yield from (_informs("quality_note", f"quality of the {arm}: {note}") for note in result.facts.notes)


def _items(pairs: PairedItems) -> Iterator[Finding]:
    if pairs.only_baseline or pairs.only_candidate:
        message = (
            f"the evaluations are of different items: {pairs.only_baseline} only in the baseline's, {pairs.only_candidate} only in the "
            f"candidate's, {len(pairs.before)} in both; what is missing may be what went wrong"
        )
        yield _invalid("quality_items_differ", message)
    for count, what, code in (
        (pairs.prompts_differ, "prompts", "quality_prompts_differ"),
        (pairs.targets_differ, "targets", "quality_targets_differ"),
    ):
        if count:
            yield _invalid(
                code, f"{count} of {len(pairs.before)} items have other {what} in the candidate's evaluation, under the same names"
            )


def _floor(pairs: PairedItems) -> Iterator[Finding]:
    """Find scores of zero in both arms: a grader that accepts nothing would give the same."""
    mask = np.asarray(pc.equal(pairs.items["metric"], "task_accuracy_ratio").to_numpy(zero_copy_only=False), dtype=np.bool_)
    if mask.any() and not pairs.before[mask].any() and not pairs.after[mask].any():
        message = f"all {int(mask.sum())} task scores are 0 in both arms: a broken grader gives the same, so they show nothing"
        yield _invalid("quality_at_floor", message)


def _beyond(pair: QualityPair, pairs: PairedItems) -> Iterator[Finding]:
    """Tell of items longer than what the trace asks, of which nothing is claimed."""
    beyond = beyond_traffic(pairs.items, pair.traffic)
    if count := pc.sum(beyond).as_py():
        shortest = pc.min(pairs.items["prompt_tokens"].filter(beyond)).as_py()
        message = (
            f"{count} of {len(pairs.before)} items have longer prompts (from {shortest} tokens) than the trace's requests: they are left "
            "out, and nothing is shown of such prompts"
        )
        yield _informs("quality_items_beyond_traffic", message)


def _settings(pair: QualityPair) -> Iterator[Finding]:
    before, after = (dict(result.facts.settings) for result in (pair.baseline, pair.candidate))
    differing = [name for name in before if name in after and before[name] != after[name]]
    if differing:
        told = ", ".join(f"{name} ({before[name][:40]} and {after[name][:40]})" for name in differing[:_SHOWN])
        yield _invalid("quality_settings_differ", f"the evaluations were made with other settings: {told}")
    models = [result.facts.model for result in (pair.baseline, pair.candidate)]
    if None not in models and models[0] != models[1]:
        yield _informs("quality_models_differ", f"the evaluations name the models {models[0]} and {models[1]}")


def _invalid(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="invalidates", stage="quality_sla", bottleneck_class="measurement")


def _informs(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="informs", stage="quality_sla")
