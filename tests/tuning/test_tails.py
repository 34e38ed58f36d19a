"""Tuning for the tails: by replaying, a bounded number of times, and never to the loss of one of them."""

import pytest

from replay.documents import shipped_path
from replay.ingress.reader import read_trace
from replay.pipeline import Replayer
from replay.specs.mapping import parse_mapping
from replay.tuning.moves import LEAST_GAIN_RATIO
from replay.tuning.tails import Tails, TailTuner
from replay.tuning.text import tail_text
from tests.models import LLAMA_8B, mapping, round_hardware

GIVEN = ("[gemm]", '"tile@mlp" = [256, 32, 64]', "[batching]", "max_running = 16", "max_batched_tokens = 512", "[graph]", "sizes = [256]")


@pytest.fixture(scope="module")
def trace():
    whole = read_trace(shipped_path("traces") / "demo" / "trace.parquet")
    return type(whole)(**{**{name: getattr(whole, name) for name in whole.__slots__}, "requests": whole.requests.slice(0, 100)})


def tuner(trace, most):
    said = []
    replayer = Replayer(trace=trace, model=LLAMA_8B, hardware=round_hardware(), seed=0)
    return TailTuner(replayer, most_replays=most, progress=said.append), said


def test_no_tail_gets_worse_and_one_gets_better(trace):
    descent, said = tuner(trace, 12)
    found = descent.tune(mapping(*GIVEN))
    assert found.replays_count <= 12
    assert all(found.after.seconds[name] <= before * (1.0 + LEAST_GAIN_RATIO) for name, before in found.before.seconds.items())
    assert found.after.score(found.before) < -LEAST_GAIN_RATIO
    assert found.mapping.count("batching.max_running") > 16
    assert len([line for line in said if line.startswith("replay ")]) == found.replays_count - 1
    text = tail_text(found, "tuned", ["for a test"])
    assert parse_mapping(text, "tuned.toml").digest == found.mapping.digest
    assert "gemm.tile@mlp.decode goes back to auto: E2E -" in text
    line = next(place for place, line in enumerate(text.splitlines()) if line.startswith("max_running"))
    assert text.splitlines()[line - 1].startswith("# p99 E2E ")
    assert text == tail_text(tuner(trace, 12)[0].tune(mapping(*GIVEN)), "tuned", ["for a test"])


def test_one_replay_leaves_the_mapping_as_it_is(trace):
    descent, _ = tuner(trace, 1)
    found = descent.tune(mapping(*GIVEN))
    assert (found.kept, found.mapping.digest, found.replays_count) == ((), mapping(*GIVEN).digest, 1)
    assert "the settings are those given" in tail_text(found, "a", [])


def test_tails_are_compared_by_the_mean_logarithm_and_each_alone():
    given = Tails(seconds={"e2e_s": 8.0, "ttft_s": 2.0}, refused_count=0)
    assert Tails(seconds={"e2e_s": 4.0, "ttft_s": 4.0}, refused_count=0).score(given) == pytest.approx(0.0)
    assert Tails(seconds={"e2e_s": 4.0, "ttft_s": 4.0}, refused_count=0).is_worse(given)
    assert Tails(seconds={"e2e_s": 4.0, "ttft_s": 2.0}, refused_count=1).is_worse(given)
    assert not Tails(seconds={"e2e_s": 4.0, "ttft_s": 2.0}, refused_count=0).is_worse(given)
