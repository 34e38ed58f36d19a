"""Pipeline parallelism: which layers run in which stage, and which hand-overs cross from one node to the next."""

from __future__ import annotations

from replay.errors import SpecError
from replay.specs.model import ModelSpec

NODE_RANKS = 8
"""Accelerators of a serving node: HGX boards and Instinct platforms hold eight (their datasheets), as do common PCIe servers."""


def split_layers(model: ModelSpec, stages_count: int) -> tuple[int, ...]:
    """Return the layers of each stage, as vLLM 0.11 splits them (`get_pp_indices`).

    What does not divide goes to the stages before the last one, from the back: the last has the final norm and the LM head.

    Raises:
        SpecError: there are more stages than layers.
    """
    count = model.layers_count
    if stages_count > count:
        got = f"{stages_count} stages for the {count} layers of {model.name}"
        raise SpecError("parallelism.pipeline", got, f"at most {count}", "set another parallelism.pipeline")
    stages = [count // stages_count] * stages_count
    for place in range(count % stages_count):
        stages[-2 - place] += 1
    return tuple(stages)


def calls_by_stage(stage_layers: tuple[int, ...], first_layer: int, calls_count: int) -> tuple[int, ...]:
    """Return how many of the layers `first_layer`, ... (`calls_count` of them) each stage runs."""
    found, start = [], 0
    for layers in stage_layers:
        found.append(max(0, min(start + layers, first_layer + calls_count) - max(start, first_layer)))
        start += layers
    return tuple(found)


def handovers(stages_count: int, ranks: int, *, across_nodes: bool) -> tuple[int, ...]:
    """Return, for each stage, 1 where it hands over to the next one inside a node (or across nodes), else 0.

    Stages fill nodes of NODE_RANKS one after another; a group of `ranks` hands over as slowly as its slowest pair.
    """

    def crosses(stage: int) -> bool:
        return any((stage * ranks + rank) // NODE_RANKS != ((stage + 1) * ranks + rank) // NODE_RANKS for rank in range(ranks))

    return tuple(int(stage + 1 < stages_count and crosses(stage) == across_nodes) for stage in range(stages_count))
