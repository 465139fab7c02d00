"""The arrivals' tables: when requests are due. A `kind` picks the process; each table makes its own."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from loadgen import arrivals, traces
from loadgen.scenario.fields import Count, File, Instant, Length, Rate, RateOrNone, Seconds, Table, Time
from loadgen.scenario.varying import (
    Bursty,
    DiurnalArrivals,
    PiecewiseArrivals,
    RampArrivals,
    SpikeArrivals,
    StepArrivals,
)


class FixedArrivals(Table):
    kind: Literal["fixed"]
    rate: Rate

    def process(self) -> arrivals.Arrivals:
        return arrivals.Fixed(self.rate)


class PoissonArrivals(Table):
    kind: Literal["poisson"]
    rate: Rate

    def process(self) -> arrivals.Arrivals:
        return arrivals.Poisson(self.rate)


class GammaArrivals(Bursty):
    kind: Literal["gamma"]
    rate: Rate

    @model_validator(mode="after")
    def shape_is_given(self) -> Self:
        if self.burstiness is None and self.cv is None:
            raise ValueError("needs burstiness, or cv")
        return self

    def process(self) -> arrivals.Arrivals:
        return arrivals.Gamma(self.rate, self.shape)


class WeibullArrivals(Table):
    kind: Literal["weibull"]
    rate: Rate
    shape: Annotated[float, Field(ge=0.1, le=100, description="1 is Poisson, below is burstier")]

    def process(self) -> arrivals.Arrivals:
        return arrivals.Weibull(self.rate, self.shape)


class BurstArrivals(Table):
    kind: Literal["burst"]
    size: Count = Field(description="requests a train")
    period: Seconds = Field(description="from the start of one train to the start of the next")
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(0.0, description="seconds a train lasts")

    @field_validator("spread")
    @classmethod
    def train_fits_its_period(cls, spread: float, info: ValidationInfo) -> float:
        if spread >= (period := info.data.get("period", float("inf"))):
            raise ValueError(
                f"a train must end before the next begins: shorter than period = {period:g} s, got {spread:g}"
            )
        return spread

    def process(self) -> arrivals.Arrivals:
        return arrivals.Burst(self.size, self.period, self.spread)


class MmppArrivals(Table):
    """Two states, each with a Poisson rate of its own; the process stays in each for an exponential time."""

    kind: Literal["mmpp"]
    rates: Annotated[list[RateOrNone], Field(min_length=2, max_length=2, description="requests per second, by state")]
    stays: Annotated[list[Seconds], Field(min_length=2, max_length=2, description="mean seconds in each state")]

    @field_validator("rates")
    @classmethod
    def something_comes(cls, rates: list[float]) -> list[float]:
        if not any(rates):
            raise ValueError("at least one state needs a rate above 0")
        return rates

    def process(self) -> arrivals.Arrivals:
        return arrivals.Mmpp((self.rates[0], self.rates[1]), (self.stays[0], self.stays[1]))


class OneshotArrivals(Table):
    kind: Literal["oneshot"]

    def process(self) -> arrivals.Arrivals:
        return arrivals.Oneshot()


# ── out of files ─────────────────────────────────────────────────────────────────────────────────────────────────────

TraceFormat = Literal["azure", "mooncake", "burstgpt", "bailian", "record"]


class Window(Table):
    """The part of a file that is used, in seconds of the file's own time from its first stamp."""

    start: Instant = 0.0
    stop: Instant | None = Field(None, description="default: to the end")

    @field_validator("stop")
    @classmethod
    def stop_is_after_start(cls, stop: float | None, info: ValidationInfo) -> float | None:
        if stop is not None and stop <= (start := info.data.get("start", 0.0)):
            raise ValueError(f"must be after start = {start:g}, got {stop:g}")
        return stop


@cache
def trace_of(
    file: str, format_: str | None, start: float, stop: float | None, limit: int | None = None
) -> traces.Trace:
    """A trace, read once where both the arrivals and the workload want it; raises traces.DataError."""
    return traces.read_trace(Path(file), format=format_, start=start, stop=stop, limit=limit)


class ReplayArrivals(Window):
    """The stamps of a trace or of an earlier run; without a file, those of the workload's own file."""

    kind: Literal["replay"]
    file: File | None = Field(None, description="a trace, or a record of an earlier run; default: the workload's file")
    format: TraceFormat | None = Field(None, description="of the file; default: seen from its first line")
    speed: Annotated[float, Field(ge=1e-3, le=1e6)] = Field(1.0, description="2 plays a trace in half its time")
    stamps: Literal["raw", "jitter"] = Field(
        description="raw: as they stand, so that stamps rounded to one instant make batches that never were; "
        "jitter: each moved at random within its bin"
    )
    bin: Seconds | None = Field(None, description="seconds to which the stamps were rounded; default: the file's own")

    @model_validator(mode="after")
    def window_is_of_a_file(self) -> Self:
        if self.file is None and (given := {"start", "stop", "format"} & self.model_fields_set):
            raise ValueError(f"{', '.join(sorted(given))}: only beside a file; the workload's own file has its own")
        return self

    def trace(self) -> traces.Trace:
        """That of its own file; raises traces.DataError."""
        assert self.file is not None
        return trace_of(self.file, self.format, self.start, self.stop)

    def process(self, stamps: NDArray[np.float64] | None = None, bin_: float | None = None) -> arrivals.Arrivals:
        """`stamps` are the workload's, where there is no file of our own; raises traces.DataError."""
        if self.file is not None:
            trace = self.trace()
            stamps, bin_ = trace.at, trace.bin
        assert stamps is not None
        spread = None if self.stamps == "raw" else self.bin or bin_
        if self.stamps == "jitter" and spread is None:
            raise traces.DataError(["arrivals.bin: these stamps are not seen to be rounded: say to what, in seconds"])
        return arrivals.Replay(stamps, self.speed, spread)


class ClientsArrivals(Window):
    """Many clients at once, each with its own rate and burstiness in each window of ServeGen's tables."""

    kind: Literal["clients"]
    file: File = Field(description="client,timestamp_s,rate_rps,cv,pattern,shape,scale; or ServeGen's own folder")
    rate: Rate | None = Field(None, description="scale all clients to this mean in all; default: as in the file")
    top: Count | None = Field(None, description="only so many clients, the busiest")

    def process(self) -> arrivals.Arrivals:
        clients = trace_clients(self.file, self.start, self.stop, self.top)
        return clients if self.rate is None else clients.scaled(self.rate)


@cache
def trace_clients(file: str, start: float, stop: float | None, top: int | None) -> arrivals.Clients:
    """The clients of a file; raises traces.DataError."""
    read = traces.read_clients(Path(file), start=start, stop=stop, top=top)
    return arrivals.Clients(tuple(arrivals.Client(tuple(map(_window, client.windows))) for client in read))


def _window(read: traces.Window) -> arrivals.Window:
    gaps: arrivals.Gaps
    if read.pattern == "exponential":
        gaps = arrivals.ExponentialGaps()
    else:
        gaps = arrivals.GammaGaps(read.shape) if read.pattern == "gamma" else arrivals.WeibullGaps(read.shape)
    return arrivals.Window(read.start, read.end, read.rate, gaps)


# ── what follows on answers ──────────────────────────────────────────────────────────────────────────────────────────


class ClosedArrivals(Table):
    """A closed loop: each user sends, waits for the answer, thinks, and sends again. The server sets the rate."""

    kind: Literal["closed"]
    users: Count
    think_time: Time
    stagger: Instant | None = Field(
        None, description="seconds over which the users begin, evenly; default: the mean think time, at least 1 s"
    )

    @property
    def spread(self) -> float:
        return max(self.think_time.distribution().mean, 1.0) if self.stagger is None else self.stagger

    def process(self) -> arrivals.Arrivals:
        """When the users begin."""
        return arrivals.Staggered(self.users, self.spread)


_Processes = (
    FixedArrivals
    | PoissonArrivals
    | GammaArrivals
    | WeibullArrivals
    | BurstArrivals
    | MmppArrivals
    | RampArrivals
    | StepArrivals
    | SpikeArrivals
    | DiurnalArrivals
    | PiecewiseArrivals
    | OneshotArrivals
)
Starts = Annotated[_Processes | ClientsArrivals, Field(discriminator="kind")]


class SessionsArrivals(Table):
    """Conversations: they begin as `starts` says; their turns follow on the answers, the history in each prompt."""

    kind: Literal["sessions"]
    starts: Starts = Field(description="when conversations begin: a table with a kind of its own")
    turns: Length = Field(description="turns of a conversation")
    think_time: Time = Field(description="from an answer's end to the next turn")

    def process(self) -> arrivals.Arrivals:
        """When the conversations begin."""
        return self.starts.process()


Arrivals = Annotated[
    _Processes | ReplayArrivals | ClientsArrivals | ClosedArrivals | SessionsArrivals, Field(discriminator="kind")
]
