"""Steps the scheduler in real time and hands each step's tokens out, all from one place.

A step begins at the model's end of the step before it, not when the loop woke up from waiting for it, so that the
lateness of timers does not add up. Where this process cannot keep up with the model, that is counted and logged.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.simulator.scheduler import Scheduler, Sequence, Stage, Step

LATE = 0.02  # seconds behind the model at which a step counts as late: timers are good to a millisecond or two
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Generation:
    """A request and what was generated for it. `token` is called at each of its tokens, with the time of the step.

    The output ids are a pure function of the prompt, as greedy decoding's are.
    """

    rid: str
    sequence: Sequence
    prompt_ids: list[int]
    vocab_size: int
    token: Callable[["Generation", float], None]
    output_ids: list[int] = field(default_factory=list)
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def done(self) -> bool:
        return self.sequence.stage is Stage.ENDED

    def next_id(self) -> int:
        seen = self.output_ids[-1] if self.output_ids else zlib.crc32(repr(self.prompt_ids).encode())
        return (1_103_515_245 * seen + 12_345 + len(self.output_ids)) % self.vocab_size


class Engine:
    """A scheduler with a clock."""

    def __init__(
        self, scheduler: Scheduler, decode_log_interval: int, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.scheduler, self.now = scheduler, now
        self.late_steps, self.max_late = 0, 0.0
        self.gen_throughput = 0.0  # tokens/s over the last log interval, as SGLang reports it
        self._generations: dict[Sequence, Generation] = {}
        self._work = asyncio.Event()
        self._decode_log_interval = decode_log_interval
        self._decode_steps, self._logged_tokens, self._logged_at = 0, 0, now()

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
        """Step for ever."""
        start = self.now()
        while True:
            step = self.scheduler.next_step(start)
            if step is None:
                self._work.clear()
                await self._work.wait()
                start = self.now()
                continue
            await asyncio.sleep(max(step.end - self.now(), 0))
            self._note_lateness(self.now() - step.end)
            tokens = self.scheduler.complete(step)
            self._log(step)
            for sequence in tokens:
                self._hand_out(sequence, step.end)
            start = step.end

    def _hand_out(self, sequence: Sequence, at: float) -> None:
        generation = self._generations.get(sequence)
        if generation is None:
            return  # its client has gone
        generation.output_ids.append(generation.next_id())
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

    def _log(self, step: Step) -> None:
        """SGLang's own lines, so that what reads a server's log can read this one."""
        scheduler = self.scheduler
        usage = scheduler.used_tokens / scheduler.limits.max_total_tokens
        if step.kind == "prefill":
            log.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: 0, token usage: %.2f, #running-req: %d, "
                "#queue-req: %d, #pending-token: %d, cuda graph: False, input throughput (token/s): %.2f",
                len(step.sequences),
                sum(step.new),
                usage,
                len(scheduler.running),
                len(scheduler.waiting),
                sum(sequence.input_len for sequence in scheduler.waiting),
                sum(step.new) / step.seconds if step.seconds else 0.0,
            )
            return
        self._decode_steps += 1
        if self._decode_steps % self._decode_log_interval:
            return
        generated, now = scheduler.totals.generated_tokens, step.end
        if now > self._logged_at:
            self.gen_throughput = (generated - self._logged_tokens) / (now - self._logged_at)
        self._logged_tokens, self._logged_at = generated, now
        log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, cuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            len(step.sequences),
            scheduler.used_tokens,
            usage,
            step.in_graph,
            self.gen_throughput,
            len(scheduler.waiting),
        )
