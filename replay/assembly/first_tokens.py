"""First output tokens by the window in which the step that emits them starts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from replay.assembly.room import with_room
from replay.execution.step_costs import Counts, Floats
from replay.execution.tables import Replay


class FirstTokens:
    """First output tokens, added up piece by piece."""

    def __init__(self, replicas_count: int, window_s: float) -> None:
        self._window_s = window_s
        self._ends_s: Floats = np.zeros((0, replicas_count))
        """When the last step that starts in a window, or before it, ends."""

    def add(self, piece: Replay, windows: int) -> Counts:
        """Return the first tokens of a piece by window [windows]; their steps are in this piece or an earlier one.

        A first token bears the very end of its step, and steps of a replica end in the order of their starts: its window is the first one
        whose last step does not end before it.
        """
        self._ends_s = with_room(self._ends_s, windows)
        found: Counts = np.zeros(windows, dtype=np.int64)
        for ends_s, (first_token_s, start_s, end_s) in zip(self._ends_s[:windows].T, self._by_replica(piece), strict=True):
            window = np.floor(start_s / self._window_s).astype(np.int64)
            last = np.flatnonzero(np.diff(window, append=windows))
            ends_s[window[last]] = end_s[last]
            np.maximum.accumulate(ends_s, out=ends_s)
            found += np.bincount(np.searchsorted(ends_s, first_token_s), minlength=windows)
        return found

    def _by_replica(self, piece: Replay) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield first tokens, and starts and ends of steps, of each replica."""
        times = [piece.requests["first_token_s"].drop_null(), piece.steps["start_s"], piece.steps["end_s"]]
        replicas_count = self._ends_s.shape[1]
        if replicas_count == 1:
            yield tuple(column.to_numpy() for column in times)
            return
        emits = pc.coalesce(piece.requests["prefill_replica"], piece.requests["replica"])
        of = [emits.drop_null(), piece.steps["replica"], piece.steps["replica"]]
        for replica in range(replicas_count):
            yield tuple(column.to_numpy()[number.to_numpy() == replica] for column, number in zip(times, of, strict=True))
