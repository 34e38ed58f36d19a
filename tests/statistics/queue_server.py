"""A small first-come-first-served server with recorded service times, its replay, and pairs of its runs."""

from functools import partial

import numpy as np

from gates.statistics.noise_fit import StepTimes


def sojourns(arrivals, services):
    """Return the time from arrival to the end of service (Lindley's recursion, written as a running minimum)."""
    gaps = np.diff(arrivals)
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps)])
    return walk - np.minimum.accumulate(walk) + services


class Server:
    """Poisson arrivals and lognormal work (sigma 1, mean 1) at a utilisation of 0.7."""

    def __init__(self, n, seed):
        self.generator = np.random.default_rng(seed)
        self.arrivals = np.cumsum(self.generator.exponential(1 / 0.7, n))
        self.works = np.exp(self.generator.standard_normal(n) - 0.5)
        edges = np.quantile(self.works, [0.5, 0.8, 0.95])
        self.bins = np.searchsorted(edges, self.works, side="right")
        self.cells = np.searchsorted(np.quantile(self.works, [0.25, 0.5, 0.65, 0.8, 0.9, 0.95]), self.works, side="right")

    def noise(self, sd=0.05):
        return sd * self.generator.standard_normal(len(self.works))

    def latencies(self, log_factors):
        return sojourns(self.arrivals, self.works * np.exp(log_factors))

    def steps(self, log_factors):
        return StepTimes(log_factors=log_factors, features=np.eye(4)[self.bins], requests=np.arange(len(self.works)), cells=self.cells)

    def replay(self, effects, noise, error=0.0):
        return self.latencies(effects[self.bins] + noise.log_factors + error)

    def wrong_replay(self, bias, sd):
        return partial(self.replay, error=bias + sd * self.generator.standard_normal(len(self.works)))
