"""The simulator in process, without HTTP, in real time: what is used of the interface of SGLang's `Engine`."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from loadgen.simulator.engine import Engine as Steps
from loadgen.simulator.engine import Generation
from loadgen.simulator.intake import take_in
from loadgen.simulator.scheduler import Scheduler
from loadgen.simulator.settings import LINE, STAMP, parts, server_info
from loadgen.simulator.shapes import GenerateShape


class Engine:
    """An engine that steps on the running event loop from its first request on.

    Takes SGLang's own arguments by name, and `step_time` with the coefficients; raises ValueError for unknown ones.
    """

    def __init__(self, *, now: Callable[[], float] = time.perf_counter, **arguments: Any) -> None:
        self._limits, self._settings, self._step_time = parts(arguments)
        self._engine = Steps(Scheduler(self._limits, self._step_time), self._settings.decode_log_interval, now)
        self._steps: asyncio.Task[None] | None = None
        _log_to_stderr()

    async def async_generate(
        self,
        prompt: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        input_ids: list[int] | None = None,
        *,
        stream: bool = False,
        rid: str | None = None,
    ) -> AsyncIterator[dict[str, Any]] | dict[str, Any]:
        """As SGLang's: a generator of answers that grow where `stream`, else the whole one. Raises ValueError."""
        came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        shape, interval = GenerateShape(), self._settings.stream_interval

        def token(generation: Generation, at: float) -> None:
            generation.first_token_at = at if generation.first_token_at is None else generation.first_token_at
            generation.last_token_at = at
            produced = len(generation.output_ids)
            if generation.done or (stream and (produced == 1 or produced % interval == 0)):
                whole = shape.whole(generation)
                came.put_nowait(whole | {"output_ids": list(whole["output_ids"])})

        max_new_tokens = (sampling_params or {}).get("max_new_tokens", 128)
        generation = take_in(
            self._engine, self._settings, input_ids if prompt is None else prompt, max_new_tokens, rid, token
        )
        if self._steps is None:
            self._steps = asyncio.create_task(self._engine.run())
        self._engine.submit(generation)
        outputs = self._outputs(generation, came)
        return outputs if stream else await anext(outputs)

    async def _outputs(
        self, generation: Generation, came: "asyncio.Queue[dict[str, Any]]"
    ) -> AsyncIterator[dict[str, Any]]:
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
        return server_info(self._limits, self._settings, self._step_time)

    def flush_cache(self) -> None:
        """Empty the prefix cache; nothing may be running."""
        self._engine.scheduler.flush()

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
