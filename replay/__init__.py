"""Facts: what would have happened had a recorded trace been served under a mapping. Deterministic; knows no threshold, no verdict.

Read first: `replay/pipeline.py` (the only file that sees all stages), `replay/tiling/step_table.py` (the seam between the
mapping half and the queueing half), `replay/execution/engine.py` (the serving loop). The stages are the folders, in order::

    ingress/     bytes -> Trace, model metadata -> ModelSpec, results of benchmarks -> MeasuredRun
    lowering/    ModelSpec -> OpGraph -> KernelPlan   (fusion, formats, kernel choice, requested against effective)
    tiling/      KernelPlan x HardwareSpec -> Schedule -> StepTable   (tiles, waves, placement, traffic)
    execution/   Trace + StepTable -> requests and steps   (batching, cache blocks, preemption)
    assembly/    requests and steps -> Run   (metrics by request, layer type, window)

Judgement is in the package `gates`. Names below are loaded when first used, so that `import replay` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.catalog.hardware import hardware_names, read_hardware
    from replay.errors import EvidenceError, InputError, InvariantError, ReplayError, SchemaError, SpecError, TraceError
    from replay.ingress.model_config import read_model
    from replay.ingress.reader import read_trace
    from replay.ingress.trace import Trace
    from replay.pipeline import Replayer, run
    from replay.specs.hardware import HardwareSpec
    from replay.specs.mapping import MappingSpec, parse_mapping
    from replay.specs.model import ModelSpec
    from replay.tiling.step_table import StepTable

__all__ = [
    "EvidenceError",
    "HardwareSpec",
    "InputError",
    "InvariantError",
    "MappingSpec",
    "ModelSpec",
    "ReplayError",
    "Replayer",
    "Run",
    "SchemaError",
    "SpecError",
    "StepTable",
    "Trace",
    "TraceError",
    "hardware_names",
    "parse_mapping",
    "read_hardware",
    "read_model",
    "read_trace",
    "run",
]

_HOMES = {
    "replay.assembly.run": ("Run",),
    "replay.catalog.hardware": ("hardware_names", "read_hardware"),
    "replay.errors": ("EvidenceError", "InputError", "InvariantError", "ReplayError", "SchemaError", "SpecError", "TraceError"),
    "replay.ingress.model_config": ("read_model",),
    "replay.ingress.reader": ("read_trace",),
    "replay.ingress.trace": ("Trace",),
    "replay.pipeline": ("Replayer", "run"),
    "replay.specs.hardware": ("HardwareSpec",),
    "replay.specs.mapping": ("MappingSpec", "parse_mapping"),
    "replay.specs.model": ("ModelSpec",),
    "replay.tiling.step_table": ("StepTable",),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'replay' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
