"""Synthetic traces from published summary figures: a renewal process of gamma gaps and independent lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from replay import documents
from replay.errors import SpecError
from replay.ingress.normalize import arrivals_on_grid, require_positive
from replay.ingress.parsed import LARGEST_S, MAX_TOKENS
from replay.ingress.trace import Trace, build_trace
from replay.provenance import TraceProvenance, digest_document
from replay.seeds import stream

_MOST_REQUESTS = 100_000_000
_LEVELS = (0.0, 0.5, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFigures:
    """Percentiles of a length in tokens. Figures are seldom published below the median: `minimum` is then an assumption."""

    minimum: int
    p50: int
    p95: int
    p99: int
    maximum: int

    def __str__(self) -> str:
        points = f"p50 {self.p50}, p95 {self.p95}, p99 {self.p99}, max {self.maximum}"
        return f"min {self.minimum}, {points}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthRecipe:
    """What a synthetic trace is drawn from."""

    figures_of: str
    """Whose summary figures these are, in words."""
    requests_count: int
    rate_per_s: float
    gap_cv: float
    """Standard deviation over mean of the gaps between arrivals: 1 = Poisson, more = burstier, 0 = evenly spaced."""
    prompt: LengthFigures
    output: LengthFigures


def read_recipe(path: Path) -> SynthRecipe:
    """Return the recipe in a TOML file (schema `synth-recipe.v1`; ``traces/demo/recipe.toml`` is one).

    Raises:
        SpecError: it cannot be read, or a figure is missing, unknown or out of range.
    """
    what = "a recipe of a synthetic trace (TOML)"
    text = documents.decode(documents.read_bytes(path, what), str(path), what)
    document = documents.parse_toml(text, str(path))
    documents.check(document, "synth-recipe.v1", str(path), text)
    prompt, output = (LengthFigures(**document.pop(f"{name}_tokens")) for name in ("prompt", "output"))
    recipe = SynthRecipe(**document, prompt=prompt, output=output)
    _check(recipe)
    return recipe


def synthesize(recipe: SynthRecipe, *, seed: int, name: str = "synthetic") -> Trace:
    """Return a trace of kind `synthetic`; the same recipe and seed give the same rows.

    Gaps are gamma with shape 1/cv^2 and mean 1/rate; arrivals lie on a 100 ns grid. Lengths are independent draws from quantile
    functions that are linear in the logarithm between the figures.

    Raises:
        SpecError: a figure is out of range or the percentiles decrease.
    """
    _check(recipe)
    rows = recipe.requests_count
    requests = pa.table(
        {
            "request_id": pa.array([f"r{row}" for row in range(rows)]),
            "arrival_s": pa.array(arrivals_on_grid(_gaps_s(recipe, seed))),
            "prompt_tokens": pa.array(quantile_tokens(recipe.prompt, stream(seed, "ingress/synth/prompt").random(rows))),
            "output_tokens": pa.array(quantile_tokens(recipe.output, stream(seed, "ingress/synth/output").random(rows))),
        }
    )
    provenance = TraceProvenance(
        kind="synthetic",
        origin=_in_words(recipe, seed),
        source_digest=digest_document({"recipe": asdict(recipe), "seed": seed}),
        rows_read=rows,
        rows_kept=rows,
        notes=("lengths are drawn independently of each other and of the arrivals; no sessions, no shared prefixes",),
    )
    return build_trace(name=name, requests=requests, provenance=provenance)


def quantile_tokens(figures: LengthFigures, levels: np.ndarray) -> np.ndarray:
    """Return token counts [levels] at probability levels in [0, 1]: exact at the figures, log-linear between, whole, never decreasing."""
    knots = np.array([figures.minimum, figures.p50, figures.p95, figures.p99, figures.maximum], dtype=np.float64)
    lengths: np.ndarray = np.rint(np.exp(np.interp(levels, _LEVELS, np.log(knots)))).astype(np.int64)
    return lengths


def _gaps_s(recipe: SynthRecipe, seed: int) -> np.ndarray:
    gaps = recipe.requests_count - 1
    if recipe.gap_cv == 0:
        return np.full(gaps, 1.0 / recipe.rate_per_s)
    shape = recipe.gap_cv**-2
    gaps_s: np.ndarray = stream(seed, "ingress/synth/arrivals").gamma(shape, 1.0 / (recipe.rate_per_s * shape), gaps)
    return gaps_s


def _in_words(recipe: SynthRecipe, seed: int) -> str:
    return (
        f"drawn from summary figures of {recipe.figures_of}: {recipe.requests_count} requests, gamma gaps at {recipe.rate_per_s!r} per "
        f"second with CV {recipe.gap_cv!r}; prompt tokens {recipe.prompt}; output tokens {recipe.output}; seed {seed}"
    )


def _check(recipe: SynthRecipe) -> None:
    require_positive("rate_per_s", recipe.rate_per_s)
    if not 1 <= recipe.requests_count <= _MOST_REQUESTS:
        raise SpecError("requests_count", f"the value {recipe.requests_count}", f"1 to {_MOST_REQUESTS}", "correct it")
    if recipe.requests_count / recipe.rate_per_s > LARGEST_S:
        raise SpecError("rate_per_s", f"the value {recipe.rate_per_s}", f"a trace of at most {LARGEST_S} s", "raise the rate")
    if not (np.isfinite(recipe.gap_cv) and 0 <= recipe.gap_cv <= 100):
        raise SpecError("gap_cv", f"the value {recipe.gap_cv}", "a number from 0 to 100", "correct it")
    for name, figures in (("prompt", recipe.prompt), ("output", recipe.output)):
        points = (figures.minimum, figures.p50, figures.p95, figures.p99, figures.maximum)
        if not 1 <= points[0] <= points[1] <= points[2] <= points[3] <= points[4] <= MAX_TOKENS:
            raise SpecError(f"{name} lengths", str(figures), f"1 <= min <= p50 <= p95 <= p99 <= max <= {MAX_TOKENS}", "correct the figures")
