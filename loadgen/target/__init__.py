"""What is being driven, and how it came to be.

    simulator   the embedded server, started for the run in a process of its own (loadgen.target.simulator)
    sglang      the released SGLang, launched for the run with the scenario's arguments (loadgen.target.sglang)
    url         a server that is already running: attach to it

All end up as an `Endpoint`, a URL with an identity; or, in the modes without HTTP, as an `InProcess`, the same
simulator or SGLang built in this process (loadgen.target.inprocess).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from loadgen.scenario import SglangTarget, SimulatorTarget, UrlTarget
from loadgen.target import inprocess, sglang, simulator
from loadgen.target.endpoint import Endpoint, TargetError, first
from loadgen.target.inprocess import InProcess
from loadgen.target.sglang import Tell

__all__ = ["Endpoint", "InProcess", "Mode", "TargetError", "Tell", "first", "reach"]

Mode = Literal["serving", "oneshot", "static"]


@asynccontextmanager
async def reach(
    target: SimulatorTarget | SglangTarget | UrlTarget, mode: Mode, log: Path, tell: Tell = lambda _: None
) -> AsyncIterator[Endpoint | InProcess]:
    """The running target of a scenario, healthy; what this call started, it ends. Raises TargetError.

    `log` is where a started server's log goes; `tell` hears how the start is getting on.
    """
    if isinstance(target, UrlTarget):
        if mode != "serving":
            raise TargetError(f"{mode} runs in this process: it needs target.kind simulator or sglang, not a URL")
        async with Endpoint.attach(target.url.rstrip("/"), target.model) as endpoint:
            endpoint.log = Path(target.server_log) if target.server_log else None
            yield endpoint
    elif mode != "serving":
        async with inprocess.build(target, mode, log, tell) as built:
            yield built
    else:
        starting = (
            sglang.launch(target, log, tell) if isinstance(target, SglangTarget) else simulator.launch(target, log)
        )
        async with starting as (url, process), Endpoint.attach(url) as endpoint:
            endpoint.process, endpoint.log = process, log
            endpoint.stand_ins = isinstance(target, SglangTarget) and sglang.stand_ins()
            yield endpoint
