"""All that is seen beside the requests of one run, as one thing: the time line, the server's own words, memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from loadgen.driver import InFlight
from loadgen.target import Endpoint, InProcess
from loadgen.telemetry.memory import PeakMemory
from loadgen.telemetry.server import ServerSide
from loadgen.telemetry.timeline import Polls, sample, scrape


class Beside:
    """Looks at a target while it is driven: at its load and at its metrics every so many seconds."""

    def __init__(self, target: Endpoint | InProcess, load_interval: float, metrics_interval: float) -> None:
        self._target, self._polls, self._scrapes = target, Polls(load_interval), Polls(metrics_interval)
        self.server, self._memory = ServerSide(target), PeakMemory(target.pids)

    @asynccontextmanager
    async def looking(
        self, in_flight: InFlight, note: Callable[[dict[str, Any]], None], start: float
    ) -> AsyncIterator[None]:
        """Look on while this context lasts, with points of the time line going to `note`."""
        tasks = [
            asyncio.create_task(sample(self._target, in_flight, note, start=start, polls=self._polls)),
            asyncio.create_task(scrape(self._target, note, start=start, polls=self._scrapes)),
            asyncio.create_task(self.server.follow()),
            asyncio.create_task(self._memory.watch()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for bug in ended:
                if isinstance(bug, Exception):
                    raise bug

    async def account(self, start: float, end: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What was seen from `start` to `end` (seconds since 1970): for record.json, and the server's steps."""
        memory = self._memory.as_dict()
        await self.server.end()
        told, steps = self.server.account(start, end)
        polls = {"polls": self._polls.as_dict(), "scrapes": self._scrapes.as_dict()}
        return {"memory": memory, "telemetry": told | polls}, steps
