"""An engine in this process: the prompts go in as Python objects, and the chunks come out of a generator.

There is no socket to stamp: a chunk's time is when its dict came out of the engine's generator on our loop. SGLang's
Engine and the simulator's have this interface; the answer is read by the same code as /generate's, so that TTFT, TPOT
and ITL are the same by definition.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from loadgen.client.http import Timeouts
from loadgen.exchange import Exchange, Fault, Outcome
from loadgen.wire.answer import GenerateAnswer
from loadgen.wire.apis import generate_body


class Engine(Protocol):
    """What is asked of an engine: SGLang's `Engine.async_generate` with stream=True."""

    async def async_generate(
        self, prompt: str | None, *, input_ids: list[int] | None, sampling_params: dict[str, Any], stream: bool
    ) -> AsyncIterator[dict[str, Any]]: ...


class EngineClient:
    """Sends requests to an engine in this process."""

    def __init__(self, engine: Engine, timeouts: Timeouts, now: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._timeouts, self._now = engine, timeouts, now

    async def stream(self, exchange: Exchange) -> None:
        body = generate_body(exchange.request)
        answer = GenerateAnswer(exchange)
        exchange.sent = self._now()
        try:
            async with asyncio.timeout(self._timeouts.first_token) as limit:
                await self._read(body, answer, limit)
        except TimeoutError:
            waited = "first token" if exchange.first is None else "further token"
            raise Fault(Outcome.TIMEOUT, f"no {waited} within the limits.timeout_* of the scenario") from None
        except ValueError as error:  # what an HTTP server answers with a status of 400
            raise Fault(Outcome.STATUS, f"refused by the engine: {error}") from None
        answer.settle()

    async def _read(self, body: dict[str, Any], answer: GenerateAnswer, limit: asyncio.Timeout) -> None:
        loop, limits = asyncio.get_running_loop(), self._timeouts
        end = loop.time() + limits.total
        outputs = await self._engine.async_generate(
            body.get("text"),
            input_ids=body.get("input_ids"),
            sampling_params=body["sampling_params"],
            stream=True,
        )
        async for output in outputs:
            answer.take(output, self._now())
            limit.reschedule(min(loop.time() + limits.between_tokens, end))
