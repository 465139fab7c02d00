"""Attaching to servers that tell little of themselves, against small aiohttp applications."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from loadgen.target import Endpoint, TargetError, endpoint


@asynccontextmanager
async def serving(**answers: tuple[int, Any]) -> AsyncIterator[str]:
    """The URL of a server with these answers; names stand for paths, v1__models for /v1/models."""
    app = web.Application()
    for name, (status, content) in answers.items():

        async def handler(_: web.Request, status: int = status, content: Any = content) -> web.Response:
            return web.json_response(content, status=status)

        app.router.add_route("*", "/" + name.replace("__", "/"), handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


MODELS = (200, {"data": [{"id": "some-model"}]})


async def test_a_plain_openai_server_is_attached_to_with_nothing_known_of_its_batching() -> None:
    async with serving(v1__models=MODELS) as url, Endpoint.attach(url) as endpoint:
        assert (endpoint.model, endpoint.simulated) == ("some-model", False)
        assert endpoint.server == {"effective_max_running_requests": None}
        assert await endpoint.flush_cache() is False
        assert await endpoint.loads() is None


async def test_what_sglang_says_of_itself_is_kept_and_a_given_model_name_is_used() -> None:
    info = {"version": "0.5.23", "max_running_requests": None, "attention_backend": "fa3", "api_key": "secret"}
    info["internal_states"] = [{"effective_max_running_requests_per_dp": 2048}]  # type: ignore[assignment]
    async with (
        serving(health=(200, None), server_info=(200, info), flush_cache=(200, None)) as url,
        Endpoint.attach(url, "mine") as endpoint,
    ):
        assert endpoint.model == "mine"
        assert endpoint.server == {
            "version": "0.5.23",
            "max_running_requests": None,
            "attention_backend": "fa3",
            "effective_max_running_requests": 2048,
        }
        assert await endpoint.flush_cache() is True


async def test_a_server_that_is_not_ready_is_told() -> None:
    async with serving(health=(503, None)) as url:
        with pytest.raises(TargetError, match=r"/health answered 503: is the server ready\?"):
            async with Endpoint.attach(url):
                pass


@pytest.mark.parametrize("nonsense", [[], "text", {"internal_states": "x"}, {"internal_states": [3]}, {"data": 3}])
async def test_nonsense_where_an_identity_should_be_is_as_good_as_none(nonsense: Any) -> None:
    answers = {"health": (200, None), "server_info": (200, nonsense), "v1__models": (200, nonsense)}
    async with serving(**answers) as url, Endpoint.attach(url) as endpoint:
        assert endpoint.model == "default"
        assert await endpoint.loads() is None


async def test_a_port_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, nobody reads
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TargetError, match=f"no server answers at {url}: nothing came within 0.1 s"):
            async with Endpoint.attach(url):
                pass
