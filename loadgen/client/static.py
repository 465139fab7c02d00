"""Fixed batches into a bare model runner: no scheduler, no HTTP, nothing joins or leaves a batch under way.

Requests are taken in the order of their coming, `batch_size` at a time. A batch is prefilled in one step and decoded
until the longest of its answers is done; then comes the next. An answer is done with its own last token, though the
batch goes on. Steps run in a thread, one at a time, and are stamped there.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from loadgen.exchange import Exchange, Fault, Outcome


class Runner(Protocol):
    """A model runner: SGLang's (loadgen.sglang.batch) or the simulator's (loadgen.simulator.batch).

    `pool` is its KV pool in tokens, `max_batch` the most sequences it takes.
    """

    pool: int
    max_batch: int

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]: ...
    def decode(self) -> list[int]: ...
    def clear(self) -> None: ...


class StaticClient:
    """Runs requests in fixed batches of `batch_size`."""

    def __init__(self, runner: Runner, batch_size: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._runner, self._size, self._now = runner, batch_size, now
        self._waiting: deque[tuple[Exchange, asyncio.Future[None]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="static")
        self._stopped = False
        self.reset()

    def reset(self) -> None:
        """Forget the figures so far: those of a warm-up."""
        self._prefills: list[float] = []
        self._decodes: list[float] = []
        self._needs, self._full = 0, False

    async def stream(self, exchange: Exchange) -> None:
        if isinstance(exchange.request.prompt, str | tuple):
            raise Fault(Outcome.PROTOCOL, "a model runner takes token ids: use a workload of ids")
        exchange.sent = self._now()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((exchange, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            fault: Exception | None = None
            try:
                await loop.run_in_executor(self._thread, self._run, [exchange for exchange, _ in taken])
            except Exception as error:  # noqa: BLE001 - a fault or a bug, it is handed to those who wait
                fault = error
            for _, done in taken:
                if not done.done():  # its request may have been cancelled
                    done.set_exception(fault) if fault else done.set_result(None)

    def _run(self, batch: list[Exchange]) -> None:
        requests = [exchange.request for exchange in batch]
        needs = sum(len(request.prompt) + request.output_len for request in requests)
        self._needs = max(self._needs, needs)
        if needs > self._runner.pool or len(batch) > self._runner.max_batch:
            self._full = True
            raise Fault(
                Outcome.NO_ROOM,
                f"a batch of {len(batch)} does not fit: needs {needs:,} of {self._runner.pool:,} tokens, "
                f"{len(batch)} of {self._runner.max_batch} sequences",
            )
        try:
            self._decode_out(batch)
        except (RuntimeError, MemoryError) as error:  # torch's OutOfMemoryError is a RuntimeError
            if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                raise
            self._full = True
            raise Fault(Outcome.NO_ROOM, f"a batch of {len(batch)} does not fit the memory: {error}") from error
        finally:
            self._runner.clear()

    def _decode_out(self, batch: list[Exchange]) -> None:
        requests = [exchange.request for exchange in batch]
        begun = self._now()
        self._runner.prefill([request.prompt for request in requests])  # type: ignore[misc]
        at = self._now()
        self._prefills.append(at - begun)
        for exchange in batch:
            exchange.input_tokens = exchange.request.input_len
            exchange.chunk(at, 1)
        for step in range(2, max(request.output_len for request in requests) + 1):
            if self._stopped:
                break
            begun = self._now()
            self._runner.decode()
            at = self._now()
            self._decodes.append(at - begun)
            for exchange in batch:
                if step <= exchange.request.output_len:
                    exchange.chunk(at, step)
        for exchange in batch:
            exchange.output_tokens = exchange.tokens[-1]

    def close(self) -> None:
        """End the batch under way at its next step."""
        self._stopped = True
        self._thread.shutdown()

    def figures(self) -> dict[str, Any]:
        """For the record: whether batches of this size fit, and what their steps took, in seconds."""
        return {
            "fits": not self._full,
            "batch_size": self._size,
            "batches": len(self._prefills),
            "needs_tokens": self._needs,
            "pool_tokens": self._runner.pool,
            "max_batch": self._runner.max_batch,
            "prefill_s": _summary(self._prefills),
            "decode_step_s": _summary(self._decodes),
        }


def _summary(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        return {"count": 0, "mean": None, "p50": None, "max": None}
    values = np.array(seconds)
    figures = {"mean": values.mean(), "p50": np.median(values), "max": values.max()}
    return {"count": values.size} | {name: round(float(value), 6) for name, value in figures.items()}
