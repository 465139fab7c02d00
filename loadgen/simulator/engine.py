"""Steps the scheduler in real time and hands each step's tokens out, all from one place.

A step begins at the model's end of the step before it, not when the loop woke up from waiting for it, so that the
lateness of timers does not add up. Where this process cannot keep up with the model, that is counted and logged.
"""

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadgen.simulator.radix import Ids
from loadgen.simulator.scheduler import Scheduler, Step
from loadgen.simulator.sequence import Sequence, Stage

LATE = 0.02  # seconds behind the model at which a step counts as late: timers are good to a millisecond or two
EARLY = 1e-6  # seconds by which a step may end early: a loop takes timers this close for due
log = logging.getLogger(__name__)


def answer(prompt_ids: Ids, vocab_size: int, seed: int) -> Iterator[int]:
    """Output ids without an end, a pure function of prompt and seed, as greedy decoding's are of prompt and weights.

    A linear congruential generator (Numerical Recipes'), its high bits.
    """
    state = zlib.crc32(prompt_ids.tobytes(), seed & 0xFFFF_FFFF)
    while True:
        state = (1_664_525 * state + 1_013_904_223) & 0xFFFF_FFFF
        yield (state >> 8) % vocab_size


@dataclass(eq=False, slots=True)
class Generation:
    """A sequence and who waits for it. `token` is called at each of its tokens, with the time of the step."""

    rid: str
    sequence: Sequence
    token: Callable[["Generation", float], None]
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def output_ids(self) -> list[int]:
        return self.sequence.output_ids

    @property
    def done(self) -> bool:
        return self.sequence.stage is Stage.ENDED


class HitRate:
    """The share of the prompt tokens that were found in the cache: in the last prefill step, and over some seconds."""

    WINDOW = 15.0  # seconds, as SGLang has it

    def __init__(self) -> None:
        self.last, self.recent = 0.0, 0.0
        self._steps: deque[tuple[float, int, int]] = deque()  # start, cached tokens, tokens

    def count(self, step: Step) -> None:
        tokens = step.cached + sum(step.new)
        self.last = step.cached / tokens
        self._steps.append((step.start, step.cached, tokens))
        while self._steps[0][0] <= step.start - self.WINDOW:
            self._steps.popleft()
        self.recent = sum(cached for _, cached, _ in self._steps) / sum(tokens for *_, tokens in self._steps)


class Engine:
    """A scheduler with a clock."""

    def __init__(
        self, scheduler: Scheduler, decode_log_interval: int, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.scheduler, self.now = scheduler, now
        self.late_steps, self.max_late = 0, 0.0
        self.gen_throughput = 0.0  # tokens/s over the last log interval, as SGLang reports it
        self.hit_rate = HitRate()
        self._generations: dict[Sequence, Generation] = {}
        self._work = asyncio.Event()
        self._decode_log_interval = decode_log_interval
        self._decode_steps, self._decoded_tokens = 0, 0  # the tokens since the last decode line
        self._decode_logged_at = self._prefill_logged_at = now()

    def submit(self, generation: Generation) -> None:
        """Queue a generation; raises ValueError where it can never fit the pool."""
        self.scheduler.submit(generation.sequence)
        self._generations[generation.sequence] = generation
        self._work.set()

    def abort(self, generation: Generation) -> None:
        """Forget a generation whose client has gone."""
        self._generations.pop(generation.sequence, None)
        self.scheduler.abort(generation.sequence)

    async def run(self) -> None:
        """Step for ever. An idle engine begins at the instant at which a request came, not when this task woke."""
        scheduler, start = self.scheduler, self.now()
        while True:
            step = scheduler.next_step(start)
            if step is None:
                while not scheduler.waiting:
                    self._work.clear()
                    await self._work.wait()
                start = max(start, scheduler.waiting[0].submitted)
                continue
            if step.kind == "prefill":
                self.hit_rate.count(step)
            await self._sleep_until(step.end)
            tokens = scheduler.complete(step)
            if step.kind == "prefill":
                self._log_prefill(step)
            else:
                self._log_decode(step)
            for sequence in tokens:
                self._hand_out(sequence, step.end)
            start = step.end

    async def _sleep_until(self, instant: float) -> None:
        """Gives way at least once, however late it is; a timer that wakes early goes back to sleep."""
        await asyncio.sleep(max(instant - self.now(), 0))
        while (left := instant - self.now()) > EARLY:
            await asyncio.sleep(left)
        self._note_lateness(-left)

    def _hand_out(self, sequence: Sequence, at: float) -> None:
        generation = self._generations.get(sequence)
        if generation is None:
            return  # its client has gone
        if generation.done:
            del self._generations[sequence]
        generation.token(generation, at)

    def _note_lateness(self, late: float) -> None:
        self.max_late = max(self.max_late, late)
        if late > LATE:
            self.late_steps += 1
            if self.late_steps == 1:
                log.warning(
                    "This process is %.0f ms behind the step-time model: it needs a core of its own", late * 1e3
                )

    def _log_prefill(self, step: Step) -> None:
        """SGLang's own line, so that what reads a server's log can read this one. As in SGLang it is written when the
        step's result has been taken in: what runs and what is pending are those of its forming, queue and usage those
        of now, and the throughput is over the time since the prefill line before, whatever that was spent on."""
        scheduler, tokens = self.scheduler, sum(step.new)
        gap, self._prefill_logged_at = step.end - self._prefill_logged_at, step.end
        log.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, #pending-token: %d, cuda graph: False, input throughput (token/s): %.2f",
            len(step.sequences),
            tokens,
            step.cached,
            scheduler.used_tokens / scheduler.limits.max_total_tokens,
            step.running,
            len(scheduler.waiting),
            step.pending,
            tokens / gap if gap > 0 else 0.0,
        )

    def _log_decode(self, step: Step) -> None:
        """SGLang's own line, every so many decode steps. Its throughput counts what decode steps brought; the first
        token of an answer is its prefill's."""
        self._decode_steps += 1
        self._decoded_tokens += len(step.sequences)
        if self._decode_steps % self._decode_log_interval:
            return
        scheduler = self.scheduler
        gap, self._decode_logged_at = step.end - self._decode_logged_at, step.end
        if gap > 0:
            self.gen_throughput = self._decoded_tokens / gap
        self._decoded_tokens = 0
        log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, cuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            len(step.sequences),
            scheduler.used_tokens,
            scheduler.used_tokens / scheduler.limits.max_total_tokens,
            step.in_graph,
            self.gen_throughput,
            len(scheduler.waiting),
        )
