"""Evaluations made from a scenario's recipe: the shares and means that it states, and items that draw alike in both arms."""

import numpy as np
import pytest
from click.testing import CliRunner

from gates.cli import main
from gates.quality.pairs import pair_items
from gates.scenario.compare import differences
from gates.scenario.evaluations import make_evaluation
from replay.ingress.quality.reader import read_quality

COUNT = 20_000


def made(folder, name, **more):
    part = {"items_count": COUNT, "prompt_tokens": {"from": 100, "to": 900}, **more}
    return read_quality(make_evaluation(name, {"seed": 3, "items": [part, {**part, "task": "long"}]}, folder))


def test_items_have_the_share_and_the_mean_that_are_stated(tmp_path):
    result = made(tmp_path, "one", correct=0.9, nll_nats_per_token={"mean": 2.0, "sd": 0.5})
    by_metric = {name: result.items.filter(result.items["metric"].to_numpy() == name)["value"].to_numpy() for name in METRICS}
    right, nll = (by_metric[name] for name in METRICS)
    assert len(right) == len(nll) == 2 * COUNT
    assert set(right) == {0.0, 1.0}
    assert np.mean(right) == pytest.approx(0.9, abs=4 * np.sqrt(0.9 * 0.1 / (2 * COUNT)))
    assert np.mean(nll) == pytest.approx(2.0, abs=4 * 0.5 / np.sqrt(2 * COUNT))
    assert np.std(nll) == pytest.approx(0.5, rel=0.03)
    assert set(result.items["task"].to_pylist()) == {"all", "long"}
    assert 100 <= min(result.items["prompt_tokens"].to_pylist()) <= max(result.items["prompt_tokens"].to_pylist()) <= 900


METRICS = ("task_accuracy_ratio", "nll_nats_per_token")


def test_arms_of_one_seed_differ_where_their_shares_do_or_items_are_drawn_anew(tmp_path):
    before, equal, worse, anew = (
        made(tmp_path, name, correct=share, redrawn_ratio=again)
        for name, share, again in (("before", 0.9, 0.0), ("equal", 0.9, 0.0), ("worse", 0.8, 0.0), ("anew", 0.9, 0.1))
    )
    assert (pair_items(before, equal).before == pair_items(before, equal).after).all()
    lost = pair_items(before, worse)
    assert not (lost.after > lost.before).any()
    assert np.mean(lost.before - lost.after) == pytest.approx(0.1, abs=0.01)
    both = pair_items(before, anew)
    wanted = 0.1 * 0.9 * 0.1  # drawn anew, then right here and wrong there
    assert np.mean(both.after > both.before) == pytest.approx(wanted, rel=0.15)
    assert np.mean(both.after < both.before) == pytest.approx(wanted, rel=0.15)


def test_evaluations_of_different_seeds_are_of_different_prompts(tmp_path):
    part = {"items_count": 50, "correct": 0.5}
    arms = [read_quality(make_evaluation(f"e{seed}", {"seed": seed, "items": [part]}, tmp_path)) for seed in (1, 2)]
    assert pair_items(*arms).prompts_differ == 50


def test_what_a_failed_claim_is_told_with_counts_as_said_and_notes_on_those_that_hold_do_not():
    claims = [{"outcome": outcome, "warnings": [f"the worst task of one that {outcome}"]} for outcome in ("disproved", "holds")]
    predicate = {"improved": [], "reasons": [], "per_trace": [{"trace": "t", "hardware": "h", "claims": claims}]}
    assert differences({"says": ["task of one that disproved"]}, predicate) == ()
    assert differences({"says": ["task of one that holds"]}, predicate) == ("no reason or note says 'task of one that holds'",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gate.quality_baseline = 'e'\n[[evaluations.e.items]]\nitems_count = 9", "items_count"),
        ("[[evaluations.e.items]]\nitems_count = 9\ncorrect = 91", "91"),
        ("[[evaluations.e.items]]\nitems_count = 9\nright = 0.9", "right"),
        (
            "gate.quality_baseline = 'e'\n[[evaluations.e.items]]\nitems_count = 9\ncorrect = 0.9\n"
            "[[evaluations.e.items]]\nitems_count = 9\nbatch_invariant = 0.9",
            "part 2 with batch_invariant, and part 1 with correct",
        ),
        ("gate.quality_baseline = 'e'\n[[evaluations.e.items]]\nitems_count = 9\ncorrect = 0.9", "--quality-baseline without"),
        ("[[evaluations.t.items]]\nitems_count = 9\ncorrect = 0.9", "'t' stands in traces and evaluations"),
    ],
)
def test_a_malformed_evaluation_is_one_sentence_and_exit_2(tmp_path, text, said):
    (tmp_path / "scenario.toml").write_text(SMALL + text)
    result = CliRunner().invoke(main, ["scenario", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


SMALL = """
about = "An evaluation that cannot be made."
expect = { decision = "release", basis = "proven_safe" }
gate.baseline = "a.toml"
gate.candidate = "a.toml"
gate.trace = "t"
gate.model = "llama-3.1-8b"
gate.hardware = "h100-sxm"
files."a.toml".name = "a"
traces.t = { requests_count = 2, rate_per_s = 1, prompt_tokens = 9, output_tokens = 2 }
"""
