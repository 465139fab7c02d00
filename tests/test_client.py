"""The HTTP client against scripted raw sockets on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from loadgen.client.http import HttpClient, Timeouts
from loadgen.exchange import Exchange, Fault, Outcome, Request
from loadgen.wire import APIS

STREAM = (Path(__file__).parent / "golden" / "generate_stream.sse").read_bytes()
HEAD = (Path(__file__).parent / "golden" / "generate_stream.headers").read_bytes().strip().replace(b"\r\n", b"\n")
HEAD = HEAD.replace(b"\n", b"\r\n") + b"\r\n\r\n"
ERROR = b'data: {"error":{"message":"oom"}}\n\n'
FAST = Timeouts(connect=2.0, first_token=2.0, between_tokens=2.0, total=4.0)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server that runs `script` once for each request, and remembers what was asked on which connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.asked: list[tuple[int, bytes]] = []
        self.serving: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.asked.append((number, head + await reader.readexactly(length)))
                await self.script(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def client(self, timeouts: Timeouts = FAST) -> AsyncIterator[HttpClient]:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0, backlog=1000)
        port = server.sockets[0].getsockname()[1]
        async with HttpClient(f"http://127.0.0.1:{port}", APIS["generate"], "m", timeouts) as client:
            yield client
        server.close()
        await asyncio.gather(*self.serving)


def exchange() -> Exchange:
    return Exchange(Request(0, [1, 2, 3], 16), due=0.0)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def says(data: bytes, *, close: bool = False) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if close:
            writer.close()

    return script


async def fault_of(script: Script, timeouts: Timeouts = FAST) -> Fault:
    async with Scripted(script).client(timeouts) as client:
        with pytest.raises(Fault) as caught:
            await client.stream(exchange())
    return caught.value


async def test_a_real_servers_bytes_are_an_answer_and_the_connection_is_kept() -> None:
    server = Scripted(says(HEAD + chunked(STREAM)))
    async with server.client() as client:
        for _ in range(5):
            seen = exchange()
            await client.stream(seen)
            assert (seen.output_tokens, seen.input_tokens, seen.tokens[-1]) == (16, 6, 16)
            assert seen.sent is not None
            assert seen.sent < seen.at[0]
    assert server.connections == 1
    _, asked = server.asked[0]
    assert asked.startswith(b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b'"input_ids": [1, 2, 3]' in asked


async def test_a_chunk_has_the_time_at_which_its_bytes_were_read() -> None:
    first, rest = STREAM.split(b"\n\n", 1)
    parts = [first + b"\n\n", rest]

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"%x\r\n%b\r\n" % (len(parts[0]), parts[0]))
        await asyncio.sleep(0.15)
        writer.write(chunked(parts[1]))

    async with Scripted(script).client() as client:
        seen = exchange()
        await client.stream(seen)
    assert 0.14 < seen.at[1] - seen.at[0] < 1.0
    assert seen.at[1] == seen.at[-1]
    assert seen.tokens[0] == 1


async def test_two_hundred_requests_at_once_have_two_hundred_connections() -> None:
    arrived, everyone = 0, asyncio.Event()

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 200:
            everyone.set()
        await everyone.wait()
        writer.write(HEAD + chunked(STREAM))

    server = Scripted(script)
    async with server.client() as client:
        await asyncio.gather(*(client.stream(exchange()) for _ in range(200)))
    assert server.connections == 200


async def test_connections_that_were_opened_ahead_are_used() -> None:
    server = Scripted(says(HEAD + chunked(STREAM)))
    async with server.client() as client:
        await client.open(3)
        await asyncio.gather(*(client.stream(exchange()) for _ in range(3)))
        await client.open(3)
    assert server.connections == 3


async def test_an_idle_connection_that_the_server_gave_up_is_replaced() -> None:
    server = Scripted(says(HEAD + chunked(STREAM), close=True))
    async with server.client() as client:
        await client.stream(exchange())
        await client.stream(exchange())
    assert server.connections == 2


async def test_a_connection_that_dies_just_as_it_is_reused_is_retried_once() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(server.asked) == 2:
            writer.close()
        else:
            writer.write(HEAD + chunked(STREAM))

    server = Scripted(script)
    async with server.client() as client:
        await client.stream(exchange())
        await client.stream(exchange())
    assert [number for number, _ in server.asked] == [1, 1, 2]


@pytest.mark.parametrize(
    ("why", "data", "kind", "detail"),
    [
        ("closed before a byte", b"", Outcome.TRUNCATED, "before the answer began"),
        ("closed inside the head", HEAD[:40], Outcome.TRUNCATED, "in the middle"),
        ("closed inside the body", HEAD + chunked(STREAM)[:900], Outcome.TRUNCATED, "in the middle"),
        ("ended cleanly without its end mark", HEAD + chunked(STREAM[:900]), Outcome.TRUNCATED, "[DONE]"),
        ("ended before its last chunk", HEAD + chunked(STREAM)[:-5], Outcome.TRUNCATED, "in the middle"),
        ("no HTTP", b"SSH-2.0-OpenSSH\r\n", Outcome.PROTOCOL, "not HTTP"),
        ("an error inside a 200", HEAD + chunked(ERROR), Outcome.SERVER_ERROR, "oom"),
        (
            "a status",
            b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\ntry later",
            Outcome.STATUS,
            "503 try later",
        ),
        ("another protocol", b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Outcome.PROTOCOL, "HTTP"),
        ("a redirect", b"HTTP/1.1 307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Outcome.STATUS, "307"),
    ],
)  # fmt: skip
async def test_what_breaks_is_a_fault_of_its_kind(why: str, data: bytes, kind: Outcome, detail: str) -> None:
    fault = await fault_of(says(data, close=True))
    assert (fault.kind, detail in fault.detail) == (kind, True), f"{why}: {fault}"


async def test_interim_answers_are_passed_over() -> None:
    async with Scripted(
        says(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + HEAD + chunked(STREAM))
    ).client() as client:
        seen = exchange()
        await client.stream(seen)
    assert seen.output_tokens == 16


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    server = Scripted(says(head + STREAM, close=True))
    async with server.client() as client:
        seen = exchange()
        await client.stream(seen)
        await client.stream(exchange())
    assert (seen.output_tokens, server.connections) == (16, 2)


async def test_a_fault_closes_its_connection() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + (b"%x\r\n%b\r\n" % (len(ERROR), ERROR)))

    server = Scripted(script)
    async with server.client() as client:
        for _ in range(2):
            with pytest.raises(Fault):
                await client.stream(exchange())
    assert server.connections == 2


@pytest.mark.parametrize(
    ("timeouts", "data", "detail"),
    [
        (Timeouts(2, 1e-9, 9, 9), b"", "no first token within 1e-09 s"),
        (Timeouts(2, 0.05, 9, 9), b"", "no first token within 0.05 s"),
        (Timeouts(2, 9, 0.05, 9), HEAD + chunked(STREAM)[:900], "no token for 0.05 s"),
        (Timeouts(2, 9, 9, 0.05), HEAD + chunked(STREAM)[:900], "not finished within 0.05 s"),
    ],
)
async def test_each_time_limit_is_told_apart(timeouts: Timeouts, data: bytes, detail: str) -> None:
    fault = await fault_of(says(data), timeouts)
    assert (fault.kind, fault.detail) == (Outcome.TIMEOUT, detail)


async def test_nobody_listening_is_a_connect_fault() -> None:
    async with HttpClient("http://127.0.0.1:9", APIS["generate"], "m", FAST) as client:
        with pytest.raises(Fault) as caught:
            await client.stream(exchange())
    assert caught.value.kind is Outcome.CONNECT
    assert "127.0.0.1:9" in caught.value.detail
