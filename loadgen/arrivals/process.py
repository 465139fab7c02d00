"""What every arrival process says about itself, and the simplest of them: clockworks, Poisson, everything at once."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Protocol

import numpy as np

from loadgen.arrivals.counting import even_variance

BLOCK = 4096  # gaps drawn at a time; the stream of a generator does not depend on it


class Arrivals(Protocol):
    """A process that says when requests are due, and its theory."""

    @property
    def rate(self) -> float:
        """Mean requests per second: in the long run, or over its span where the process ends."""
        ...

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps between arrivals, standard deviation over mean.

        0 for a clockwork, 1 for Poisson; nan where there is no closed form.
        """
        ...

    def expected(self, until: float) -> float:
        """The cumulative rate Λ(until), the mean number of arrivals in [0, until).

        Exact but for how a process starts: a clockwork is up to one train ahead of it, and a renewal process, whose
        first gap is as long as any other, tends to be (cv² - 1)/2 arrivals ahead of it (Cox, Renewal Theory, 1962).
        """
        ...

    def variance(self, until: float) -> float:
        """Variance of the number of arrivals in [0, until): 0 where nothing is random.

        Exact but for how a renewal process starts, as for `expected`.
        """
        ...

    def dispersion(self, window: float, span: float) -> float:
        """The index of dispersion: variance over mean of the counts in windows of `window` seconds that tile [0, span).

        1 at every window for Poisson. A stationary process ignores span and has its windows at a random phase. Where
        rates differ from window to window it is the mean of the sample's variance (n - 1 below) over the mean count.
        nan where there is no closed form, and where the span is shorter than two windows.
        """
        ...

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        """Offsets in seconds, never decreasing; without end unless the process has one."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One request every 1/rate seconds, the first at 0."""

    rate: float
    cv: float = 0.0

    def expected(self, until: float) -> float:
        return self.rate * until

    def variance(self, until: float) -> float:  # noqa: ARG002 - nothing is random here
        return 0.0

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - stationary
        return even_variance(self.rate * window) / (self.rate * window)

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        return (i / self.rate for i in itertools.count())


@dataclass(frozen=True)
class Poisson:
    """Independent exponential gaps of mean 1/rate; the first arrival is one gap after 0.

    The count in any window of w seconds is Poisson with mean rate·w, whatever came before.
    """

    rate: float
    cv: float = 1.0

    def expected(self, until: float) -> float:
        return self.rate * until

    def variance(self, until: float) -> float:
        return self.rate * until

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - stationary
        return 1.0

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

    def expected(self, until: float) -> float:
        return self.rate * until

    def variance(self, until: float) -> float:  # noqa: ARG002 - nothing is random here
        return 0.0

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - stationary
        # Whole periods count the same at every phase; only the rest of the window, r seconds on a circle of one
        # period, varies. Two requests that lie d apart are both in it at max(0, r - d) + max(0, r - (period - d))
        # seconds' worth of phases; k steps apart lie size - k pairs, each counted twice.
        rest = window % self.period
        step = self.spread / max(self.size - 1, 1)
        k = np.arange(1, self.size)
        both = np.maximum(rest - k * step, 0) + np.maximum(rest - (self.period - k * step), 0)
        square = (self.size * rest + 2 * float(np.sum((self.size - k) * both))) / self.period
        return max(square - (self.rate * rest) ** 2, 0.0) / (self.rate * window)

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        step = self.spread / max(self.size - 1, 1)
        return (train * self.period + i * step for train in itertools.count() for i in range(self.size))


@dataclass(frozen=True)
class Oneshot:
    """Everything is due at 0, as in an offline batch."""

    rate: float = inf
    cv: float = nan

    def expected(self, until: float) -> float:
        return inf if until > 0 else 0.0

    def variance(self, until: float) -> float:  # noqa: ARG002 - nothing is random here
        return 0.0

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - no second window has anything
        return nan

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        return itertools.repeat(0.0)


@dataclass(frozen=True)
class Staggered:
    """The start of a closed loop: user i of `users` begins at i/users·over seconds, and that is all."""

    users: int
    over: float = 0.0

    @property
    def rate(self) -> float:
        return self.users / self.over if self.over else inf

    @property
    def cv(self) -> float:
        return 0.0 if self.over else nan

    def expected(self, until: float) -> float:
        if until >= self.over:
            return float(self.users) if until > 0 else 0.0
        return self.users * until / self.over

    def variance(self, until: float) -> float:  # noqa: ARG002 - nothing is random here
        return 0.0

    def dispersion(self, window: float, span: float) -> float:  # noqa: ARG002 - a start, not a traffic
        return nan

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002 - nothing is random here
        return (i / self.users * self.over for i in range(self.users))
