"""How far the request shapes and the load of one trace are from those of another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.ingress.summary import summarize
from replay.ingress.trace import Trace

_BINS = 64
"""Octaves of a length that an int64 can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeMix:
    """Two mixes of (prompt, output) lengths, each length known to its octave: 512 to 1023 tokens is one bin.

    A length decides a cost about in proportion, so within an octave requests cost alike to a factor of two. The cut is sharp: 511 and 512
    tokens lie in two bins.
    """

    distance_ratio: float
    """Total variation: half the sum of the differences of the cells' shares. 0.2 means that a fifth of the requests would have to get
    another shape to make one mix the other. 0 = the same mix, 1 = no shape in common.
    """
    chance_ratio: float
    """The distance to expect of two draws of so many requests from one mix."""
    coverage_ratio: float
    """Share of the reference's requests in cells that the trace has, too."""
    missing: str | None
    """The largest cell of the reference that the trace lacks, for people."""


def compare_shapes(requests: pa.Table, reference: pa.Table) -> ShapeMix:
    """Return how the shapes of `requests` differ from those of a reference; both have `prompt_tokens` and `output_tokens`, and rows."""
    cells = [_cells(table) for table in (requests, reference)]
    known, index = np.unique(np.concatenate(cells), return_inverse=True)
    sizes = [len(one) for one in cells]
    counts = [np.bincount(part, minlength=len(known)) for part in (index[: sizes[0]], index[sizes[0] :])]
    shares, wanted = (count / size for count, size in zip(counts, sizes, strict=True))
    pooled = (counts[0] + counts[1]) / sum(sizes)
    # The mean of the absolute value of a normal deviate is sqrt(2 / pi) times its standard deviation, here that of a difference of shares.
    deviation = np.sqrt(pooled * (1.0 - pooled) * (1.0 / sizes[0] + 1.0 / sizes[1]))
    absent = np.where(counts[0] == 0, wanted, 0.0)
    worst = int(np.argmax(absent))
    return ShapeMix(
        distance_ratio=float(np.abs(shares - wanted).sum()) / 2.0,
        chance_ratio=math.sqrt(2.0 / math.pi) * float(deviation.sum()) / 2.0,
        coverage_ratio=1.0 - float(absent.sum()),
        missing=_phrase(int(known[worst]), float(absent[worst])) if absent[worst] > 0 else None,
    )


def load_ratios(trace: Trace, reference: Trace) -> dict[str, float] | None:
    """Return the trace's requests per second over the reference's, on average and in the fullest minute; None without arrivals."""
    if not (trace.has_arrivals and reference.has_arrivals):
        return None
    facts = [summarize(one) for one in (trace, reference)]
    names = ("mean_rate_per_s", "peak_60s_requests")
    if any(not fact[name] for fact in facts for name in names):
        return None
    return {name: facts[0][name] / facts[1][name] for name in names}


def _cells(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    prompts, outputs = (np.floor(np.log2(table[name].to_numpy())).astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    cells: np.ndarray[tuple[int], np.dtype[np.int64]] = prompts * _BINS + outputs
    return cells


def _phrase(cell: int, share: float) -> str:
    prompt, output = divmod(cell, _BINS)
    lengths = [f"{2**octave} to {2 ** (octave + 1) - 1}" for octave in (prompt, output)]
    return f"{share:.1%} of it are prompts of {lengths[0]} tokens with outputs of {lengths[1]}, of which the trace has none"
