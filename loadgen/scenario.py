"""A scenario: a TOML file that states one question. Tables of keys in, checked models out.

Every key is known or it is an error, and all faults of a file are reported at once, each with its line, its key and
what was expected. Times are seconds, rates are requests per second, lengths are tokens.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from loadgen import arrivals, workload
from loadgen.exchange import METRICS, QUANTILES, ItlRule


def _bare(unit: str) -> BeforeValidator:
    def number_without_unit(value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"expected a number of {unit} without its unit, such as 2.5, got {value!r}")
        return value

    return BeforeValidator(number_without_unit, json_schema_input_type=float)


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), _bare("seconds")]
Rate = Annotated[
    float, Field(gt=0, allow_inf_nan=False, description="requests per second"), _bare("requests per second")
]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]

STATISTICS = ("mean", *QUANTILES, "max")


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# ── target ───────────────────────────────────────────────────────────────────────────────────────────────────────────

Api = Literal["generate", "completions", "chat"]


class SimulatorServer(Table):
    """SGLang's own arguments that the simulator understands; what is not given is the simulator's default."""

    max_running_requests: Count | None = None
    max_total_tokens: Count | None = Field(None, description="size of the KV pool in tokens")
    chunked_prefill_size: int | None = Field(None, description="tokens a prefill step; -1 turns chunking off")
    max_prefill_tokens: Count | None = None
    context_length: Count | None = None
    decode_log_interval: Count | None = None
    stream_interval: Count | None = None


class SimulatorTarget(Table):
    """The embedded server: SGLang's scheduler over a step-time model, started for the run."""

    kind: Literal["simulator"] = "simulator"
    api: Api = "generate"
    server: SimulatorServer = SimulatorServer()
    step_time: dict[str, float] = Field({}, description="coefficients of the step-time model, in seconds")


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
    cv: Annotated[float, Field(gt=0, description="standard deviation over mean")]
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
    vocab_size: Annotated[int, Field(gt=10)] = Field(4096, description="token ids are drawn from 10 to this")

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
        ["p50", "p90", "p95", "p99"], min_length=1, description="what to print; each needs enough samples"
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


class ScenarioError(Exception):
    """A scenario that cannot be run: `faults` has one line for each thing that is wrong with it."""

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.source = source
        self.faults = list(faults)


def load(source: Path, overrides: Sequence[str] = (), target: str | None = None) -> Scenario:
    """Read and check the scenario file, with `key.key=value` overrides laid over it.

    `target` replaces the file's: "simulator", or the URL of a running server. Raises ScenarioError with every fault.
    """
    try:
        text = source.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(str(source), [f"{source}: cannot be read: {reason}"]) from None
    faults = [fault for override in overrides if (fault := _override(tables, override))]
    if target is not None:
        _retarget(tables, target)
    try:
        scenario = Scenario.model_validate(tables)
    except ValidationError as error:
        faults += [_describe(fault, source, text, overrides) for fault in error.errors()]
    if faults:
        raise ScenarioError(str(source), faults)
    return scenario


def _override(tables: dict[str, Any], override: str) -> str | None:
    key, equals, value = override.partition("=")
    *path, last = key.strip().split(".")
    if not (equals and path and last):
        return f"--set {override}: expected table.key=value, such as arrivals.rate=8"
    table: Any = tables
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return f"--set {override}: {name} is not a table"
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = value.strip()  # a bare word is a string: --set limits.overflow=drop
    return None


def _retarget(tables: dict[str, Any], target: str) -> None:
    given = tables.setdefault("target", {})
    kind = "url" if "://" in target else target
    if isinstance(given, dict) and given.get("kind", "simulator") != kind:
        tables["target"] = {"kind": kind, **{key: given[key] for key in ("api", "model") if key in given}}
    if kind == "url":
        tables["target"]["url"] = target


_KINDS = {"simulator", "url", "random", "fixed", "poisson", "burst", "oneshot", "constant", "uniform", "lognormal"}
_EXPECTED = {
    "missing": "required key is missing",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text in quotes",
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "model_type": "expected a table",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "union_tag_invalid": "kind must be one of {expected_tags}, got {tag!r}",
    "union_tag_not_found": "the table needs a kind",
    "value_error": "{error}",
}
_SAYS_WHAT_IT_GOT = {"missing", "value_error", "union_tag_invalid", "union_tag_not_found"}


def _describe(fault: ErrorDetails, source: Path, text: str, overrides: Iterable[str]) -> str:
    """One line for one of pydantic's faults: where, which key, what was expected, what was there."""
    # pydantic puts the tag of a union into the path: arrivals.burst.size is arrivals.size to the writer.
    path = [str(part) for i, part in enumerate(fault["loc"]) if part != "[key]" and not (i and part in _KINDS)]
    if fault["loc"][-2:] == ("constant", "value"):
        path.pop()  # a length given as a plain number
    key, kind = ".".join(path), fault["type"]
    expected = _EXPECTED.get(kind, fault["msg"]).format(**fault.get("ctx", {}))
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], known := _known_keys(), n=1)
        hint = " for this kind" if path[-1] in known else f", did you mean {near[0]}?" if near else ""
        expected = f"unknown key{hint}"
    elif path[0] == "slo" and kind == "string_pattern_mismatch":
        expected = (
            f"expected a metric ({', '.join(METRICS)}) and a statistic ({', '.join(STATISTICS)}), such as ttft_p99"
        )
    got = f", got {fault['input']!r}" if kind not in _SAYS_WHAT_IT_GOT | {"extra_forbidden"} else ""
    override = next((o for o in overrides if o.partition("=")[0].strip() == key), None)
    return f"{f'--set {override}' if override else f'{source}{_line(path, text)}: {key}'}: {expected}{got}"


def _known_keys() -> set[str]:
    schema = Scenario.model_json_schema()
    return {key for model in [schema, *schema["$defs"].values()] for key in model.get("properties", {})}


def _line(path: Sequence[str], text: str) -> str:
    """`:LINE` of the key in the file, or of its table's head; empty where neither is written there."""
    table: list[str] = []
    found = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
            table = head[1].split(".")
            if path[: len(table)] == table:
                found = f":{number}"
        elif (key := re.match(r"\s*([\w.]+)\s*=", line)) and path[: len(table) + key[1].count(".") + 1] == [
            *table,
            *key[1].split("."),
        ]:
            return f":{number}"
    return found


# ── where scenarios live ─────────────────────────────────────────────────────────────────────────────────────────────


def folders() -> list[Path]:
    """Where names are looked up: ./scenarios, then those that came with the package."""
    package = Path(__file__).parent
    shipped = package / "_scenarios"
    return [Path("scenarios"), shipped if shipped.is_dir() else package.parent / "scenarios"]


def find(name: str) -> Path:
    """The file of a scenario, given as a name in a scenarios folder or as a path."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    for folder in folders():
        if (path := folder / f"{name}.toml").is_file():
            return path
    known = ", ".join(sorted(every())) or "none"
    raise ScenarioError(name, [f"no scenario named {name!r}: give one of {known}, or the path of a .toml file"])


def every() -> dict[str, Path]:
    """All scenarios by name."""
    return {path.stem: path for folder in reversed(folders()) for path in sorted(folder.glob("*.toml"))}


def question(path: Path) -> str:
    """The question a scenario answers: its opening comment."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("#:"):  # an editor's schema directive
            lines.append(line.lstrip("# ").strip())
    return " ".join(lines).partition(": ")[2]
