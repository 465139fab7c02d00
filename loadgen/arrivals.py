"""When requests are due: pure arrival processes. A seeded generator goes in, offsets come out.

An offset is in seconds from the start of the run, and offsets never decrease. A process knows no clock, no request
and no count: the caller takes as many offsets as it needs, and a longer run begins with the shorter one's offsets.
Nothing is rescaled to hit a total, so the time that n requests take is as random as the process is.

Each process knows its own theory: `rate` is the long-run mean in requests per second, `cv` the coefficient of
variation of the gaps between arrivals (standard deviation over mean; 0 for a clockwork, 1 for Poisson).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Protocol

import numpy as np

BLOCK = 4096  # gaps drawn at a time; the stream of a generator does not depend on it


class Arrivals(Protocol):
    """A process that says when requests are due."""

    @property
    def rate(self) -> float: ...

    @property
    def cv(self) -> float: ...

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        """Offsets in seconds, never decreasing, without end."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One request every 1/rate seconds, the first at 0."""

    rate: float
    cv: float = 0.0

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        return (i / self.rate for i in itertools.count())


@dataclass(frozen=True)
class Poisson:
    """Independent exponential gaps of mean 1/rate; the first arrival is one gap after 0.

    The count in any window of w seconds is Poisson with mean rate·w, whatever came before.
    """

    rate: float
    cv: float = 1.0

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        at = 0.0
        while True:
            for gap in rng.exponential(1 / self.rate, BLOCK):
                at += gap
                yield float(at)


@dataclass(frozen=True)
class Burst:
    """Trains of `size` requests, one train every `period` seconds, each train evenly over `spread` seconds.

    Train k starts at k·period with its first request and ends at k·period + spread with its last; spread 0 makes all
    of a train due at one instant. spread must be shorter than period.
    """

    size: int
    period: float
    spread: float = 0.0

    @property
    def rate(self) -> float:
        return self.size / self.period

    @property
    def cv(self) -> float:
        # size - 1 gaps of `within` and one of `between` repeat for ever.
        within = self.spread / max(self.size - 1, 1)
        between = self.period - self.spread
        mean = self.period / self.size
        if self.size == 1:
            return 0.0
        return sqrt(((self.size - 1) * (within - mean) ** 2 + (between - mean) ** 2) / self.size) / mean

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        step = self.spread / max(self.size - 1, 1)
        return (train * self.period + i * step for train in itertools.count() for i in range(self.size))


@dataclass(frozen=True)
class Oneshot:
    """Everything is due at 0, as in an offline batch."""

    rate: float = inf
    cv: float = nan

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        return itertools.repeat(0.0)
