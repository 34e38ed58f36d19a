"""Mitigation: the smallest revert with its patch, a narrower one where that releases too, and up to where the old mapping is known good."""

from __future__ import annotations

from typing import Any

from gates.attribution.bottleneck import Bottleneck
from gates.attribution.narrower import narrower_revert
from gates.attribution.patch import MappingFile, revert_patch
from gates.attribution.revert import SmallestRevert
from gates.attribution.trials import Trials
from gates.owners import Owners
from replay.ingress.trace import Trace
from replay.specs.mapping import shown

Document = dict[str, Any]


def mitigation(
    trials: Trials, revert: SmallestRevert, owners: Owners, file: MappingFile | None, bottleneck: Bottleneck | None, *, by_chip: bool
) -> Document:
    """Return the verdict's `mitigation`; `by_chip`: other accelerators are judged too, so undoing a knob on this one alone is narrower.

    Nothing narrower is sought where the candidate's own judgement is no regression: the place of a harm that is not shown is not known.
    """
    replayer = trials.replayer
    place = (bottleneck.layer_type, bottleneck.phase) if bottleneck is not None else (None, None)
    shown_harm = trials.judgement.basis == "regression"
    narrower = narrower_revert(trials, revert.knobs, place, by_chip=by_chip) if shown_harm else None
    found: Document = {
        "revert": list(revert.knobs),
        "patch": revert_patch(file, revert.knobs, trials.baseline) if file is not None else None,
        "verified": True,
        "decision_after": "release",
        "owner": ", ".join(dict.fromkeys(owners.of(knob).owner for knob in revert.knobs)),
        "revert_cost": revert.revert_cost,
        "rollback_boundary": rollback_boundary(replayer.trace, replayer.hardware.name),
        "narrower": None,
    }
    if narrower is not None:
        found["narrower"] = {
            "revert": list(narrower.knobs),
            "set": {setting.knob: shown(setting.value) for setting in narrower.settings},
            "patch": revert_patch(file, narrower.knobs, trials.baseline, narrower.settings) if file is not None else None,
        }
    return found


def rollback_boundary(trace: Trace, hardware: str) -> str:
    """Return up to which load and lengths the old values are known good: those of the replayed trace, and no further."""
    import pyarrow.compute as pc

    requests = trace.requests
    rate = f" at {requests.num_rows / trace.span_s:.3g} requests/s on average over {trace.span_s:.4g} s" if trace.span_s > 0 else ""
    prompt, output = (pc.max(requests[column]).as_py() for column in ("prompt_tokens", "output_tokens"))
    return (
        f"the baseline's values are known good for trace {trace.name} on {hardware}: {requests.num_rows} requests{rate}, "
        f"prompts up to {prompt} and outputs up to {output} tokens; beyond that they were not replayed"
    )


def revert_doubts(trials: Trials, revert: SmallestRevert | None) -> list[Document]:
    """Return what limits the statement about the revert, as reasons."""
    if not trials.changes:
        return [{"code": "no_knob_differs", "message": "the two mappings set every knob alike, so there is nothing to undo"}]
    if revert is None:
        message = "no revert was sought: not even the baseline judged against itself releases on this evidence"
        return [{"code": "no_revert_verified", "message": message}]
    names = ", ".join(revert.knobs)
    if not revert.exhaustive:
        message = f"too many knobs changed to try every set: none of {names} can be left out, but another set may be smaller"
        return [{"code": "revert_not_minimal", "message": message}]
    if revert.everything:
        return [{"code": "revert_everything", "message": f"nothing short of undoing every changed knob releases: {names}"}]
    return []
