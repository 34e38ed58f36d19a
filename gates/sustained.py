"""Headline figures of a cell: MFU sustained on the hardware, and the memory-stall fraction by layer type, in both arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.assembly.run import Run

Document = dict[str, Any]


def sustained_figures(baseline: Run, candidate: Run) -> Document:
    """Return the figures over the whole replay, JSON-ready; a figure that an arm does not have is None.

    `mfu_ratio` counts busy time, `wall_clock_mfu_ratio` the time from the first arrival to the last step's end; both against each
    arm's reference peak (`reference_flops_per_s`, that of its whole tensor-parallel group).
    """
    arms = {"baseline": _figures(baseline), "candidate": _figures(candidate)}
    names = ("reference_flops_per_s", "sustained_flops_per_s", "mfu_ratio", "wall_clock_mfu_ratio")
    stalls = {side: _stall_ratios(run) for side, run in (("baseline", baseline), ("candidate", candidate))}
    layer_types = dict.fromkeys([*stalls["baseline"], *stalls["candidate"]])
    return {
        "trace": baseline.trace,
        "hardware": baseline.hardware,
        **{name: {side: arm[name] for side, arm in arms.items()} for name in names},
        "memory_stall_ratio": {layer: {side: stalls[side].get(layer) for side in arms} for layer in layer_types},
    }


def _figures(run: Run) -> dict[str, float | None]:
    import pyarrow.compute as pc

    from replay.assembly.windows import ALL_LAYERS

    whole = run.windows.filter(pc.equal(run.windows["layer_type"], ALL_LAYERS))
    flops, busy_s = (float(pc.sum(whole[name]).as_py() or 0.0) for name in ("flops", "time_s"))
    end_s = float(pc.max(run.steps["end_s"]).as_py() or 0.0)
    peak = run.reference_flops_per_s
    return {
        "reference_flops_per_s": peak,
        "sustained_flops_per_s": flops / busy_s if busy_s > 0 else None,
        "mfu_ratio": flops / (busy_s * peak) if busy_s > 0 else None,
        "wall_clock_mfu_ratio": flops / (end_s * peak) if end_s > 0 else None,
    }


def _stall_ratios(run: Run) -> dict[str, float]:
    from replay.assembly.layers import HOST_LAYER

    pairs = zip(run.layers["layer_type"].to_pylist(), run.layers["memory_stall_ratio"].to_pylist(), strict=True)
    return {layer: ratio for layer, ratio in pairs if layer != HOST_LAYER}
