"""The HTTP face of the simulator: the endpoints that take prompts. Those that tell its state are in `status`."""

import asyncio
import json
from typing import Any, TypeVar

from aiohttp import web

from loadgen.simulator.engine import Engine, Generation
from loadgen.simulator.intake import BadRequestError, take_in
from loadgen.simulator.shapes import END_MARK, GenerateShape, OpenAiShape, Shape, chat_text
from loadgen.simulator.status import Status

T = TypeVar("T")
_KINDS = {int: "a whole number", str: "a string", dict: "an object"}


class Server:
    """The routes, over one engine."""

    def __init__(self, engine: Engine, status: Status) -> None:
        self._engine, self._status = engine, status

    def app(self) -> web.Application:
        app = web.Application(client_max_size=256 * 1024**2, middlewares=[_bad_requests])
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        self._status.add_routes(app)
        return app

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        sampling = _field(body, "sampling_params", dict, {})
        prompt = body.get("input_ids") if body.get("text") is None else body["text"]
        max_new_tokens = _field(sampling, "max_new_tokens", int, 128)
        return await self._answer(request, body, prompt, max_new_tokens, GenerateShape())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        max_tokens = _field(body, "max_tokens", int, 16)
        return await self._answer(request, body, body.get("prompt"), max_tokens, self._openai(body, chat=False))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise BadRequestError("messages must be a list of objects with role and content")
        max_tokens = _field(body, "max_completion_tokens", int, _field(body, "max_tokens", int, 128))
        return await self._answer(request, body, chat_text(messages), max_tokens, self._openai(body, chat=True))

    def _openai(self, body: dict[str, Any], *, chat: bool) -> OpenAiShape:
        if _field(body, "n", int, 1) != 1:
            raise BadRequestError("the simulator gives one choice, n must be 1")
        settings = self._status.settings
        model = _field(body, "model", str, settings.served_model_name)
        options = _field(body, "stream_options", dict, {})
        return OpenAiShape(model, options, chat=chat, cache_report=settings.enable_cache_report)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: Any, max_new_tokens: int, shape: Shape
    ) -> web.StreamResponse:
        settings = self._status.settings
        reply = (_Streamed if body.get("stream") else _Whole)(shape, self._status, settings.stream_interval)
        rid = _field(body, "rid", str, "")
        generation = take_in(self._engine, settings, prompt, max_new_tokens, rid, reply.token)
        # The head goes out before the first token, so that the answer's socket is there when the first step ends.
        response = await reply.prepare(request, generation)
        self._engine.submit(generation)
        try:
            await reply.done
        except asyncio.CancelledError:
            self._engine.abort(generation)  # the client has gone
            raise
        return await reply.finish(response, generation)


class _Streamed:
    """Writes each chunk to its socket as the step ends, without waking the request's own task."""

    def __init__(self, shape: Shape, status: Status, stream_interval: int) -> None:
        self._shape, self._status, self._interval = shape, status, stream_interval
        self._sent = 0
        self.done = asyncio.get_running_loop().create_future()

    async def prepare(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        assert request.transport is not None
        self._transport = request.transport
        self._write(self._shape.opening(generation))
        return response

    def token(self, generation: Generation, at: float) -> None:
        self._status.observe(generation, at, streamed=True)
        produced = len(generation.output_ids)
        if produced == 1 or generation.done or produced % self._interval == 0:
            self._write(self._shape.chunk(generation, generation.output_ids[self._sent :]))
            self._sent = produced
        if generation.done and not self.done.done():
            self._write(self._shape.closing(generation) + END_MARK)
            self.done.set_result(None)

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self, response: web.StreamResponse, generation: Generation) -> web.StreamResponse:  # noqa: ARG002
        await response.write_eof()
        return response


class _Whole:
    """Keeps the tokens and answers with all of them."""

    def __init__(self, shape: Shape, status: Status, stream_interval: int) -> None:  # noqa: ARG002 - as _Streamed
        self._shape, self._status = shape, status
        self.done = asyncio.get_running_loop().create_future()

    async def prepare(self, request: web.Request, generation: Generation) -> web.StreamResponse:  # noqa: ARG002
        return web.Response()

    def token(self, generation: Generation, at: float) -> None:
        self._status.observe(generation, at, streamed=False)
        if generation.done and not self.done.done():
            self.done.set_result(None)

    async def finish(self, response: web.StreamResponse, generation: Generation) -> web.StreamResponse:  # noqa: ARG002
        return web.json_response(self._shape.whole(generation))


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    return body


def _field(table: dict[str, Any], key: str, kind: type[T], default: T) -> T:
    """The value of a key; null is as good as not given."""
    value = table.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequestError(f"{key} must be {_KINDS[kind]}, got {json.dumps(value)[:100]}")
    return value


@web.middleware
async def _bad_requests(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except BadRequestError as error:
        if request.path == "/generate":
            said: dict[str, Any] = {"error": {"message": str(error)}}
        else:
            said = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
        return web.Response(status=400, text=json.dumps(said), content_type="application/json")
    return response
