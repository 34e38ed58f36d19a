"""Which requests of two measured runs are the same ones: by id, by their place in the same load, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.ingress.measured.measured_run import MeasuredRun

Kind = Literal["paired", "partial", "unpaired", "none"]
"""Both runs hold the same requests; they share some and not all; they share none that can be known; there are no requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How the requests of two runs belong together."""

    kind: Kind
    by: Literal["ids", "order"] | None
    common_count: int
    only_baseline: int
    only_candidate: int


def pair_runs(baseline: MeasuredRun, candidate: MeasuredRun) -> Pairing:
    """Return how two runs pair.

    Ids decide where both files state their load's own ids. Where no id is common, or the files know requests only by their place,
    equal prompt lengths in the same order make a pair (of ids that no run shares: only if the lengths differ among themselves, as
    equal ones would prove nothing).
    """
    sizes = baseline.requests.num_rows, candidate.requests.num_rows
    if not all(sizes) or baseline.is_summary or candidate.is_summary:
        return Pairing(kind="none", by=None, common_count=0, only_baseline=sizes[0], only_candidate=sizes[1])
    identities = {baseline.facts.identity, candidate.facts.identity}
    if identities == {"ids"}:
        found = _by_ids(baseline, candidate)
        if found.kind != "unpaired":
            return found
    if identities <= {"ids", "order"}:
        return _by_order(baseline, candidate, strict="ids" in identities)
    return _unpaired(sizes)


def aligned(baseline: MeasuredRun, candidate: MeasuredRun, pairing: Pairing) -> tuple[pa.Table, pa.Table]:
    """Return the rows that both runs hold, in the baseline's order of arrival; times per token of a request need two tokens in both."""
    import pyarrow as pa

    tables = [_in_order(run) for run in (baseline, candidate)]
    if pairing.by == "ids":
        places = {name: row for row, name in enumerate(tables[1]["request_id"].to_pylist())}
        rows = [(row, places[name]) for row, name in enumerate(tables[0]["request_id"].to_pylist()) if name in places]
        tables = [table.take(pa.array([pair[side] for pair in rows], pa.int64())) for side, table in enumerate(tables)]
    else:
        tables = [table.slice(0, pairing.common_count) for table in tables]
    return _with_gaps_in_both(tables[0], tables[1])


def in_arrival_order(table: pa.Table) -> pa.Table:
    """Return a run's requests by arrival; in the file's order where it has no arrivals."""
    import pyarrow.compute as pc

    if table.num_rows == 0 or table["arrival_s"].null_count:
        return table
    return table.take(pc.sort_indices(table["arrival_s"]))


def repeated_ids(run: MeasuredRun) -> int:
    """Return how many rows have an id that an earlier row has."""
    names = run.requests["request_id"].to_pylist()
    return len(names) - len(set(names))


def _by_ids(baseline: MeasuredRun, candidate: MeasuredRun) -> Pairing:
    ids = [set(run.requests["request_id"].to_pylist()) for run in (baseline, candidate)]
    if repeated_ids(baseline) or repeated_ids(candidate):
        return _unpaired((baseline.requests.num_rows, candidate.requests.num_rows))
    common = len(ids[0] & ids[1])
    rest = len(ids[0]) - common, len(ids[1]) - common
    kind: Kind = "paired" if rest == (0, 0) else "partial" if common else "unpaired"
    return Pairing(kind=kind, by="ids" if common else None, common_count=common, only_baseline=rest[0], only_candidate=rest[1])


def _by_order(baseline: MeasuredRun, candidate: MeasuredRun, *, strict: bool) -> Pairing:
    prompts = [_prompts(run) for run in (baseline, candidate)]
    sizes = len(prompts[0]), len(prompts[1])
    common = min(sizes)
    same = bool((prompts[0][:common] == prompts[1][:common]).all()) and not (prompts[0][:common] < 0).any()
    if not same or (strict and (sizes[0] != sizes[1] or len(np.unique(prompts[0])) < 2)):
        return _unpaired(sizes)
    kind: Kind = "paired" if sizes[0] == sizes[1] else "partial"
    return Pairing(kind=kind, by="order", common_count=common, only_baseline=sizes[0] - common, only_candidate=sizes[1] - common)


def _prompts(run: MeasuredRun) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = _in_order(run)["prompt_tokens"].fill_null(-1).to_numpy()
    return lengths


def _in_order(run: MeasuredRun) -> pa.Table:
    """Return a run's requests in the order of the load: the file's where it knows them by their place, else that of their arrivals."""
    return run.requests if run.facts.identity == "order" else in_arrival_order(run.requests)


def _unpaired(sizes: tuple[int, int]) -> Pairing:
    return Pairing(kind="unpaired", by=None, common_count=0, only_baseline=sizes[0], only_candidate=sizes[1])


def _with_gaps_in_both(baseline: pa.Table, candidate: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the tables without `tpot_s` and `itl_s` where one run gave a request several tokens and the other did not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    several = [pc.fill_null(pc.greater(table["output_tokens"], 1), False) for table in (baseline, candidate)]
    alike = pc.equal(*several)
    tables = []
    for table in (baseline, candidate):
        found = table
        for name in ("tpot_s", "itl_s"):
            column = pc.if_else(alike, table[name], pa.scalar(None, pa.float64()))
            found = found.set_column(table.schema.get_field_index(name), name, column)
        tables.append(found)
    return tables[0], tables[1]
