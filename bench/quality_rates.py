"""Error rates of the quality gates on simulated evaluations: python bench/quality_rates.py [--trials 2000]

Binary items: 1,000 (and 5,000) of which 70 % are right before; a candidate changes 3 % of the answers by chance (churn) and is worse by
nothing, by the margin, or by 2 points. Documents: 200 of 100 tokens whose differences share an effect of the document (sd 0.02 nats) beside
noise of the tokens (sd 0.1). Preferences: 400 decided comparisons. Each row: share of trials that release (the bad-side bound is inside
the margin), and that roll back (the change is beyond nothing and not shown to be inside the margin), with 95 % Wilson intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from gates.statistics.clustered import clustered_difference
from gates.statistics.compare import judged
from gates.statistics.estimate import Estimate
from gates.statistics.paired_binary import paired_shares, sign_test
from gates.statistics.proportion import wilson

ALPHA = 0.05
CHURN = 0.03
Draw = Callable[[np.random.Generator, float], Estimate]


def binary(n: int) -> Draw:
    """Return what draws n paired items that differ by CHURN and by a true difference of shares."""

    def draw(rng: np.random.Generator, worse: float) -> Estimate:
        lost, won = rng.multinomial(n, [(CHURN + worse) / 2, (CHURN - worse) / 2, 1 - CHURN])[:2]
        return paired_shares(int(lost), int(won), n, alpha=ALPHA)

    return draw


def documents(rng: np.random.Generator, worse: float) -> Estimate:
    """Return the estimate over 200 documents of 100 tokens whose mean is `worse` nats higher."""
    effects = rng.normal(worse, 0.02, 200)
    differences = (effects[:, None] + rng.normal(0, 0.1, (200, 100))).ravel()
    clusters = np.repeat(np.arange(200), 100)
    return clustered_difference(differences, np.ones(20_000), clusters, replicates=400, alpha=ALPHA, generator=rng)


def preferences(rng: np.random.Generator, worse: float) -> Estimate:
    """Return the sign test of 400 decided comparisons."""
    won = int(rng.binomial(400, 0.5 - worse))
    return sign_test(won, 400 - won, alpha=ALPHA)


ROWS: tuple[tuple[str, Draw, float, bool, tuple[float, ...]], ...] = (
    ("binary, 1,000 items, margin 1 point", binary(1000), 0.01, False, (0.0, 0.01, 0.02)),
    ("binary, 5,000 items, margin 1 point", binary(5000), 0.01, False, (0.0, 0.01, 0.02)),
    ("documents, 200 x 100 tokens, margin 0.01 nats", documents, 0.01, True, (0.0, 0.01, 0.02)),
    ("preferences, 400 decided, margin 10 points", preferences, 0.10, False, (0.0, 0.10, 0.15)),
)


def main() -> None:
    """Print a Markdown table of the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| evaluation | truly worse by | releases | rolls back |\n| --- | --- | --- | --- |")
    for place, (name, draw, margin, lower_is_better, worsenings) in enumerate(ROWS):
        for worse in worsenings:
            rng = np.random.default_rng([given.seed, place, round(1e4 * worse)])
            found = [judged(draw(rng, worse), lower_is_better=lower_is_better, margin=margin) for _ in range(given.trials)]
            released = sum(one.inside_margin for one in found)
            rolled = sum(one.beyond_no_change and not one.inside_margin and one.p_no_worse <= ALPHA for one in found)
            print(f"| {name} | {worse:g} | {_rate(released, given.trials)} | {_rate(rolled, given.trials)} |", flush=True)


def _rate(count: int, trials: int) -> str:
    low, high = wilson(count, trials)
    return f"{100 * count / trials:.1f} % ({100 * low:.1f}-{100 * high:.1f})"


if __name__ == "__main__":
    main()
