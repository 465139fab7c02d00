"""Rates that vary with time, as cumulative rates Λ(t) = ∫₀ᵗ λ(u) du and their exact inverses."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import pi, sin
from typing import NamedTuple, Protocol, Self

import numpy as np

from loadgen.arrivals.counting import Array

NEWTON = 8  # steps to Kepler's equation; from where they start, 6 reach the last bit


class Curve(Protocol):
    """A rate that varies with time."""

    @property
    def rate(self) -> float:
        """Mean requests per second in the long run; where the curve ends, over its span."""
        ...

    def rates(self, times: Array) -> Array:
        """λ(t) in requests per second; at a step the rate after it."""
        ...

    def cumulative(self, times: Array) -> Array:
        """Λ(t): the number of requests expected in [0, t)."""
        ...

    def inverse(self, amounts: Array) -> Array:
        """The earliest t at which Λ(t) reaches an amount; inf where it never does."""
        ...


class _Pieces(NamedTuple):
    times: Array
    rates: Array
    slopes: Array  # of the piece that begins at each point; the last rate holds
    lengths: Array
    amounts: Array  # Λ at each point


@dataclass(frozen=True)
class PiecewiseLinear:
    """Straight lines through points (seconds, requests per second), the first at 0 s.

    Two points at one time make a step. After the last point its rate holds, and a last rate of 0 ends the process; with
    `repeat` the curve begins again there instead. The long-run `rate` is accordingly the last rate, or the mean over
    the points where the curve ends or repeats.
    """

    points: tuple[tuple[float, float], ...]
    repeat: bool = False

    @cached_property
    def _pieces(self) -> _Pieces:
        times, rates = np.array(self.points, float).T
        lengths = np.diff(times)
        slopes = np.divide(np.diff(rates), lengths, out=np.zeros_like(lengths), where=lengths > 0)
        amounts = np.cumsum(lengths * (rates[:-1] + rates[1:]) / 2)
        return _Pieces(times, rates, np.append(slopes, 0), np.append(lengths, np.inf), np.insert(amounts, 0, 0))

    @property
    def rate(self) -> float:
        end, last = self.points[-1]
        return last if last and not self.repeat else float(self._pieces.amounts[-1]) / end

    def rates(self, times: Array) -> Array:
        at = self._pieces
        i, x = self._locate(times % at.times[-1] if self.repeat else times)
        return np.asarray(at.rates[i] + at.slopes[i] * x, float)

    def cumulative(self, times: Array) -> Array:
        at = self._pieces
        whole: Array | float = 0.0
        if self.repeat:
            laps, times = np.divmod(times, at.times[-1])
            whole = laps * at.amounts[-1]
        i, x = self._locate(times)
        return np.asarray(whole + at.amounts[i] + x * (at.rates[i] + at.slopes[i] * x / 2), float)

    def inverse(self, amounts: Array) -> Array:
        at = self._pieces
        begin: Array | float = 0.0
        if self.repeat:
            laps = np.maximum(np.ceil(amounts / at.amounts[-1]) - 1, 0)
            begin = laps * at.times[-1]
            amounts = np.minimum(amounts - laps * at.amounts[-1], at.amounts[-1])
        i = np.maximum(np.searchsorted(at.amounts, amounts, "left") - 1, 0)
        y = amounts - at.amounts[i]
        # Of λx + slope·x²/2 = y the root written so that nothing cancels.
        root = np.sqrt(np.maximum(at.rates[i] ** 2 + 2 * at.slopes[i] * y, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(y > 0, 2 * y / (at.rates[i] + root), 0)
        return np.asarray(begin + at.times[i] + np.minimum(x, at.lengths[i]), float)

    def _locate(self, times: Array) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.intp]], Array]:
        i = np.maximum(np.searchsorted(self._pieces.times, times, "right") - 1, 0)
        return i, times - self._pieces.times[i]


def ramp(start: float, end: float, seconds: float) -> PiecewiseLinear:
    """From one rate to another in a straight line over time, and then on at the second."""
    return PiecewiseLinear(((0.0, start), (seconds, end)))


def step(levels: Iterable[tuple[float, float]], *, repeat: bool = False) -> PiecewiseLinear:
    """Levels of (requests per second, seconds), one after the other; the last one holds, or the first comes again."""
    points: list[tuple[float, float]] = []
    at = 0.0
    for rate, seconds in levels:
        points += [(at, rate), (at + seconds, rate)]
        at += seconds
    return PiecewiseLinear(tuple(points), repeat)


def spike(base: float, peak: float, at: float, width: float, rise: float = 0.0) -> PiecewiseLinear:
    """From `at` on the rate rises from base to peak over `rise` s, stays there for `width` s, and falls as it rose."""
    top, down = at + rise, at + rise + width
    return PiecewiseLinear(((0.0, base), (at, base), (top, peak), (down, peak), (down + rise, base)))


@dataclass(frozen=True)
class Diurnal:
    """A sine: λ(t) = mean·(1 - amplitude·cos(2π(t - trough)/period)), with 0 <= amplitude <= 1.

    The lowest rate, mean·(1 - amplitude), is at `trough` seconds, the highest half a period later.
    """

    mean: float
    amplitude: float
    period: float = 86_400.0
    trough: float = 0.0

    @classmethod
    def of_peak(cls, mean: float, peak: float, period: float = 86_400.0, trough: float = 0.0) -> Self:
        return cls(mean, peak / mean - 1, period, trough)

    @property
    def rate(self) -> float:
        return self.mean

    def rates(self, times: Array) -> Array:
        return np.asarray(self.mean * (1 - self.amplitude * np.cos(self._angle(times))), float)

    def cumulative(self, times: Array) -> Array:
        swing = self.amplitude * (np.sin(self._angle(times)) + sin(self._first))
        return np.asarray(self.mean * (times - self.period / (2 * pi) * swing), float)

    def inverse(self, amounts: Array) -> Array:
        """With the angle E since the trough this is Kepler's equation E - amplitude·sin E = M, solved lap by lap."""
        mean_angle = 2 * pi * amounts / (self.mean * self.period) - self._first + self.amplitude * sin(self._first)
        laps = np.round(mean_angle / (2 * pi))
        angle = kepler(mean_angle - 2 * pi * laps, self.amplitude)
        return np.asarray(np.maximum(self.period * (laps + (angle + self._first) / (2 * pi)), 0), float)

    @property
    def _first(self) -> float:
        """The angle from 0 s to the first trough after it: a trough a thousand days away would cost three digits."""
        return 2 * pi * (self.trough % self.period / self.period)

    def _angle(self, times: Array) -> Array:
        return np.asarray(2 * pi * (times % self.period / self.period) - self._first, float)


def kepler(mean_angle: Array, e: float) -> Array:
    """E with E - e·sin E = mean_angle, for angles in [-π, π] and 0 <= e <= 1.

    On [0, π] the left side is convex and rises, so Newton's steps from above the root come down to it and never beyond.
    Above it are π, M + e, and by E - sin E >= E³/π² also (π²M/e)^(1/3), which is the near one where e is about 1.
    """
    m = np.minimum(np.abs(mean_angle), pi)
    angle = np.minimum(m + e, pi)
    if e > 0.5:  # below, M + e is near enough, and the quotient could overflow
        angle = np.minimum(angle, np.cbrt(pi**2 * m / e))
    for _ in range(NEWTON):
        slope = 1 - e * np.cos(angle)
        error = angle - e * np.sin(angle) - m
        angle = np.maximum(angle - np.divide(error, slope, out=np.zeros_like(m), where=slope > 0), 0)
    return np.asarray(np.copysign(angle, mean_angle), float)
