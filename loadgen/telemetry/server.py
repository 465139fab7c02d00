"""What the server says of itself during a run: its log, /v1/loads and /metrics, on the run's clock.

The log is followed while it grows, every FOLLOW seconds, and read when the run is over. Where its lines have no
milliseconds (SGLang's have them under SGLANG_LOG_MS=1, which our own launches set), a line's instant is when it was
seen. Loads and metrics are taken before the start and after the end; their differences are the run's.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadgen.target import Endpoint, InProcess
from loadgen.telemetry import exposition, steps, steptime
from loadgen.telemetry.events import Event
from loadgen.telemetry.serverlog import ServerLog

FOLLOW = 0.05  # seconds between looks at the log
SETTLE = 0.3  # seconds after the last answer in which the lines of its steps still come
HEAD = 1 << 20  # bytes at the log's beginning that are read for what a server says when it starts


class ServerSide:
    """The server's side of one run."""

    def __init__(self, target: Endpoint | InProcess, epoch: Callable[[], float] = time.time) -> None:
        self._target, self._epoch = target, epoch
        self._seen: list[tuple[float, bytes]] = []

    async def begin(self) -> None:
        """Take what differences are counted from; nothing of the run may have been sent."""
        log = self._target.log
        self._begin = self._offset = log.stat().st_size if log and log.exists() else 0
        self._before = await self._look()

    async def follow(self) -> None:
        """Collect what is added to the log, until cancelled."""
        while self._target.log:
            self._read(self._target.log)
            await asyncio.sleep(FOLLOW)

    async def end(self) -> None:
        """The last answer has come: take what there is."""
        self._after = await self._look()
        if self._target.log:
            await asyncio.sleep(SETTLE)
            self._read(self._target.log)

    def account(self, start: float, end: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What the server did from `start` to `end` (seconds since 1970): for record.json, and step by step."""
        server = self._target.server
        account: dict[str, Any] = {"loads": self._loads(), "metrics": self._metrics()}
        if self._target.log is None:
            why = "target.server_log does not say where the server writes its log"
            return account | {"log": {"absent": why}}, []
        log = ServerLog()
        events = self._events(log)
        interval = server.get("decode_log_interval")
        pool = server.get("max_total_num_tokens")
        told = steps.summary(events, start, end + SETTLE, interval if isinstance(interval, int) else None, pool)
        counted = {"ignored": log.ignored, "unreadable": log.unreadable}
        account["log"] = {"absent": None, **counted, **told, "facts": log.facts, "errors": log.errors}
        within = [event for event in events if start <= event.at <= end + SETTLE]
        return account, [steps.as_line(event, start) for event in within]

    def _loads(self) -> dict[str, Any]:
        before, after = self._before[0], self._after[0]
        if before is None or after is None:
            return {"reason": "the server has no /v1/loads"}
        return steptime.difference(before, after)

    def _metrics(self) -> dict[str, Any]:
        before, after = self._before[1], self._after[1]
        if before is None or after is None:
            return {"reason": "the server has no /metrics: SGLang has them with --enable-metrics"}
        return exposition.difference(exposition.snapshot(before), exposition.snapshot(after))

    @property
    def log(self) -> bytes:
        """What the server wrote to its log during the run."""
        return b"".join(data for _, data in self._seen)

    def _events(self, log: ServerLog) -> list[Event]:
        assert self._target.log is not None
        with contextlib.suppress(OSError), self._target.log.open("rb") as file:
            log.feed(file.read(min(HEAD, self._begin)).decode(errors="replace"))
        log.close()
        events: list[Event] = []
        for seen, data in self._seen:
            events += log.feed(data.decode(errors="replace"), seen)
        return events + log.close()

    def _read(self, log: Path) -> None:
        """Take what was added. A log that is gone says no more; one that has become shorter was begun anew."""
        try:
            with log.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        if data:
            self._offset += len(data)
            self._seen.append((self._epoch(), data))

    async def _look(self) -> tuple[Mapping[str, Any] | None, str | None]:
        return await self._target.loads(), await self._target.exposition()
