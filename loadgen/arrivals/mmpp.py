"""The Markov-modulated Poisson process of two states: calm and storm, or on and off."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import expm1, sqrt

import numpy as np


@dataclass(frozen=True)
class Mmpp:
    """Poisson at rates[state], where each state is kept for an exponential time of mean stays[state] seconds.

    A run starts in state i with the share of time that the process spends there, so that the rate is the same from the
    first second on. One of the rates may be 0.

    With the rates a, b of leaving the two states (1/stays), from Heffes and Lucantoni, 1986, IEEE J. Sel. Areas Comm.
    4(6), and Gusella, 1991, the same journal 9(2):

        rate = (λ1·b + λ2·a)/(a + b)
        CV² of the gaps = 1 + 2(λ1 - λ2)²ab / ((a + b)²(λ1λ2 + λ1·b + λ2·a))
        dispersion(w) = 1 + A·(1 - (1 - e^-x)/x),  x = (a + b)w,  A = 2(λ1 - λ2)²ab / ((a + b)²(λ1·b + λ2·a))
    """

    rates: tuple[float, float]
    stays: tuple[float, float]

    @property
    def rate(self) -> float:
        first, second = self.stays
        return (self.rates[0] * first + self.rates[1] * second) / (first + second)

    @property
    def cv(self) -> float:
        a, b = self._leaving
        first, second = self.rates
        flow = first * second + first * b + second * a
        return sqrt(1 + 2 * (first - second) ** 2 * a * b / ((a + b) ** 2 * flow))

    def expected(self, until: float) -> float:
        return self.rate * until

    def variance(self, until: float) -> float:
        return self.dispersion(until, until) * self.expected(until) if until > 0 else 0.0

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - stationary
        a, b = self._leaving
        first, second = self.rates
        limit = 2 * (first - second) ** 2 * a * b / ((a + b) ** 2 * (first * b + second * a))
        x = (a + b) * window
        # The bracket cancels where x is small; there x/2 - x²/6 is exact to rounding.
        return 1 + limit * (1 + expm1(-x) / x if x > 1e-5 else x / 2 - x * x / 6)

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        # Exponential gaps forget: at each change of state the next one may be drawn afresh.
        start = 0.0
        state = int(rng.random() * sum(self.stays) >= self.stays[0])
        while True:
            end = start + rng.exponential(self.stays[state])
            if self.rates[state] > 0:
                gap = 1 / self.rates[state]
                at = start + rng.exponential(gap)
                while at < end:
                    yield at
                    at += rng.exponential(gap)
            start, state = end, 1 - state

    @property
    def _leaving(self) -> tuple[float, float]:
        return 1 / self.stays[0], 1 / self.stays[1]
