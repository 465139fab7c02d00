"""The target's table: what is driven, and with which arguments it is started."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from loadgen.scenario.fields import Count, File, Seconds, Table

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
    disable_radix_cache: bool | None = Field(
        None, description="keep no prefixes; by default they are kept, as in SGLang"
    )


Argument = bool | int | float | str | list[bool | int | float | str]
OURS = {  # SGLang's arguments that a scenario does not give
    "model_path": "say target.model",
    "host": "the server listens on 127.0.0.1 only",
    "port": "a free port is taken",
    "api_key": "a server that is launched for the run has none",
}

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


class SglangTarget(Table):
    """The released SGLang: its server is launched for the run, or its Engine built in process, from the same
    arguments."""

    kind: Literal["sglang"]
    api: Api = "generate"
    model: str | None = Field(None, description="folder of the model; by default what SGLANG_MODEL says")
    server: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Argument] = Field(
        {}, description="SGLang's own arguments, such as max_running_requests = 16"
    )
    start_timeout: Seconds = Field(900.0, description="seconds that the server may take until it is healthy")

    @field_validator("server")
    @classmethod
    def leaves_to_us_what_is_ours(cls, server: dict[str, Argument]) -> dict[str, Argument]:
        if ours := sorted(server.keys() & OURS.keys()):
            raise ValueError("; ".join(f"{key}: {OURS[key]}" for key in ours))
        return server


class UrlTarget(Table):
    """A server that is already running."""

    kind: Literal["url"]
    url: str = Field(description="http://host:port")
    api: Api = "generate"
    model: str | None = Field(None, description="served model name; by default the first of /v1/models")
    server_log: File | None = Field(None, description="file to which the server writes its log, to be followed")

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


def _simulator_by_default(table: object) -> object:
    return {"kind": "simulator", **table} if isinstance(table, dict) else table


Target = Annotated[
    Annotated[SimulatorTarget | SglangTarget | UrlTarget, Field(discriminator="kind")],
    BeforeValidator(_simulator_by_default, json_schema_input_type=SimulatorTarget | SglangTarget | UrlTarget),
]
