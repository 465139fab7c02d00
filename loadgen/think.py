"""How long a user thinks: distributions of a time between an answer's end and the user's next request, in seconds."""

from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol

import numpy as np


class Think(Protocol):
    """A distribution of seconds, never negative."""

    @property
    def mean(self) -> float: ...

    def draw(self, rng: np.random.Generator) -> float: ...


@dataclass(frozen=True)
class Always:
    """The same time, always."""

    value: float

    @property
    def mean(self) -> float:
        return self.value

    def draw(self, rng: np.random.Generator) -> float:  # noqa: ARG002 - nothing is random here
        return self.value


@dataclass(frozen=True)
class Between:
    """Anything from `low` to `high`, all equally likely."""

    low: float
    high: float

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Exponential:
    """Without memory; the textbook's user."""

    mean: float

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.exponential(self.mean))


@dataclass(frozen=True)
class Lognormal:
    """With this `mean` and `cv` (standard deviation over mean); the logarithm has variance s² = ln(1 + cv²)."""

    mean: float
    cv: float

    def draw(self, rng: np.random.Generator) -> float:
        s = sqrt(log(1 + self.cv**2))
        return float(rng.lognormal(log(self.mean) - s * s / 2, s))
