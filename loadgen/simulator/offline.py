"""The simulator in process, without HTTP, in real time: what is used of the interface of SGLang's `Engine`."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from loadgen.simulator.engine import Engine as Steps
from loadgen.simulator.engine import Generation
from loadgen.simulator.intake import take_in
from loadgen.simulator.scheduler import Scheduler
from loadgen.simulator.settings import LINE, STAMP, parts, startup
from loadgen.simulator.shapes import GenerateShape
from loadgen.simulator.status import live_info

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flushed:
    """What became of a flush, under SGLang's name."""

    success: bool


class Engine:
    """An engine that steps on the running event loop from its first request on.

    Takes SGLang's own arguments by name, and `step_time` with the coefficients; raises ValueError for unknown ones.
    """

    def __init__(self, *, now: Callable[[], float] = time.perf_counter, **arguments: Any) -> None:
        limits, self._settings, step_time = parts(arguments)
        self._engine = Steps(Scheduler(limits, step_time), self._settings.decode_log_interval, now)
        self._steps: asyncio.Task[None] | None = None
        _log_to_stderr()
        log.info(startup(limits, self._settings))

    async def async_generate(
        self,
        prompt: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        input_ids: list[int] | None = None,
        *,
        stream: bool = False,
        rid: str | None = None,
    ) -> AsyncIterator[dict[str, Any]] | dict[str, Any]:
        """As SGLang's: a generator of answers that grow where `stream`, else the whole one. Raises ValueError for what
        can never be answered. As SGLang's too, it asks nothing of the scheduler before its first answer is asked for,
        so that a stream that nobody reads holds no place.
        """
        max_new_tokens = (sampling_params or {}).get("max_new_tokens", 128)
        outputs = self._outputs(input_ids if prompt is None else prompt, max_new_tokens, rid, stream=stream)
        return outputs if stream else await anext(outputs)

    async def _outputs(
        self, prompt: Any, max_new_tokens: int, rid: str | None, *, stream: bool
    ) -> AsyncIterator[dict[str, Any]]:
        came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        shape, interval = GenerateShape(), self._settings.stream_interval

        def token(generation: Generation, at: float) -> None:
            generation.first_token_at = at if generation.first_token_at is None else generation.first_token_at
            generation.last_token_at = at
            produced = len(generation.output_ids)
            if generation.done or (stream and (produced == 1 or produced % interval == 0)):
                whole = shape.whole(generation)
                came.put_nowait(whole | {"output_ids": list(whole["output_ids"])})

        generation = take_in(self._engine, self._settings, prompt, max_new_tokens, rid, token)
        if self._steps is None:
            self._steps = asyncio.create_task(self._engine.run())
        self._engine.submit(generation)
        try:
            while True:
                output = await came.get()
                yield output
                if output["meta_info"]["finish_reason"]:
                    return
        finally:
            if not generation.done:
                self._engine.abort(generation)  # whoever asked has gone

    def get_server_info(self) -> dict[str, Any]:
        """What the server would answer at /server_info."""
        return live_info(self._engine, self._settings)

    def flush_cache(self) -> Flushed:
        """Empty the prefix cache; refused, as SGLang does, while requests run or wait."""
        if not self._engine.scheduler.idle:
            return Flushed(success=False)
        self._engine.scheduler.flush()
        return Flushed(success=True)

    def shutdown(self) -> None:
        """Step no more."""
        if self._steps is not None:
            self._steps.cancel()


def _log_to_stderr() -> None:
    logger = logging.getLogger("loadgen.simulator")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(LINE, STAMP))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
