"""HTTP/1.1 over kept-alive connections, one request at a time on each, every read of a socket stamped.

The connection is a plain asyncio protocol over llhttp (`httptools`): `data_received` takes the time before anything
else happens, so that a chunk's time is when its socket was read and not when some coroutine woke up. Connections are
kept and reused; there are as many as there are requests in flight, no limit of the client's own.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from loadgen.exchange import Exchange, Fault, Outcome
from loadgen.wire import Answer, Api

_SHOWN = 200  # characters of a server's error text kept in a fault


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a request may take to connect, to its first chunk, between chunks, and in all."""

    connect: float
    first_token: float
    between_tokens: float
    total: float


class HttpClient:
    """Sends requests of one API to one server; use it as an async context manager."""

    def __init__(
        self,
        url: str,
        api: Api,
        model: str,
        timeouts: Timeouts,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        parts = urlsplit(url)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._head = (
            f"POST {api.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "Accept: text/event-stream\r\nAccept-Encoding: identity\r\nContent-Length: "
        ).encode()
        self._api, self._model = api, model
        self._timeouts, self._now = timeouts, now
        self._idle: list[Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()

    async def open(self, connections: int) -> None:
        """Open connections ahead, so that requests due at one instant need not wait for theirs.

        One that fails is left out: the request that finds none opens its own, and the fault is that request's.
        """
        missing = (self._connect() for _ in range(connections - len(self._idle)))
        opened = await asyncio.gather(*missing, return_exceptions=True)
        self._idle += [connection for connection in opened if isinstance(connection, Connection)]

    async def stream(self, exchange: Exchange) -> None:
        body = self._api.payload(exchange.request, self._model)
        message = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        connection = self._reuse()
        if connection is not None:
            try:
                return await self._carry(connection, message, exchange)
            except ClosedBeforeAnswer:
                pass  # the server had given the idle connection up just then: once more, on a new one
        connection = await self._connect()
        try:
            return await self._carry(connection, message, exchange)
        except ClosedBeforeAnswer as closed:
            raise Fault(Outcome.TRUNCATED, "the connection was closed before the answer began") from closed

    async def _carry(self, connection: "Connection", message: bytes, exchange: Exchange) -> None:
        try:
            await connection.exchange(message, exchange, self._api.answer(exchange), self._timeouts)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def _reuse(self) -> "Connection | None":
        while self._idle:
            if (connection := self._idle.pop()).reusable:
                return connection
        return None

    async def _connect(self) -> "Connection":
        loop = asyncio.get_running_loop()
        tls = ssl.create_default_context() if self._tls else None
        where = f"{self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._timeouts.connect):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._now), self._host, self._port, ssl=tls
                )
        except TimeoutError:
            raise Fault(Outcome.TIMEOUT, f"no connection to {where} within {self._timeouts.connect:g} s") from None
        except OSError as error:
            raise Fault(Outcome.CONNECT, f"{where}: {error.strerror or error}") from None
        return connection


class ClosedBeforeAnswer(Exception):
    """The connection closed before a byte of the answer came."""


class Connection(asyncio.Protocol):
    """One connection. The methods named on_… are llhttp's callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop, self._now = loop, now
        self._done: asyncio.Future[None] | None = None
        self._closed = False
        self._keep_alive = True

    # ── one exchange ──

    async def exchange(self, message: bytes, exchange: Exchange, answer: Answer, timeouts: Timeouts) -> None:
        """Send the message and feed the answer's body to `answer`; raises Fault, or ClosedBeforeAnswer."""
        self._answer, self._noted = answer, exchange
        self._parser = httptools.HttpResponseParser(self)
        self._status, self._framed, self._begun = 0, False, False
        self._error_text = b""
        self._done = self._loop.create_future()
        exchange.sent = self._now()
        self._transport.write(message)
        self._timer: asyncio.TimerHandle | None = None
        self._watch(timeouts)
        try:
            await self._done
        finally:
            if self._timer:
                self._timer.cancel()
            self._done = None

    def _watch(self, timeouts: Timeouts) -> None:
        """End the exchange if a deadline has passed, else look again when the next one would.

        One timer a request and no work for a chunk: a chunk only puts the deadline off, but for the first, after which
        the time between tokens counts, so that until then it looks at least that often.
        """
        now, noted = self._now(), self._noted
        sent = noted.sent or now
        look_again = timeouts.total
        if noted.last is None:
            deadline, passed = sent + timeouts.first_token, f"no first token within {timeouts.first_token:g} s"
            look_again = timeouts.between_tokens
        else:
            deadline, passed = noted.last + timeouts.between_tokens, f"no token for {timeouts.between_tokens:g} s"
        if sent + timeouts.total < deadline:
            deadline, passed = sent + timeouts.total, f"not finished within {timeouts.total:g} s"
        if now >= deadline:
            self._finish(Fault(Outcome.TIMEOUT, passed))
        else:
            self._timer = self._loop.call_later(min(deadline - now, look_again), self._watch, timeouts)

    def _finish(self, fault: Exception | None = None) -> None:
        if self._done is None or self._done.done():
            return
        if fault is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(fault)

    @property
    def reusable(self) -> bool:
        return self._keep_alive and not self._closed

    def close(self) -> None:
        self._closed = True
        self._transport.close()

    # ── the socket ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self._at = self._now()
        if self._done is None:  # bytes that nobody asked for
            self.close()
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._finish(Fault(Outcome.PROTOCOL, f"not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._done is None:
            return
        if not self._begun:
            self._finish(ClosedBeforeAnswer())
        elif self._status and not self._framed:
            self.on_message_complete()  # a body without a length ends with its connection
        else:
            self._finish(Fault(Outcome.TRUNCATED, f"the connection closed in the middle of the answer{_why(exc)}"))

    # ── llhttp ──

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - llhttp's signature
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            try:
                self._answer.feed(body, self._at)
            except Fault as fault:
                self._finish(fault)
        elif len(self._error_text) < _SHOWN:
            self._error_text += body

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            return  # an interim answer; the real one follows
        self._keep_alive = self._parser.should_keep_alive()
        if self._status == 200:
            try:
                self._answer.close()
            except Fault as fault:
                self._finish(fault)
        else:
            text = self._error_text.decode("utf-8", "replace")[:_SHOWN]
            self._finish(Fault(Outcome.STATUS, f"{self._status} {text}".strip()))
        self._finish()


def _why(exc: Exception | None) -> str:
    return f": {exc}" if exc else ""
