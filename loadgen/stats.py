"""What a handful of repeats says of a mean: Student's t interval, which is wide where they are few.

Assumed is that the repeats are independent and the values (paired differences) near normal: then (mean - true mean) /
(s / √n) has Student's t distribution with n - 1 degrees of freedom. Three repeats cannot show whether they are normal.
Pairing takes out what both sides of a pair share, such as a slow hour of the machine; alternating the order within
pairs keeps a drift from looking like a difference.

Sources: Student, "The probable error of a mean", Biometrika 6, 1908; R. Jain, "The Art of Computer Systems Performance
Analysis", 1991, ch. 13 (paired observations).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of n values and the interval that holds the true one with this confidence, in the values' unit."""

    mean: float
    low: float
    high: float
    n: int
    confidence: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def holds_zero(self) -> bool:
        return self.holds(0.0)

    def as_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, "confidence": self.confidence}


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The t interval of the mean; None for fewer than two values, which have no spread to judge by.

    Raises ValueError where a value is not a finite number, or the confidence is not between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"an interval needs finite values, got {list(values)}")
    n = len(values)
    if n < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stdtrit(n - 1, (1.0 + confidence) / 2.0)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, confidence)
