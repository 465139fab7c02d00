"""Arrivals whose rate varies with time."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan

import numpy as np

from loadgen.arrivals.counting import index, tiles, variances
from loadgen.arrivals.curve import Curve
from loadgen.arrivals.gaps import ExponentialGaps, Gaps, sums

EXPONENTIAL = ExponentialGaps()


@dataclass(frozen=True)
class Varying:
    """A renewal process on a clock that runs at the curve's rate: arrival n is at Λ⁻¹(S_n), S_n sums of unit gaps.

    With exponential gaps this is the inhomogeneous Poisson process, exactly (Çinlar, 1975; Lewis and Shedler thin it
    instead, 1979, Naval Research Logistics 26(3)). Other gaps make it burstier or more even at every rate alike.

    `rate` is the curve's long-run rate: a ramp's last one. What a run of t seconds sees is expected(t)/t.
    """

    curve: Curve
    gaps: Gaps = EXPONENTIAL

    @property
    def rate(self) -> float:
        return self.curve.rate

    @property
    def cv(self) -> float:
        return nan

    def expected(self, until: float) -> float:
        return float(self.curve.cumulative(np.array([until]))[0])

    def variance(self, until: float) -> float:
        return self.gaps.variance(self.expected(until))

    def dispersion(self, window: float, span: float) -> float:
        """Exact for exponential gaps; for others the counts of different windows are taken as uncorrelated."""
        means = np.maximum(np.diff(self.curve.cumulative(tiles(window, span))), 0)
        return index(means, variances(self.gaps.variance, means)) if len(means) else nan

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        last = 0.0
        for block in sums(self.gaps, rng):
            # Two sums a rounding error apart may come back in the other order.
            times = np.maximum.accumulate(np.maximum(self.curve.inverse(block), last)).tolist()
            last = times[-1]
            for at in times:
                if at == inf:
                    return
                yield at
