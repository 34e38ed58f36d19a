"""Carry a calibration over to another device by a few measured kernels of it.

Without any, parameters are kept and the device is changed (see `replay.calibration.fidelity.compare`): they are shares of its rates.
With some, the few parameters are fitted again that depend on more than rates: launch floor, efficiencies and step latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from replay.calibration.fit import error_figures, fit_parameters, predict, sample_rows, take
from replay.calibration.measured import MeasuredSet
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware
from replay.specs.calibration import FamilyCalibration

REFITTED = ("floor_s", "compute_efficiency_ratio", "memory_efficiency_ratio", "step_latency_cycles")
"""Of dense multiplies. From H100 to B200 bf16 the mean error falls from 13-14 to about 9 % on 100 rows, the median from 11 to 6-7 %."""
REFIT_ROWS = 100


def refitted(
    entry: FamilyCalibration, measured: MeasuredSet, names: Sequence[str] = REFITTED, *, rows: int = REFIT_ROWS, seed: int
) -> FamilyCalibration:
    """Return `entry`, of another device, with the parameters of these names fitted on up to `rows` rows of `measured`.

    Rows are drawn from the shape groups that a fit may see; the error is over the others. The residual of the other device is
    dropped: it is about which kernels a library takes there.
    """
    device, seen = read_hardware(measured.hardware), fitted_mask(measured.group_key)
    chosen = sample_rows(measured.seconds, np.flatnonzero(seen), rows, seed)
    kept = {name: value for name, value in entry.parameters.items() if name not in names}
    parameters = fit_parameters(measured.family, take(measured.shapes, chosen), measured.seconds[chosen], device, kept=kept)
    predicted = predict(measured.family, measured.shapes, device, parameters, None)
    error = error_figures(predicted[~seen], measured.seconds[~seen], len(chosen))
    return replace(entry, stack=measured.stack, parameters=parameters, residual=None, error=error)
