"""Headline figures of a cell: MFU sustained on the hardware, and the memory-stall fraction by layer type, in both arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.assembly.run import Run

Document = dict[str, Any]

FIGURES = ("reference_flops_per_s", "sustained_flops_per_s", "mfu_ratio", "wall_clock_mfu_ratio")
"""Figures of a run's summary that the verdict repeats for both arms, under the same names."""


def sustained_figures(baseline: Run, candidate: Run) -> Document:
    """Return figures of both arms' summaries (`replay.assembly.assemble.summary`, which defines them), JSON-ready.

    The memory-stall fraction is by layer type of the model; of a layer type that one arm does not run it is None there.
    """
    from replay.assembly.assemble import summary
    from replay.assembly.layers import ALL_LAYERS, HOST_LAYER

    arms = {"baseline": summary(baseline), "candidate": summary(candidate)}
    layer_types = dict.fromkeys(
        layer for arm in arms.values() for layer in arm["memory_stall_ratio"] if layer not in (HOST_LAYER, ALL_LAYERS)
    )
    return {
        "trace": baseline.trace,
        "hardware": baseline.hardware,
        **{name: {side: arm[name] for side, arm in arms.items()} for name in FIGURES},
        "memory_stall_ratio": {layer: {side: arm["memory_stall_ratio"].get(layer) for side, arm in arms.items()} for layer in layer_types},
    }
