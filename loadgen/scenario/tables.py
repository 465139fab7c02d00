"""A scenario as a checked model: the tables that are no target, arrivals or workload, and what holds between them.

Either one `[workload]` and one `[arrivals]`, or several `[[traffic]]` tables that have their own: `Scenario.classes` is
the same list of classes for both.
"""

from collections import Counter
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from loadgen import exchange, traces
from loadgen.arrivals import Arrivals as Process
from loadgen.exchange import METRICS, QUANTILES, ItlRule
from loadgen.scenario.arrivals import (
    Arrivals,
    ClientsArrivals,
    ClosedArrivals,
    OneshotArrivals,
    ReplayArrivals,
    SessionsArrivals,
)
from loadgen.scenario.fields import Count, Instant, Seconds, Share, Table
from loadgen.scenario.target import SimulatorTarget, Target
from loadgen.scenario.workload import TraceWorkload, Workload

STATISTICS = ("mean", *QUANTILES, "max")

Slo = Annotated[
    dict[Annotated[str, Field(pattern=rf"^({'|'.join(METRICS)})_({'|'.join(STATISTICS)})$")], Seconds],
    Field(description="such as ttft_p99 = 2.0: the statistic may not be above this many seconds"),
]


class Limits(Table):
    max_concurrency: Count | None = Field(None, description="requests in flight at most; none by default")
    overflow: Literal["queue", "drop"] = Field("queue", description="at the cap: wait (the wait counts), or drop")
    timeout_connect: Seconds = 10.0
    timeout_first_token: Seconds = 120.0
    timeout_between_tokens: Seconds = 60.0
    timeout_total: Seconds = 900.0


class Sampling(Table):
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    ignore_eos: bool = Field(True, description="answers have exactly the length asked for")

    def chosen(self) -> exchange.Sampling:
        return exchange.Sampling(self.temperature, self.top_p, self.ignore_eos)


class Measure(Table):
    warmup: Annotated[int, Field(ge=0)] = Field(4, description="requests sent before the clock starts, never counted")
    duration: Seconds | None = Field(
        None, description="seconds in which requests come due; those on their way then end"
    )
    flush_cache: bool = Field(True, description="empty the server's prefix cache before the clock starts")
    itl_rule: ItlRule = Field("spread", description="a gap before n tokens: n latencies of gap/n, or one")
    quantiles: list[Literal["p50", "p90", "p95", "p99", "p999"]] = Field(
        ["p50", "p90", "p95", "p99"], min_length=1, max_length=5, description="what to print; each needs enough samples"
    )
    max_fault_share: Share = Field(0.01, description="share of faults above which the run is INVALID")
    poll_interval: Seconds = Field(1.0, description="seconds between looks at the server's and the client's load")
    metrics_interval: Seconds = Field(5.0, description="seconds between looks at the server's /metrics, which are long")


class Interference(Table):
    """What the prefill of one class of traffic does to the decoding of another."""

    background: str = Field(description="the class whose gaps between tokens are looked at")
    injected: str = Field(description="the class whose prefills are looked for")
    full: Count = Field(description="streams that make the background batch full")


class Traffic(Table):
    """One class of traffic: its own arrivals, workload, sampling and SLO."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]
    begin: Instant = Field(0.0, description="seconds after the start at which this class begins")
    workload: Workload
    arrivals: Arrivals
    sampling: Sampling | None = Field(None, description="default: the scenario's")
    slo: Slo = Field({})

    def process(self) -> Process:
        """When its requests are due, or its users and conversations begin; raises traces.DataError."""
        if not isinstance(self.arrivals, ReplayArrivals) or self.arrivals.file is not None:
            return self.arrivals.process()
        if (stamps := self.workload.stamps()) is None:
            raise traces.DataError(["arrivals.file: the workload has no stamps of its own: say which to replay"])
        return self.arrivals.process(*stamps)

    def skipped(self) -> Counter[str]:
        """Rows of its traces that cannot be replayed, by reason."""
        read = [self.workload.trace()] if isinstance(self.workload, TraceWorkload) else []
        if isinstance(self.arrivals, ReplayArrivals) and self.arrivals.file is not None:
            read.append(self.arrivals.trace())
        return Counter({reason: n for trace in read for reason, n in trace.skipped.items()})

    @property
    def ends(self) -> bool:
        """Whether it ends without a number of prompts and without a duration."""
        of_a_file = isinstance(self.arrivals, ReplayArrivals | ClientsArrivals)
        return self.workload.num_prompts is not None or of_a_file or self.workload.finite

    @property
    def at_once(self) -> bool:
        """Whether all of it is due at one instant, so that no duration ends it."""
        starts = self.arrivals.starts if isinstance(self.arrivals, SessionsArrivals) else self.arrivals
        return isinstance(starts, OneshotArrivals)

    @property
    def answers_decide(self) -> bool:
        """Whether requests come due when answers end."""
        return isinstance(self.arrivals, ClosedArrivals | SessionsArrivals)


T = TypeVar("T")


def _needed_alone(table: T, info: ValidationInfo) -> T:
    if table is None and info.data.get("traffic") == []:
        raise PydanticCustomError("missing", "required")
    if table is not None and info.data.get("traffic"):
        raise ValueError("not beside [[traffic]], where each class has its own")
    return table


class Scenario(Table):
    """One question to a server: what is driven, with what, when, and within which limits."""

    target: Target = SimulatorTarget()
    traffic: list[Traffic] = Field([], description="several classes, in place of one workload and arrivals")
    workload: Workload | None = Field(None, validate_default=True)
    arrivals: Arrivals | None = Field(None, validate_default=True)
    interference: Interference | None = None
    limits: Limits = Limits()
    sampling: Sampling = Sampling()
    measure: Measure = Measure()
    slo: Slo = Field({})

    _alone = field_validator("workload", "arrivals")(_needed_alone)

    @field_validator("traffic")
    @classmethod
    def names_differ(cls, traffic: list[Traffic]) -> list[Traffic]:
        names = [one.name for one in traffic]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"each class needs a name of its own; more than one is called {', '.join(sorted(twice))}")
        return traffic

    @field_validator("interference")
    @classmethod
    def classes_are_there(cls, interference: Interference | None, info: ValidationInfo) -> Interference | None:
        names = [one.name for one in info.data.get("traffic", [])]
        for name in (interference.background, interference.injected) if interference else ():
            if name not in names:
                raise ValueError(f"there is no [[traffic]] named {name!r}, only {', '.join(names) or 'none'}")
        if interference and interference.background == interference.injected:
            raise ValueError("background and injected must be two classes")
        return interference

    @model_validator(mode="after")
    def tables_go_together(self) -> Self:
        faults = []
        for one in self.classes:
            prefix = f"traffic.{one.name}." if one.name else ""
            if not one.ends and (self.measure.duration is None or one.at_once):
                instead = "" if one.at_once else ", or measure.duration,"
                faults.append(f"{prefix}workload.num_prompts{instead} must say when the load ends")
            count = one.workload.num_prompts
            if isinstance(one.arrivals, ClosedArrivals) and one.workload.finite and count is None:
                faults.append(f"{prefix}workload ends, and a closed loop goes on: set repeat = true, or num_prompts")
            if isinstance(one.arrivals, ClosedArrivals) and count is not None and count < one.arrivals.users:
                faults.append(
                    f"{prefix}arrivals.users = {one.arrivals.users}, but workload.num_prompts = {count}: some users "
                    "would have nothing to send"
                )
            if isinstance(one.arrivals, SessionsArrivals) and one.workload.kind == "trace":
                faults.append(f"{prefix}arrivals.kind = sessions: a trace's prompts already hold their history")
        users = sum(one.arrivals.users for one in self.classes if isinstance(one.arrivals, ClosedArrivals))
        cap = self.limits.max_concurrency
        if self.limits.overflow == "drop" and cap is not None and cap < users:
            faults.append(
                f"the {users} users of closed loops are more than limits.max_concurrency = {cap}, and the cap drops: "
                "some would only ever be turned away"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def classes(self) -> list[Traffic]:
        """The classes of traffic; one without a name where the scenario has one workload and arrivals."""
        if self.traffic:
            return self.traffic
        assert self.workload is not None
        assert self.arrivals is not None
        return [Traffic.model_construct(name="", workload=self.workload, arrivals=self.arrivals)]
