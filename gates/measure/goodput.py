"""Goodput: requests per second that met every limit of the policy, from the first arrival to the last end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gates.measure.requests import read_metric

if TYPE_CHECKING:
    from gates.policy import SloLimits
    from gates.statistics.blocks import Floats


def goodput_windows(requests: pa.Table, slo: SloLimits | None, window_s: float, windows_count: int) -> tuple[Floats, Floats] | None:
    """Return requests that ended in each window having met all limits, and the window's seconds [windows]; None where none ended.

    Windows start at the first arrival (time 0). A request that was not served meets no limit. The last window takes whatever ends after
    it; seconds after the last end are not the run's.
    """
    ends_s, met = _ends(requests, slo)
    last_s = float(ends_s.max(initial=0.0))
    if last_s <= 0.0:
        return None
    index = np.minimum((ends_s / window_s).astype(np.int64), windows_count - 1)
    edges_s = np.minimum(window_s * np.arange(windows_count + 1), last_s)
    edges_s[-1] = last_s
    good: Floats = np.bincount(index, weights=met, minlength=windows_count).astype(np.float64)
    return good, np.diff(edges_s)


def goodput_per_s(requests: pa.Table, slo: SloLimits | None) -> float:
    """Return the goodput of a whole run, requests/s; NaN where no request ended."""
    ends_s, met = _ends(requests, slo)
    last_s = float(ends_s.max(initial=0.0))
    return float(met.sum()) / last_s if last_s > 0.0 else float("nan")


def _ends(requests: pa.Table, slo: SloLimits | None) -> tuple[Floats, Floats]:
    """Return of each request that ended when that was, s, and whether it met all limits [ended]."""
    done = requests.filter(pc.and_(pc.is_valid(requests["e2e_s"]), pc.is_valid(requests["arrival_s"])))
    ends_s: Floats = done["arrival_s"].to_numpy() + done["e2e_s"].to_numpy()
    return ends_s, read_metric(done, "slo_met", slo)[0]
