"""Traces drawn from a scenario's recipe: arrivals or clients, cohorts with lengths and shared beginnings, loads of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.errors import SpecError
from replay.ingress.normalize import arrivals_on_grid
from replay.ingress.sending import with_load
from replay.ingress.trace import Trace, build_trace, with_expert_load
from replay.provenance import Load, TraceProvenance, digest_document
from replay.seeds import stream
from replay.specs.routing import ExpertLoad

Recipe = dict[str, Any]
Counts = npt.NDArray[np.int64]
PREFIX_BLOCK_TOKENS = 256
"""Where a recipe names no other size."""
_HALVINGS = 60
"""Of the search for a spread: to the last bit of a float."""


def make_trace(name: str, recipe: Recipe) -> Trace:
    """Return the trace of a recipe; the same recipe gives the same rows. It is synthetic unless the recipe says what recording it is for.

    Raises:
        SpecError: neither arrivals nor clients are given, or shares are no shares.
    """
    count = int(recipe["requests_count"])
    cohort = _cohorts(recipe, count)
    prompts, outputs = (_lengths(recipe, f"{kind}_tokens", cohort) for kind in ("prompt", "output"))
    columns: dict[str, Any] = {"request_id": [f"r{index}" for index in range(count)], "prompt_tokens": prompts, "output_tokens": outputs}
    if (arrivals := _arrivals(name, recipe, count)) is not None:
        columns["arrival_s"] = arrivals
    blocks = _beginnings(recipe, cohort, prompts)
    if blocks is not None:
        columns["prefix_blocks"] = pa.array(blocks, pa.list_(pa.int64()))
    origin = recipe.get("stands_for")
    provenance = TraceProvenance(
        kind="synthetic" if origin is None else "recorded",
        origin="drawn from a scenario's recipe" + (f", in place of {origin}" if origin else ""),
        source_digest=digest_document(recipe),
        rows_read=count,
        rows_kept=count,
        prefix_block_tokens=None if blocks is None else _block_tokens(recipe),
    )
    trace = build_trace(name=name, requests=pa.table(columns), provenance=provenance)
    if "concurrency" in recipe:
        trace = with_load(trace, Load(concurrency=recipe["concurrency"]))
    return trace if "expert_load" not in recipe else with_expert_load(trace, _expert_load(recipe["expert_load"], recipe.get("seed", 0)))


def _draws(recipe: Recipe, what: str) -> np.random.Generator:
    return stream(recipe.get("seed", 0), f"scenario/{what}")


def _arrivals(name: str, recipe: Recipe, count: int) -> npt.NDArray[np.float64] | None:
    """Return gamma gaps of a rate, or None for a closed loop."""
    if "rate_per_s" not in recipe:
        if "concurrency" in recipe:
            return None
        raise SpecError(name, "neither rate_per_s nor concurrency", "arrivals or clients", "give one of them")
    mean_s, spread = 1.0 / recipe["rate_per_s"], recipe.get("gap_cv", 1.0)
    if spread == 0:
        return arrivals_on_grid(np.full(count - 1, mean_s))
    shape = 1.0 / spread**2
    return arrivals_on_grid(_draws(recipe, "gaps").gamma(shape, mean_s / shape, count - 1))


def _cohorts(recipe: Recipe, count: int) -> Counts:
    """Return each request's cohort by its place in the recipe [requests]."""
    shares = [cohort["share"] for cohort in recipe.get("cohorts", ())] or [1.0]
    if abs(sum(shares) - 1.0) > 1e-9:
        raise SpecError("cohorts", f"shares that add up to {sum(shares):g}", "1", "correct them")
    return np.asarray(_draws(recipe, "cohorts").choice(len(shares), size=count, p=shares), dtype=np.int64)


def _lengths(recipe: Recipe, key: str, cohort: Counts) -> Counts:
    """Return lengths in tokens [requests]: those of a request's cohort, where it states its own, else the recipe's."""
    drawn = _draws(recipe, key)
    found = np.empty(len(cohort), dtype=np.int64)
    for place, own in enumerate(recipe.get("cohorts") or [{}]):
        mine = cohort == place
        found[mine] = drawn_lengths(own.get(key, recipe.get(key)), key, drawn, int(mine.sum()))
    return found


def drawn_lengths(figures: Any, key: str, draws: np.random.Generator, count: int) -> Counts:
    """Return whole numbers: one figure for all, evenly between two, or log-normal about a median."""
    if figures is None:
        raise SpecError(key, "a cohort without it", "lengths in tokens", "state them for the recipe or for each cohort")
    if isinstance(figures, int):
        return np.full(count, figures, dtype=np.int64)
    if "from" in figures:
        return np.asarray(draws.integers(figures["from"], figures["to"], count, endpoint=True), dtype=np.int64)
    values = figures["median"] * np.exp(figures["sigma"] * draws.standard_normal(count))
    return np.asarray(np.rint(values).clip(figures.get("minimum", 1), figures.get("maximum")), dtype=np.int64)


def _beginnings(recipe: Recipe, cohort: Counts, prompts: Counts) -> list[list[int]] | None:
    """Return prefix blocks by request: the shared ones of its group, then its own; None where no cohort shares any."""
    own = recipe.get("cohorts") or [recipe]
    if not any("prefix_groups" in one for one in own):
        return None
    draws, fresh, blocks, tokens = _draws(recipe, "groups"), 10**9, [], _block_tokens(recipe)
    for place, prompt in zip(cohort.tolist(), prompts.tolist(), strict=True):
        size = -(-prompt // tokens)
        shared = min(size - 1, own[place].get("prefix_tokens", 0) // tokens)
        group = int(draws.integers(own[place].get("prefix_groups", 1)))
        first = (place * 1000 + group) * 10_000
        blocks.append([*range(first, first + shared), *range(fresh, fresh + size - shared)])
        fresh += size
    return blocks


def _block_tokens(recipe: Recipe) -> int:
    return int(recipe.get("prefix_block_tokens", PREFIX_BLOCK_TOKENS))


def _expert_load(figures: Any, seed: int) -> ExpertLoad:
    """Return uniform routing, or loads log-normal by rank whose busiest has `busiest_ratio` times the mean."""
    if figures == "uniform":
        return ExpertLoad(origin="stated")
    ranks, each = figures["ranks"], figures["experts"] // figures["ranks"]
    rows = stream(seed, "scenario/experts").standard_normal((figures["layers"], ranks))
    layers = tuple(tuple(np.repeat(_skewed(row, figures["busiest_ratio"]), each).tolist()) for row in rows)
    return ExpertLoad(origin="drawn", layers=layers)


def _skewed(normal: npt.NDArray[np.float64], busiest_ratio: float) -> npt.NDArray[np.float64]:
    """Return loads exp(sigma x normal) with the sigma that gives the busiest its ratio to the mean, by bisection."""
    low, high = 0.0, 10.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        loads = np.exp(middle * (normal - normal.max()))
        low, high = (middle, high) if loads.max() / loads.mean() < busiest_ratio else (low, middle)
    return np.asarray(np.exp(low * (normal - normal.max())))
