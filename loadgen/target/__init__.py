"""What is being driven, and how it came to be.

    simulator   the embedded server, started for the run in a process of its own (loadgen.target.simulator)
    url         a server that is already running: attach to it

Both end up as an `Endpoint`: a URL with an identity.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loadgen.scenario import SimulatorTarget, UrlTarget
from loadgen.target import simulator
from loadgen.target.endpoint import Endpoint, TargetError

__all__ = ["Endpoint", "TargetError", "reach"]


@asynccontextmanager
async def reach(target: SimulatorTarget | UrlTarget, log: Path) -> AsyncIterator[Endpoint]:
    """The running target of a scenario, healthy; what this call started, it ends. Raises TargetError.

    `log` is where a started server's log goes.
    """
    if isinstance(target, UrlTarget):
        async with Endpoint.attach(target.url.rstrip("/"), target.model) as endpoint:
            yield endpoint
    else:
        async with simulator.launch(target, log) as url, Endpoint.attach(url) as endpoint:
            yield endpoint
