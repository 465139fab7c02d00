"""The tables of arrivals whose rate varies in time, and of how bursty their gaps are."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from loadgen import arrivals
from loadgen.scenario.fields import Instant, Rate, RateOrNone, Seconds, Share, Table

Shape = Annotated[float, Field(ge=0.01, le=1e6)]
Burstiness = Annotated[
    Shape | None, Field(description="as vLLM has it: gaps are Gamma of this shape; 1 is Poisson, below is burstier")
]
Cv = Annotated[
    Annotated[float, Field(ge=1e-3, le=10)] | None,
    Field(description="in place of burstiness: standard deviation of the gaps over their mean"),
]


class Bursty(Table):
    """Gaps of Gamma shape `burstiness`, given as that or as the cv they come to."""

    burstiness: Burstiness = None
    cv: Cv = None

    @field_validator("cv")
    @classmethod
    def one_of_the_two(cls, cv: float | None, info: ValidationInfo) -> float | None:
        if cv is not None and info.data.get("burstiness") is not None:
            raise ValueError("not beside burstiness, of which it is 1/sqrt(burstiness)")
        return cv

    @property
    def shape(self) -> float:
        """CV = 1/sqrt(burstiness); Poisson where neither is given."""
        return self.cv**-2 if self.cv is not None else 1.0 if self.burstiness is None else self.burstiness

    @property
    def gaps(self) -> arrivals.Gaps:
        return arrivals.ExponentialGaps() if self.shape == 1 else arrivals.GammaGaps(self.shape)


class RampArrivals(Bursty):
    """From one rate to another, linear in time; then it stays."""

    kind: Literal["ramp"]
    start: RateOrNone
    end: Rate
    over: Seconds = Field(description="seconds the ramp takes")

    def process(self) -> arrivals.Arrivals:
        return arrivals.Varying(arrivals.ramp(self.start, self.end, self.over), self.gaps)


class Level(Table):
    rate: RateOrNone
    seconds: Seconds


class StepArrivals(Bursty):
    """One rate after another; the last one holds, or all of them begin again."""

    kind: Literal["step"]
    levels: Annotated[list[Level], Field(min_length=1, max_length=10_000)]
    repeat: bool = False

    @field_validator("levels")
    @classmethod
    def something_comes(cls, levels: list[Level]) -> list[Level]:
        if not any(level.rate for level in levels):
            raise ValueError("at least one level needs a rate above 0")
        return levels

    def process(self) -> arrivals.Arrivals:
        levels = [(level.rate, level.seconds) for level in self.levels]
        return arrivals.Varying(arrivals.step(levels, repeat=self.repeat), self.gaps)


class SpikeArrivals(Bursty):
    """A steady rate and one spike: up to `peak` within `rise` seconds, there for `width`, and down again."""

    kind: Literal["spike"]
    rate: Rate
    peak: Rate
    at: Instant = Field(description="seconds from the start at which the rate begins to rise")
    width: Seconds = Field(description="seconds at the peak")
    rise: Instant = Field(0.0, description="seconds from the rate to the peak, and back")

    def process(self) -> arrivals.Arrivals:
        curve = arrivals.spike(self.rate, self.peak, self.at, self.width, self.rise)
        return arrivals.Varying(curve, self.gaps)


class DiurnalArrivals(Bursty):
    """A sine around `rate` with its highest value at `peak`; one `period` is a day, as long as you like."""

    kind: Literal["diurnal"]
    rate: Rate = Field(description="mean requests per second")
    peak: Rate = Field(description="highest rate; the lowest lies as far below the mean")
    period: Seconds
    phase: Share = Field(0.0, description="share of the period at which the run begins; 0 is the night")

    @field_validator("peak")
    @classmethod
    def peak_is_reachable(cls, peak: float, info: ValidationInfo) -> float:
        rate = info.data.get("rate", peak)
        if not rate <= peak <= 2 * rate:
            raise ValueError(
                f"must be from the mean, {rate:g}, to twice the mean: the rate is never negative; got {peak:g}"
            )
        return peak

    def process(self) -> arrivals.Arrivals:
        curve = arrivals.Diurnal.of_peak(self.rate, self.peak, self.period, -self.phase * self.period)
        return arrivals.Varying(curve, self.gaps)


class PiecewiseArrivals(Bursty):
    """Rates at instants, straight lines between them; two points at one instant make a step."""

    kind: Literal["piecewise"]
    points: Annotated[
        list[Annotated[list[RateOrNone], Field(min_length=2, max_length=2)]],
        Field(min_length=2, max_length=100_000, description="[seconds, rate] pairs; the first at 0, in order"),
    ]
    repeat: bool = Field(False, description="begin again after the last point; otherwise its rate holds")

    @field_validator("points")
    @classmethod
    def points_are_in_order(cls, points: list[list[float]]) -> list[list[float]]:
        instants = [at for at, _ in points]
        if instants[0] != 0:
            raise ValueError(f"the first point must be at 0 s, got {instants[0]:g}")
        if instants != sorted(instants):
            raise ValueError(f"the instants must not go back, got {instants}")
        if instants[-1] == 0:
            raise ValueError("the last point must be after 0 s")
        if not any(rate for _, rate in points):
            raise ValueError("at least one point needs a rate above 0")
        return points

    def process(self) -> arrivals.Arrivals:
        curve = arrivals.PiecewiseLinear(tuple((at, rate) for at, rate in self.points), repeat=self.repeat)
        return arrivals.Varying(curve, self.gaps)
