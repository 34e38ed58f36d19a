"""Replay of a log's own arrivals: the latencies that a step model predicts for its requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.runs.log import RunLog
from replay.calibration.runs.step_model import StepTables
from replay.errors import SpecError
from replay.execution.engine import replay
from replay.execution.tables import Replay
from replay.ingress.trace import Trace
from replay.specs.run_calibration import StepParameters

Floats = npt.NDArray[np.float64]

METRICS = ("ttft_s", "tpot_s", "e2e_s")
_NEXT_TICK_S = 1e-9
"""After the first arrival, and before any step could end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of a log's requests, in its order [requests]; TPOT is NaN where one token came out, and so has none."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats

    def of(self, metric: str) -> Floats:
        """Return one of METRICS."""
        values: Floats = getattr(self, metric)
        return values


def observed_latencies(log: RunLog) -> Latencies:
    """Return what the server took."""
    return _latencies(log, *(log.observed[name].to_numpy() for name in ("first_token_s", "last_token_s")))


class LogReplay:
    """Replays one log under any step parameters."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.tables = StepTables(log.server)

    def latencies(self, parameters: StepParameters) -> Latencies:
        """Return what the server would have taken.

        Raises:
            SpecError: a request of the log could never have run under the rules of its meta file.
        """
        shift_s = parameters.startup_s
        done = self.replay(parameters)
        if done.requests["finish_s"].null_count:
            got = f"{done.requests['finish_s'].null_count} requests of the log are too long for the server it describes"
            fix = "give the meta file of this log, with its max_model_len and num_gpu_blocks"
            raise SpecError(self.log.origin.file_name, got, "limits that every completed request fits", fix)
        return _latencies(self.log, *(done.requests[name].to_numpy() + shift_s for name in ("first_token_s", "finish_s")))

    def replay(self, parameters: StepParameters) -> Replay:
        """Return the replay, on a clock that leaves out `startup_s`: it is zero when the first step would have begun, once warm."""
        return replay(warm_trace(self.log.trace, parameters.startup_s), self.tables.build(parameters))


def warm_trace(trace: Trace, startup_s: float) -> Trace:
    """Return the trace with arrivals moved forward to a clock on which the first step was not longer by `startup_s`.

    The stall lies within the first step, so whoever arrived in it arrives after the step's start and before its end on either
    clock, and everything later happens `startup_s` earlier: replayed times plus `startup_s` are those of the cold server, exactly.
    """
    arrival_s = trace.requests["arrival_s"].to_numpy()
    moved = np.where(arrival_s > 0.0, np.maximum(arrival_s - startup_s, np.minimum(arrival_s, _NEXT_TICK_S)), 0.0)
    place = trace.requests.schema.get_field_index("arrival_s")
    return replace(trace, requests=trace.requests.set_column(place, trace.requests.schema.field(place), pa.array(moved)))


def _latencies(log: RunLog, first_token_s: Floats, last_token_s: Floats) -> Latencies:
    arrival_s, output = log.observed["arrival_s"].to_numpy(), log.observed["output_tokens"].to_numpy()
    gaps = np.where(output > 1, output - 1, np.nan)
    return Latencies(
        ttft_s=first_token_s - arrival_s,
        tpot_s=(last_token_s - first_token_s) / gaps,
        e2e_s=last_token_s - arrival_s,
    )
