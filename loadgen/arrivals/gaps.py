"""Laws of the gaps between arrivals, all of mean 1: a process stretches them to its rate."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, expm1, inf, lgamma, log, sqrt
from typing import Protocol

import numpy as np

from loadgen.arrivals.counting import Array, Complex, even_variance, gamma_variance, inverted_variance
from loadgen.arrivals.process import BLOCK


class Gaps(Protocol):
    """Independent gaps of mean 1."""

    @property
    def cv(self) -> float: ...

    def draw(self, rng: np.random.Generator, n: int) -> Array: ...

    def residual(self, rng: np.random.Generator) -> float:
        """The time to the first arrival after a moment that knows nothing of the arrivals.

        That moment falls into a gap with a probability in proportion to its length, and anywhere in it.
        """
        ...

    def variance(self, mean: float) -> float:
        """Variance of the stationary count in a window in which `mean` arrivals are expected."""
        ...


def sums(gaps: Gaps, rng: np.random.Generator) -> Iterator[Array]:
    """The partial sums of gaps, in blocks, without end."""
    total = 0.0
    while True:
        block = gaps.draw(rng, BLOCK)
        block[0] += total
        block = np.cumsum(block)
        total = float(block[-1])
        yield block


@dataclass(frozen=True)
class ExponentialGaps:
    """The gaps of a Poisson process."""

    cv: float = 1.0

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.standard_exponential(n)

    def residual(self, rng: np.random.Generator) -> float:
        return float(rng.standard_exponential())

    def variance(self, mean: float) -> float:
        return mean


@dataclass(frozen=True)
class EvenGaps:
    """Gaps that are all alike."""

    cv: float = 0.0

    def draw(self, rng: np.random.Generator, n: int) -> Array:  # noqa: ARG002 - nothing is random here
        return np.ones(n)

    def residual(self, rng: np.random.Generator) -> float:
        return float(rng.random())

    def variance(self, mean: float) -> float:
        return even_variance(mean)


@dataclass(frozen=True)
class GammaGaps:
    """Gamma gaps of shape `burstiness` and scale 1/burstiness, so that CV = 1/sqrt(burstiness)."""

    burstiness: float

    @property
    def cv(self) -> float:
        return 1 / sqrt(self.burstiness)

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.standard_gamma(self.burstiness, n) / self.burstiness

    def residual(self, rng: np.random.Generator) -> float:
        # The gap around a random moment has density t·f(t): gamma again, its shape one larger.
        return float(rng.random() * rng.standard_gamma(self.burstiness + 1) / self.burstiness)

    def variance(self, mean: float) -> float:
        return gamma_variance(self.burstiness, mean)


@dataclass(frozen=True)
class WeibullGaps:
    """Weibull gaps of this shape: P(gap > t) = exp(-(Γ(1 + 1/shape)·t)^shape)."""

    shape: float

    @property
    def cv(self) -> float:
        # CV² = Γ(1 + 2/k)/Γ(1 + 1/k)² - 1
        square = lgamma(1 + 2 / self.shape) - 2 * lgamma(1 + 1 / self.shape)
        return sqrt(max(expm1(square), 0.0)) if square < 700 else inf

    @property
    def _log_scale(self) -> float:
        return -lgamma(1 + 1 / self.shape)

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.weibull(self.shape, n) * exp(self._log_scale)

    def residual(self, rng: np.random.Generator) -> float:
        # The gap around a random moment has density t·f(t), which makes (gap/scale)^shape gamma of shape 1 + 1/shape.
        power = rng.standard_gamma(1 + 1 / self.shape)
        return float(rng.random() * np.exp(np.log(power) / self.shape + self._log_scale))

    def variance(self, mean: float) -> float:
        if self.shape > 10:  # nearly a clockwork: gamma gaps of the same CV are within 2 % of it
            return gamma_variance(self.cv**-2, mean)
        return inverted_variance(self._complement, mean)

    def _complement(self, s: Complex) -> Complex:
        """1 - f*(s) = E(1 - exp(-s·gap)), by the trapezoidal rule over u = ln y, where y = (gap/scale)^shape is Exp(1).

        The integrand is analytic and dies off at both ends, so that the rule converges exponentially. The upper end
        leaves room for the gaps' second moment, to which y around 2/shape contributes most.
        """
        tail = 2 / self.shape
        width = 0.02 * min(self.shape, 1.0)
        u = np.arange(-40.0, log(40 + tail + 12 * sqrt(tail)) + width, width)
        y = np.exp(u)
        weights = width * y * np.exp(-y)
        gaps = np.exp(u / self.shape + self._log_scale)
        return np.array([np.sum(-np.expm1(-each * gaps) * weights) for each in s])
