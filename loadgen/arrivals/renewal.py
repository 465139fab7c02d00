"""Renewal processes: independent gaps of one distribution, the first arrival one gap after 0."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.gaps import GammaGaps, Gaps, WeibullGaps, sums


class Renewal(ABC):
    """Unit gaps stretched to a mean of 1/rate.

    Its dispersion is that of a process which has run for long: 1 in a window far shorter than a gap, cv² in a window
    far longer than all that is correlated. A CV alone says nothing about the windows between.
    """

    rate: float

    @property
    @abstractmethod
    def gaps(self) -> Gaps: ...

    @property
    def cv(self) -> float:
        return self.gaps.cv

    def expected(self, until: float) -> float:
        return self.rate * until

    def variance(self, until: float) -> float:
        return self.gaps.variance(self.rate * until)

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - stationary
        return self.gaps.variance(self.rate * window) / (self.rate * window)

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        for block in sums(self.gaps, rng):
            yield from (block / self.rate).tolist()


@dataclass(frozen=True)
class Gamma(Renewal):
    """Gamma gaps of shape `burstiness` and scale 1/(rate·burstiness), as in vLLM's `--burstiness`.

    CV = 1/sqrt(burstiness): 1 is Poisson, less is burstier, more is more even.
    """

    rate: float
    burstiness: float

    @property
    def gaps(self) -> Gaps:
        return GammaGaps(self.burstiness)


@dataclass(frozen=True)
class Weibull(Renewal):
    """Weibull gaps of mean 1/rate; CV² = Γ(1 + 2/shape)/Γ(1 + 1/shape)² - 1, so that 1 is Poisson and 0.5 has CV² 5."""

    rate: float
    shape: float

    @property
    def gaps(self) -> Gaps:
        return WeibullGaps(self.shape)
