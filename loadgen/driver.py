"""The driver: the only place that waits.

Open loop: each request leaves at its own instant, whatever the server does. The pacer sleeps to absolute deadlines,
so that the time a send takes never adds up, and it sleeps again where a timer woke it early (uvloop's timers are
rounded to the millisecond). Nothing on the server's side slows the pacer: at `max_concurrency` a request joins a
queue, and its latency runs on from when it was due, or it is dropped and counted.

Closed loops and conversations have requests that follow on an answer: those are due a think time after the last of
it was read.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

from loadgen.exchange import Exchange, Fault, Outcome, Request


class Client(Protocol):
    """To whom the load goes.

    `stream` sends exchange.request, sets exchange.sent, notes the answer's chunks and the server's counts on the
    exchange, and raises Fault where the request failed. Anything else that it raises is a bug and ends the run.
    """

    async def stream(self, exchange: Exchange) -> None: ...


# What follows on an exchange that ended, however it ended: seconds to think, and the request; None for nothing.
Follow = Callable[[Exchange], tuple[float, Request] | None]


@dataclass(slots=True)
class InFlight:
    """How many requests are on their way, and for how long it was how many within a window.

    Times are the driver's clock, seconds.
    """

    cap: int | None
    now: Callable[[], float]
    begin: float = -inf
    end: float = inf
    count: int = 0
    peak: int = 0
    waiting: deque[Exchange] = field(default_factory=deque)
    _at: float | None = None
    _seconds: float = 0.0
    _request_seconds: float = 0.0
    _seconds_at_cap: float = 0.0

    @property
    def full(self) -> bool:
        return self.cap is not None and self.count >= self.cap

    def change(self, by: int) -> None:
        self.tally()
        self.count += by
        self.peak = max(self.peak, self.count)

    def tally(self) -> None:
        """Bring the integrals up to now."""
        now = self.now()
        if self._at is not None:
            seconds = max(min(now, self.end) - max(self._at, self.begin), 0.0)
            self._seconds += seconds
            self._request_seconds += self.count * seconds
            self._seconds_at_cap += self.full * seconds
        self._at = now

    @property
    def mean(self) -> float:
        """Requests in flight, averaged over time."""
        return self._request_seconds / self._seconds if self._seconds else 0.0

    @property
    def share_at_cap(self) -> float:
        """The share of the time in which the cap was reached: there the loop is closed."""
        return self._seconds_at_cap / self._seconds if self._seconds else 0.0


async def sleep_until(due: float, now: Callable[[], float]) -> None:
    """Return at `due` on this clock or later, never before: a timer that woke early goes back to sleep."""
    while (left := due - now()) > 0:
        await asyncio.sleep(left)


class Driver:
    """Sends requests at their instants and hands each exchange to `ended` when it has ended.

    What would follow `duration` seconds after the start or later is not sent. Concurrency is averaged from `settled`
    seconds after the start to `duration`, or to the end of the last request where there is none. `now` and the event
    loop's timers must run on the same clock: time.perf_counter, or a test's virtual one.
    """

    def __init__(
        self,
        client: Client,
        ended: Callable[[Exchange], None],
        *,
        max_concurrency: int | None = None,
        overflow: Literal["queue", "drop"] = "queue",
        follow: Follow = lambda _: None,
        duration: float = inf,
        settled: float = 0.0,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._ended = ended
        self._drop = overflow == "drop"
        self._follow, self._settled, self._duration = follow, settled, duration
        self._unbegun: dict[int, Exchange] = {}
        self._now = now
        self.in_flight = InFlight(max_concurrency, now)

    async def run(self, offsets: Iterable[float], requests: Iterable[Request], start: float) -> None:
        """Send each request at start + its offset, and what follows on it; return when all have ended.

        When cancelled, what is still open or waiting ends as `cancelled` before the cancellation goes on.
        """
        self._end_at = self.in_flight.end = start + self._duration
        self.in_flight.begin = start + self._settled
        await sleep_until(start, self._now)
        self.in_flight.tally()
        try:
            async with asyncio.TaskGroup() as tasks:
                for offset, request in zip(offsets, requests, strict=True):
                    exchange = Exchange(request, due=start + offset)
                    await sleep_until(exchange.due, self._now)
                    self._dispatch(exchange, tasks)
        except asyncio.CancelledError:
            for exchange in self.in_flight.waiting:
                self._end(exchange, Outcome.CANCELLED, "the run was stopped while it waited for a slot")
            for exchange in self._unbegun.values():  # launched, and their tasks cancelled before their first step
                self.in_flight.change(-1)
                self._end(exchange, Outcome.CANCELLED, "the run was stopped before it left")
            raise
        finally:
            self.in_flight.tally()

    def _dispatch(self, exchange: Exchange, tasks: asyncio.TaskGroup) -> None:
        exchange.ready = exchange.due
        if not self.in_flight.full:
            self._launch(exchange, tasks)
        elif self._drop:
            self._end(exchange, Outcome.DROPPED, f"{self.in_flight.count} were in flight")
            self._go_on(exchange, tasks)
        else:
            self.in_flight.waiting.append(exchange)

    def _launch(self, exchange: Exchange, tasks: asyncio.TaskGroup) -> None:
        self.in_flight.change(+1)
        self._unbegun[id(exchange)] = exchange
        tasks.create_task(self._carry(exchange, tasks))

    async def _carry(self, exchange: Exchange, tasks: asyncio.TaskGroup) -> None:
        del self._unbegun[id(exchange)]
        outcome, detail = Outcome.CANCELLED, "still open when the run was stopped"
        try:
            await self._client.stream(exchange)
            outcome, detail = Outcome.OK, ""
        except Fault as fault:
            outcome, detail = fault.kind, fault.detail
        finally:
            self.in_flight.change(-1)
            self._end(exchange, outcome, detail)
        if self.in_flight.waiting:
            successor = self.in_flight.waiting.popleft()
            successor.ready = self._now()
            self._launch(successor, tasks)
        self._go_on(exchange, tasks)

    def _go_on(self, exchange: Exchange, tasks: asyncio.TaskGroup) -> None:
        # From when the last of the answer was read, not from when this task woke: our own delay is lateness.
        read = exchange.last if exchange.answered else exchange.ended
        assert read is not None
        if following := self._follow(exchange):
            think, request = following
            if (due := read + think) < self._end_at:
                tasks.create_task(self._send_at(due, request, tasks))

    async def _send_at(self, due: float, request: Request, tasks: asyncio.TaskGroup) -> None:
        await sleep_until(due, self._now)
        self._dispatch(Exchange(request, due), tasks)

    def _end(self, exchange: Exchange, outcome: Outcome, detail: str) -> None:
        exchange.outcome, exchange.detail = outcome, detail
        exchange.ended = self._now()
        self._ended(exchange)
