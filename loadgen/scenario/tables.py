"""The tables of a scenario as checked models: what each key means, its unit, its default and its bounds.

Times are seconds, rates are requests per second, lengths are tokens. A `kind` in a table picks its type. An unknown key
is an error.
"""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from loadgen import arrivals, workload
from loadgen.exchange import METRICS, QUANTILES, ItlRule


def _bare(unit: str) -> BeforeValidator:
    def number_without_unit(value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"expected a number of {unit} without its unit, such as 2.5, got {value!r}")
        return value

    return BeforeValidator(number_without_unit, json_schema_input_type=float)


# Upper bounds are far beyond use; they keep a slip of the keyboard from filling the memory or stopping the clock.
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False), _bare("seconds")]
Rate = Annotated[
    float, Field(ge=1e-6, le=1e6, allow_inf_nan=False, description="requests per second"), _bare("requests per second")
]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]

STATISTICS = ("mean", *QUANTILES, "max")


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


# ── target ───────────────────────────────────────────────────────────────────────────────────────────────────────────

Api = Literal["generate", "completions", "chat"]


class SimulatorServer(Table):
    """SGLang's own arguments that the simulator understands; what is not given is the simulator's default."""

    max_running_requests: Count | None = None
    max_total_tokens: Count | None = Field(None, description="size of the KV pool in tokens")
    chunked_prefill_size: Literal[-1] | Count | None = Field(
        None, description="tokens a prefill step; -1 turns chunking off"
    )
    max_prefill_tokens: Count | None = None
    context_length: Count | None = None
    decode_log_interval: Count | None = None
    stream_interval: Count | None = None
    disable_radix_cache: bool | None = Field(None, description="keep no prefixes; by default they are kept")


Coefficient = Annotated[float, Field(ge=0, le=1e3)]


class StepTime(Table):
    """Coefficients of the simulator's step-time model, in seconds; what is not given is the simulator's default."""

    prefill_base: Coefficient | None = None
    prefill_per_token: Coefficient | None = None
    prefill_per_context: Coefficient | None = None
    decode_base: Coefficient | None = None
    decode_per_sequence: Coefficient | None = None
    decode_per_context: Coefficient | None = None
    graph_miss: Coefficient | None = None
    graph_max_batch: Annotated[int, Field(ge=0)] | None = Field(None, description="largest batch that has a graph")


class SimulatorTarget(Table):
    """The embedded server: SGLang's scheduler over a step-time model, started for the run."""

    kind: Literal["simulator"] = "simulator"
    api: Api = "generate"
    server: SimulatorServer = SimulatorServer()
    step_time: StepTime = StepTime()


class UrlTarget(Table):
    """A server that is already running."""

    kind: Literal["url"]
    url: str = Field(description="http://host:port")
    api: Api = "generate"
    model: str | None = Field(None, description="served model name; by default the first of /v1/models")

    @field_validator("url")
    @classmethod
    def is_the_root_of_a_server(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"expected http://host:port and no path, got {url!r}")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"expected a port from 1 to 65535, got {url!r}") from None
        return url


# ── workload ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class UniformLength(Table):
    kind: Literal["uniform"]
    low: Count
    high: Count

    @field_validator("high")
    @classmethod
    def low_is_below_high(cls, high: int, info: ValidationInfo) -> int:
        if (low := info.data.get("low", high)) > high:
            raise ValueError(f"must not be below low = {low}, got {high}")
        return high

    def distribution(self) -> workload.Length:
        return workload.Uniform(self.low, self.high)


class LognormalLength(Table):
    kind: Literal["lognormal"]
    mean: Annotated[float, Field(ge=1)]
    cv: Annotated[float, Field(gt=0, le=100, description="standard deviation over mean")]
    high: Count = Field(32768, description="longer draws are cut to this", validate_default=True)

    @field_validator("high")
    @classmethod
    def mean_is_below_high(cls, high: int, info: ValidationInfo) -> int:
        if (mean := info.data.get("mean", high)) > high:
            raise ValueError(f"must not be below mean = {mean:g}, got {high}")
        return high

    def distribution(self) -> workload.Length:
        return workload.Lognormal(self.mean, self.cv, self.high)


class ConstantLength(Table):
    kind: Literal["constant"]
    value: Count

    def distribution(self) -> workload.Length:
        return workload.Constant(self.value)


def _number_is_constant(value: object) -> object:
    return {"kind": "constant", "value": value} if isinstance(value, int | float | str) else value


Length = Annotated[
    Annotated[ConstantLength | UniformLength | LognormalLength, Field(discriminator="kind")],
    BeforeValidator(
        _number_is_constant, json_schema_input_type=Count | ConstantLength | UniformLength | LognormalLength
    ),
]


class RandomWorkload(Table):
    """Prompts of random token ids; nothing is shared between them."""

    kind: Literal["random"] = "random"
    num_prompts: Count
    input_len: Length
    output_len: Length
    vocab_size: Annotated[int, Field(gt=10, le=10_000_000)] = Field(
        4096, description="token ids are drawn from 10 to this"
    )

    def prompts(self) -> workload.Workload:
        return workload.RandomTokens(self.input_len.distribution(), self.output_len.distribution(), self.vocab_size)


# ── arrivals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


class OneshotArrivals(Table):
    kind: Literal["oneshot"]

    def process(self) -> arrivals.Arrivals:
        return arrivals.Oneshot()


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


class Measure(Table):
    warmup: Annotated[int, Field(ge=0)] = Field(4, description="requests sent before the clock starts, never counted")
    flush_cache: bool = Field(True, description="empty the server's prefix cache before the clock starts")
    itl_rule: ItlRule = Field("spread", description="a gap before n tokens: n latencies of gap/n, or one")
    quantiles: list[Literal["p50", "p90", "p95", "p99", "p999"]] = Field(
        ["p50", "p90", "p95", "p99"], min_length=1, max_length=5, description="what to print; each needs enough samples"
    )
    max_fault_share: Share = Field(0.01, description="share of faults above which the run is INVALID")
    poll_interval: Seconds = Field(1.0, description="seconds between looks at the server's and the client's load")


def _simulator_by_default(table: object) -> object:
    return {"kind": "simulator", **table} if isinstance(table, dict) else table


Target = Annotated[
    Annotated[SimulatorTarget | UrlTarget, Field(discriminator="kind")],
    BeforeValidator(_simulator_by_default, json_schema_input_type=SimulatorTarget | UrlTarget),
]


class Scenario(Table):
    """One question to a server: what is driven, with what, when, and within which limits."""

    target: Target = SimulatorTarget()
    workload: RandomWorkload
    arrivals: Annotated[FixedArrivals | PoissonArrivals | BurstArrivals | OneshotArrivals, Field(discriminator="kind")]
    limits: Limits = Limits()
    sampling: Sampling = Sampling()
    measure: Measure = Measure()
    slo: dict[Annotated[str, Field(pattern=rf"^({'|'.join(METRICS)})_({'|'.join(STATISTICS)})$")], Seconds] = Field(
        {}, description="such as ttft_p99 = 2.0: the statistic may not be above this many seconds"
    )
