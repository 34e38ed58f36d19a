"""Random halves of one measured run, gated against each other: nothing changed between them, so every rollback is a false one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gates.measured_gate import gate_measured
from gates.request import MeasuredArm, MeasuredRequest
from gates.selfcheck.rates import Share
from replay.errors import EvidenceError
from replay.ingress.measured.measured_run import MeasuredRun
from replay.provenance import digest_document
from replay.seeds import stream

BASES = ("proven_safe", "regression", "inconclusive", "invalid_evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRates:
    """What the gate said of the halves of one run."""

    name: str
    splits: int
    shares: dict[str, Share]
    """By basis of the verdict."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"run": self.name, "splits": self.splits, "shares": {basis: asdict(share) for basis, share in self.shares.items()}}


def split_rates(request: MeasuredRequest, splits: int, say: Callable[[int, int], None]) -> Iterator[SplitRates]:
    """Yield how often the gate of `request`, whose candidate is not read, decides what on the halves of each run of its baseline.

    Halves share no request and are compared as runs of different requests. They had the same bursts, so that they differ by less than runs
    at other times: a false rollback here is one that no run effect excuses.

    Raises:
        EvidenceError: a run holds no requests to split.
    """
    for name, run in request.baseline.runs:
        if run.requests.num_rows < 2:
            raise EvidenceError(name, f"{run.requests.num_rows} requests", "a run with a row for each request", "name the detailed result")
        counts = dict.fromkeys(BASES, 0)
        draw = stream(request.seed, f"selfcheck.splits/{run.facts.digest}")
        for split in range(splits):
            counts[_basis(request, name, halves(run, draw))] += 1
            say(split + 1, splits)
        yield SplitRates(name=name, splits=splits, shares={basis: Share.of(count, splits) for basis, count in counts.items()})


def halves(run: MeasuredRun, draw: np.random.Generator) -> tuple[MeasuredRun, MeasuredRun]:
    """Return the requests of a run in two parts by chance, each in the run's order, as of two runs without anything but requests.

    What the file says of the run as a whole (rates, counts, its duration) holds for neither half and is left out.
    """
    n = run.requests.num_rows
    chosen = draw.permutation(n) < n // 2
    facts = replace(
        run.facts,
        identity="none",
        offered_rate_per_s=None,
        achieved_rate_per_s=None,
        duration_s=None,
        expected_count=None,
        completed_count=None,
    )
    parts = [np.flatnonzero(chosen), np.flatnonzero(~chosen)]
    digests = [digest_document([run.facts.digest, np.packbits(chosen).tobytes().hex(), half]) for half in range(2)]
    first, second = (
        MeasuredRun(requests=run.requests.take(rows), facts=replace(facts, digest=digest))
        for rows, digest in zip(parts, digests, strict=True)
    )
    return first, second


def _basis(request: MeasuredRequest, name: str, runs: tuple[MeasuredRun, MeasuredRun]) -> str:
    arms = [MeasuredArm(label=f"{name}, {half}", runs=((name, run),)) for half, run in zip(("one half", "the other"), runs, strict=True)]
    asked = replace(request, baseline=arms[0], read_candidate=lambda: arms[1])
    return gate_measured(asked, lambda _: None).verdict.basis
