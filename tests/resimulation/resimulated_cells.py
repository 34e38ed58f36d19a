"""A small server, its traffic and a pair of mappings for tests of re-simulation."""

import numpy as np

from gates.plan import cell_of, make_plan
from gates.policy import parse_policy
from replay.pipeline import Replayer
from tests.models import LLAMA_8B, mapping, round_hardware
from tests.step_tables import make_trace

BASELINE = mapping("[batching]", "max_running = 16", "max_batched_tokens = 256", "max_context_tokens = 4096")
CANDIDATE = mapping("[batching]", "max_running = 12", "max_batched_tokens = 256", "max_context_tokens = 4096")
TILED = mapping("[batching]", "max_running = 16", "max_batched_tokens = 256", "max_context_tokens = 4096", "[gemm]", "tile = [64, 64, 64]")
P95 = 'resimulations = 24\nmax_resimulations = 24\nblocks = 10\n[blocking]\nttft_s = { p95 = "3 %" }\n'


def traffic(n=240, gap_s=0.25, seed=5):
    """Poisson arrivals of short prompts."""
    draw = np.random.default_rng(seed)
    arrival_s = np.cumsum(draw.exponential(gap_s, n))
    return make_trace(arrival_s - arrival_s[0], draw.integers(1, 400, n), draw.integers(1, 30, n))


def replayer_on(trace, **hardware):
    """Replays of the small server."""
    return Replayer(trace=trace, model=LLAMA_8B, hardware=round_hardware(**hardware), seed=1)


def planned(replayer, text=P95, seed=7, baseline=BASELINE):
    """The planned cell of a policy's text."""
    return make_plan(parse_policy(text, "policy.toml"), [cell_of(replayer.run(baseline))], seed).cells[0]
