"""One fixed batch over the step-time model, without the scheduler, as `loadgen.sglang.batch.Runner` has it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from loadgen.simulator.engine import answer
from loadgen.simulator.settings import parts, server_info


class Runner:
    """Steps take as long as the model says; `now` and `sleep` are the clock, in seconds."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        **arguments: Any,
    ) -> None:
        self._limits, self._settings, self._step_time = parts(arguments)
        self._now, self._sleep = now, sleep
        self.pool, self.max_batch = self._limits.max_total_tokens, self._limits.max_running_requests
        self._answers: list[Iterator[int]] = []
        self._context = 0  # tokens in the pool

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Prefill all of a new batch in one step; the first token of each."""
        begun = self._now()
        settings = self._settings
        ids = [np.array(prompt, np.int64) for prompt in prompts]
        self._answers = [answer(own, settings.vocab_size, settings.random_seed) for own in ids]
        self._context = sum(own.size for own in ids)
        return self._step(begun, self._step_time.prefill((own.size, 0) for own in ids))

    def decode(self) -> list[int]:
        """One decode step of the batch; the next token of each."""
        begun = self._now()
        seconds = self._step_time.decode(len(self._answers), self._context)
        self._context += len(self._answers)
        return self._step(begun, seconds)

    def _step(self, begun: float, seconds: float) -> list[int]:
        while (left := begun + seconds - self._now()) > 0:
            self._sleep(left)
        return [next(said) for said in self._answers]

    def clear(self) -> None:
        """Give the pool back."""
        self._answers, self._context = [], 0

    def info(self) -> dict[str, Any]:
        """What the server would answer at /server_info."""
        return server_info(self._limits, self._settings, self._step_time)

    def close(self) -> None:
        """Nothing of it outlives this process."""
