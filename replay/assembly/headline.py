"""The part of a run that claims over all of it need: requests and sums, for replays by the hundred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from replay.assembly.layers import ALL_LAYERS, model_flops
from replay.assembly.metrics import metrics_of
from replay.tiling.step_table import StepTable

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.execution.step_sums import Sums

_SUMMED = ("time_s", "memory_stall_s", "flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Requests of a replay, and what its windows add up to."""

    requests: pa.Table
    """METRICS_SCHEMA."""
    sums: Mapping[tuple[str, str], float]
    """By layer type (`all`: whole steps) and column of WINDOWS_SCHEMA; what was not worked out is absent."""
    reference_flops_per_s: float
    replicas_count: int
    windows: pa.Table | None = None
    """WINDOWS_SCHEMA; None where only sums were kept."""
    window_s: float = 0.0


def headline_of(run: Run) -> Headline:
    """Return the headline of a whole run, by layer type too."""
    by_layer = run.windows.group_by("layer_type").aggregate([(name, "sum") for name in _SUMMED]).to_pylist()
    sums = {(row["layer_type"], name): row[f"{name}_sum"] for row in by_layer for name in _SUMMED}
    whole = run.windows.filter(pc.equal(run.windows["layer_type"], ALL_LAYERS))
    tokens, energy_j = float(pc.sum(whole["tokens"]).as_py() or 0), pc.sum(whole["energy_j"]).as_py()
    sums |= {(layer, "tokens"): tokens for layer in {layer for layer, _ in sums}}
    sums |= {} if energy_j is None else {(ALL_LAYERS, "energy_j"): energy_j}
    return Headline(
        requests=run.requests,
        sums=sums,
        reference_flops_per_s=run.reference_flops_per_s,
        replicas_count=run.replicas_count,
        windows=run.windows,
        window_s=run.window_s,
    )


def headline_of_sums(requests: pa.Table, sums: Sums, table: StepTable) -> Headline:
    """Return the headline of a replay (REQUESTS_SCHEMA) of which only sums over steps were kept: whole steps, no layers."""
    served = requests.num_rows - requests["first_token_s"].null_count
    flops = model_flops(
        table, (sums.decode_sequences, sums.new_prefill_tokens, sums.output_tokens, sums.decode_context_tokens, sums.prefill_pairs)
    )
    whole = {"time_s": sums.busy_s, "flops": flops, "tokens": sums.decode_sequences + sums.new_prefill_tokens + served}
    return Headline(
        requests=metrics_of(requests),
        sums={(ALL_LAYERS, name): value for name, value in whole.items()},
        reference_flops_per_s=table.reference_flops_per_s,
        replicas_count=table.limits.replicas_count,
    )
