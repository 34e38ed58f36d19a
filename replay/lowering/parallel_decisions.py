"""What the knobs of expert and pipeline parallelism ask for, what becomes of it, and how uneven that is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replay.lowering.kernel_plan import Decision
from replay.lowering.op_graph import OpGraph, RankLoads
from replay.specs.knobs import KNOBS
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec

SHOWN_RATIO = 1.005
"""Busiest over mean rank from which on it is worth a word: below, it is 1.00."""


def parallel_decisions(model: ModelSpec, mapping: MappingSpec, graph: OpGraph, loads: RankLoads | None) -> Iterator[Decision]:
    """Yield a decision for each of those knobs that is not at its default."""
    asked = mapping.count("parallelism.expert")
    if asked > 1 and loads is None:
        yield _decision("parallelism.expert", asked, 1, f"{model.name} has no experts")
    elif asked > 1 and loads is not None:
        effective = f"{loads.ranks_count} ranks of {loads.experts_count} experts"
        yield _decision("parallelism.expert", asked, effective, _imbalance(loads))
    for knob in ("placement.experts", "parallelism.expert_exchange"):
        value = mapping.value(knob)
        if value != KNOBS[knob].default:
            idle = asked == 1 or loads is None
            reason = "no ranks share the experts (parallelism.expert)" if idle else None
            yield _decision(knob, value, KNOBS[knob].default if idle else value, reason)
    if graph.stage_layers:
        stages = graph.stage_layers
        uneven = f"{model.layers_count} layers do not divide by {len(stages)}: the largest stage has {max(stages)}"
        effective = "stages of " + ", ".join(map(str, stages)) + " layers"
        yield _decision("parallelism.pipeline", len(stages), effective, None if min(stages) == max(stages) else uneven)


def _imbalance(loads: RankLoads) -> str | None:
    ratios = np.array(loads.imbalance_ratios)
    if ratios.max() < SHOWN_RATIO:
        return None
    where = "" if len(ratios) == 1 else f" on average over {len(ratios)} layers, {ratios.max():.2f} in layer {ratios.argmax()} of those"
    return f"with {loads.placement} placement the busiest rank gets {ratios.mean():.2f} times the rows of the mean one{where}"


def _decision(knob: str, requested: object, effective: object, reason: str | None) -> Decision:
    return Decision(knob=knob, requested=str(requested), effective=str(effective), reason=reason, stage=KNOBS[knob].stage)
