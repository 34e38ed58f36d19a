"""Synthetic traces: figures of the recipe come back, the seed decides every row, the shipped demo is what its card says."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import documents
from replay.errors import SpecError
from replay.ingress.reader import read_trace
from replay.ingress.summary import summarize
from replay.ingress.synth import LengthFigures, quantile_tokens, read_recipe, synthesize

DEMO = documents.shipped_path("traces") / "demo"
DEMO_RECIPE = read_recipe(DEMO / "recipe.toml")
DEMO_SEED = 20231116


def test_the_quantile_function_passes_through_every_figure():
    figures = LengthFigures(minimum=64, p50=1020, p95=4083, p99=4142, maximum=14050)
    assert quantile_tokens(figures, np.array([0, 0.5, 0.95, 0.99, 1.0])).tolist() == [64, 1020, 4083, 4142, 14050]
    assert quantile_tokens(figures, np.array([0.25])).tolist() == [round((64 * 1020) ** 0.5)]


@settings(max_examples=100, deadline=None)
@given(
    points=st.lists(st.integers(1, 2**31 - 1), min_size=5, max_size=5).map(sorted),
    levels=st.lists(st.floats(0, 1), min_size=2, max_size=20),
)
def test_lengths_stay_inside_the_figures_and_never_decrease_with_the_level(points, levels):
    names = [field.name for field in dataclasses.fields(LengthFigures)]
    values = quantile_tokens(LengthFigures(**dict(zip(names, points, strict=True))), np.array(sorted(levels)))
    assert (np.diff(values) >= 0).all()
    assert points[0] <= values[0]
    assert values[-1] <= points[-1]


def test_a_large_draw_has_the_figures_of_its_recipe():
    facts = summarize(synthesize(dataclasses.replace(DEMO_RECIPE, requests_count=200_000), seed=1))
    assert facts["mean_rate_per_s"] == pytest.approx(2.5, rel=0.01)
    assert facts["gap_cv"] == pytest.approx(1.09, rel=0.01)
    assert facts["prompt_tokens"]["p50"] == pytest.approx(1020, rel=0.02)
    assert facts["prompt_tokens"]["p95"] == pytest.approx(4083, rel=0.01)
    assert facts["output_tokens"]["p95"] == pytest.approx(451, rel=0.02)
    assert facts["output_tokens"]["p99"] == pytest.approx(601, rel=0.02)


def test_evenly_spaced_arrivals_have_no_spread():
    gaps = np.diff(synthesize(dataclasses.replace(DEMO_RECIPE, gap_cv=0.0, rate_per_s=4.0), seed=1).requests["arrival_s"].to_numpy())
    assert gaps.tolist() == [0.25] * (DEMO_RECIPE.requests_count - 1)


def test_the_seed_decides_every_row_and_streams_do_not_disturb_each_other():
    small = dataclasses.replace(DEMO_RECIPE, requests_count=50)
    trace = synthesize(small, seed=5)
    assert synthesize(small, seed=5) == trace
    assert synthesize(small, seed=6).digest != trace.digest
    burstier = synthesize(dataclasses.replace(small, gap_cv=3.0), seed=5)
    assert burstier.requests["prompt_tokens"] == trace.requests["prompt_tokens"]
    assert burstier.requests["arrival_s"] != trace.requests["arrival_s"]


def test_a_synthetic_trace_is_labelled_with_its_recipe_and_seed():
    provenance = synthesize(dataclasses.replace(DEMO_RECIPE, requests_count=2), seed=5).provenance
    assert provenance.kind == "synthetic"
    for words in ("2 requests", "2.5 per second", "CV 1.09", "p99 4142", "seed 5"):
        assert words in provenance.origin


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": float("nan")}, "rate_per_s"),
        ({"rate_per_s": 1e-9}, "rate_per_s"),
        ({"requests_count": 0}, "requests_count"),
        ({"gap_cv": -0.1}, "gap_cv"),
        ({"gap_cv": float("inf")}, "gap_cv"),
        ({"prompt": dataclasses.replace(DEMO_RECIPE.prompt, minimum=0)}, "prompt lengths"),
        ({"output": dataclasses.replace(DEMO_RECIPE.output, p95=128)}, "output lengths"),
    ],
)
def test_a_recipe_without_sense_is_an_error(changes, finding):
    with pytest.raises(SpecError, match=finding):
        synthesize(dataclasses.replace(DEMO_RECIPE, **changes), seed=0)


def test_the_shipped_demo_is_what_its_recipe_its_manifest_and_its_card_say():
    folder = documents.shipped_path("traces")
    path = folder / "demo" / "trace.parquet"
    trace = read_trace(path)
    assert trace == synthesize(DEMO_RECIPE, seed=DEMO_SEED, name="demo")
    entry = json.loads((folder / "MANIFEST.json").read_text())["demo/trace.parquet"]
    assert entry == {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": 6000, "rows_digest": trace.digest}
    assert path.stat().st_size < 200_000
    card = (folder / "demo" / "card.md").read_text()
    for words in ("synthetic", trace.digest, str(DEMO_SEED), "Apache-2.0", str(trace.requests.num_rows)):
        assert words in card
