"""SGLang's scheduler: which step comes next, and what comes out of it.

The core is pure. It is told the time and never asks for it: `next_step(now)` forms a step and says how long it takes,
`complete(step)` hands out its tokens; whoever drives it waits in between, or does not.

The rules (SGLang 0.5, `get_next_batch_to_run`):

- Prefill first: a prefill step is formed whenever one can be, and decoding pauses for it.
- A prefill step holds at most `chunked_prefill_size` new tokens. The prompt that does not fit is cut; it continues
  first in the next step, and only one prompt is cut at a time. Without chunking a step holds at most
  `max_prefill_tokens`, or one longer prompt alone.
- First come, first served; nothing overtakes a prompt that cannot be admitted.
- Admitted is what fits: fewer than `max_running_requests` are running, and the pool has room for the prompt and for
  all of its output beside what the running ones hold and may still need; what several share counts once. This is
  SGLang's rule under ignore_eos, where its new_token_ratio is 1: nothing is ever retracted.
- What the prefix cache has of a prompt is not computed again, but for its last token: a step must bring something.
  What is computed is cached at the end of each prefill step and of each sequence, and evicted when a step needs room.
- The step that finishes a prompt brings its first token, each decode step one token to every running sequence.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from loadgen.simulator.radix import Node, RadixCache
from loadgen.simulator.sequence import Sequence, Stage
from loadgen.simulator.steptime import StepTime


@dataclass(frozen=True, slots=True)
class Limits:
    """SGLang's own arguments, in tokens and requests. chunked_prefill_size -1 turns chunking off."""

    max_running_requests: int = 64
    max_total_tokens: int = 65536
    chunked_prefill_size: int = 2048
    max_prefill_tokens: int = 16384
    disable_radix_cache: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was formed: it ends at `start` + `seconds`. `new` has the prompt tokens of each sequence, `cached`
    those that the prompts which begin with this step found in the cache. `running` are the sequences that decode and
    are not in a prefill step, `pending` the prompt tokens that wait beside it."""

    kind: Literal["prefill", "decode"]
    start: float
    seconds: float
    sequences: list[Sequence]
    new: list[int]
    cached: int
    in_graph: bool
    running: int = 0
    pending: int = 0

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(slots=True)
class Totals:
    """What was done so far, as /v1/loads and /metrics count it."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    # Over decode steps: n, Σ batch, Σ µs, Σ batch², Σ batch·µs, Σ tokens. Two readings give the step time's slope.
    decode_moments: list[float] = field(default_factory=lambda: [0.0] * 6)


class Scheduler:
    """Queue, running batch, token pool and prefix cache.

    The pool holds what is in the cache and what the admitted hold of their own. What is locked in the cache and what
    the admitted may come to hold beside it fit the pool together: `_admit` sees to it, and nothing else makes that sum
    grow. The rest of the cache can be evicted, so there is always room for a step.
    """

    def __init__(self, limits: Limits, step_time: StepTime) -> None:
        self.limits, self.step_time = limits, step_time
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # decoding
        self.totals = Totals()
        self.cache = RadixCache()
        # Decoding, in the prefill step under way, or between two of its steps; each with the node that it locks.
        self._admitted: dict[Sequence, Node] = {}
        self._cut: Sequence | None = None  # the prompt that continues first
        self._gone: list[Sequence] = []  # aborted while admitted; out at the next step boundary

    @property
    def used_tokens(self) -> int:
        """Tokens in the pool that are in use; those that only the cache holds are not."""
        return self.cache.protected + sum(sequence.context - sequence.shared for sequence in self._admitted)

    @property
    def available_tokens(self) -> int:
        """Room in the pool without evicting anything; while a step is under way, also what that is for."""
        return self.limits.max_total_tokens - self.used_tokens - self.cache.evictable

    @property
    def cut_tokens(self) -> int:
        """Tokens that the prompt which was cut still has to be prefilled with."""
        return self._cut.input_len - self._cut.prefilled if self._cut else 0

    @property
    def num_running(self) -> int:
        return len(self._admitted)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self._admitted

    # ── in and out ──

    def submit(self, sequence: Sequence) -> None:
        """Put a sequence into the queue; raises ValueError where it can never fit the pool."""
        if fault := self.never_fits(sequence.input_len, sequence.max_new_tokens):
            raise ValueError(fault)
        self.totals.requests += 1
        self.waiting.append(sequence)

    def never_fits(self, input_len: int, max_new_tokens: int) -> str | None:
        """What is wrong with a request of these lengths, however empty the pool; None for nothing."""
        pool = self.limits.max_total_tokens
        if input_len + max_new_tokens <= pool:
            return None
        return f"{input_len} input and {max_new_tokens} output tokens can never fit a pool of {pool} tokens"

    def abort(self, sequence: Sequence) -> None:
        """Its client is gone: out of the queue at once, out of the batch at the next step boundary."""
        if sequence.stage is Stage.ENDED or sequence.aborted:
            return
        self.totals.aborted += 1
        sequence.aborted = True
        if sequence.stage is Stage.RUNNING:
            self._gone.append(sequence)
        else:
            self.waiting.remove(sequence)
            sequence.stage = Stage.ENDED

    def flush(self) -> None:
        """Empty the cache of a scheduler that is idle."""
        assert self.idle
        self.cache.clear()

    # ── steps ──

    def next_step(self, now: float) -> Step | None:
        """Form the step that starts now; None where there is nothing to do.

        What was submitted after `now` is not in it: a driver that wakes late may hand in the future of its step.
        """
        self._drop_aborted()
        step = self._prefill_step(now) or self._decode_step(now)
        if step:
            tokens = sum(step.new) if step.kind == "prefill" else len(step.sequences)
            self.cache.evict(tokens - self.available_tokens)
        return step

    def complete(self, step: Step) -> list[Sequence]:
        """The step has ended: the sequences that got a token by it. Those that are done are out of the batch."""
        got_token = step.sequences if step.kind == "decode" else self._end_prefill(step)
        for sequence in got_token:
            sequence.output_ids.append(next(sequence.answer))
            if sequence.generated == sequence.max_new_tokens:
                self._retire(sequence)
        self.totals.generated_tokens += len(got_token)
        if step.kind == "decode":
            batch, us = len(step.sequences), step.seconds * 1e6
            moments = (1, batch, us, batch * batch, batch * us, batch)
            self.totals.decode_moments = [a + b for a, b in zip(self.totals.decode_moments, moments, strict=True)]
            self.running = [sequence for sequence in self.running if sequence.stage is Stage.RUNNING]
        else:
            self.running += [sequence for sequence in got_token if sequence.stage is Stage.RUNNING]
        return got_token

    def _end_prefill(self, step: Step) -> list[Sequence]:
        for sequence, new in zip(step.sequences, step.new, strict=True):
            sequence.prefilled += new
            self._keep(sequence)
        self.totals.prefill_tokens += sum(step.new)
        self.totals.prefill_seconds += step.seconds
        return [sequence for sequence in step.sequences if sequence.prefilled == sequence.input_len]

    def _keep(self, sequence: Sequence) -> None:
        """What was computed of a sequence goes into the cache and stays locked for it: it is no longer its own."""
        if self.limits.disable_radix_cache:
            return
        node = self.cache.insert(sequence.computed_ids())
        self.cache.lock(node)
        self.cache.unlock(self._admitted[sequence])
        self._admitted[sequence], sequence.shared = node, sequence.context

    def _retire(self, sequence: Sequence) -> None:
        self._keep(sequence)
        self.cache.unlock(self._admitted.pop(sequence))
        sequence.stage = Stage.ENDED

    def _drop_aborted(self) -> None:
        if not self._gone:
            return
        for sequence in self._gone:
            if sequence.stage is Stage.RUNNING:  # it may have ended by the step that was under way
                self._retire(sequence)
        self._gone = []
        self.running = [sequence for sequence in self.running if sequence.stage is Stage.RUNNING]
        if self._cut and self._cut.aborted:
            self._cut = None

    def _prefill_step(self, now: float) -> Step | None:
        limits = self.limits
        chunking = limits.chunked_prefill_size > 0
        budget = min(limits.max_prefill_tokens, limits.chunked_prefill_size) if chunking else limits.max_prefill_tokens
        sequences: list[Sequence] = []
        new: list[int] = []
        longest: int | None = None  # an uncut prompt of any length may be the first of its step
        while budget > 0 and (sequence := self._next_to_prefill(now, longest)):
            left = sequence.input_len - sequence.prefilled
            new.append(min(left, budget) if chunking else left)
            budget -= new[-1]
            sequences.append(sequence)
            if new[-1] < left:
                self._cut = sequence
            if not chunking:
                longest = budget
        if not new:
            return None
        parts = [(n, sequence.prefilled) for n, sequence in zip(new, sequences, strict=True)]
        cached = sum(sequence.cached for sequence in sequences if sequence.prefilled == sequence.cached)
        pending = sum(sequence.input_len for sequence in self.waiting)
        pending += self.cut_tokens - new[-1] if self._cut else 0  # the prompt that is cut is the last of its step
        seconds, running = self.step_time.prefill(parts), len(self.running)
        return Step("prefill", now, seconds, sequences, new, cached, in_graph=False, running=running, pending=pending)

    def _next_to_prefill(self, now: float, longest: int | None) -> Sequence | None:
        """The prompt that was cut, else the head of the queue where it is admitted; at most `longest` new tokens."""
        if cut := self._cut:
            self._cut = None
            return cut
        if self.waiting and self._admit(self.waiting[0], now, longest):
            return self.waiting.popleft()
        return None

    def _admit(self, sequence: Sequence, now: float, longest: int | None) -> bool:
        """Let a sequence in where there is room for what the cache has not of it, beside all that is promised."""
        if self.num_running >= self.limits.max_running_requests or sequence.submitted > now:
            return False
        cached, node = self.cache.match(sequence.prompt_ids[:-1])
        if longest is not None and sequence.input_len - cached > longest:
            return False
        self.cache.lock(node)  # first: what is locked cannot be evicted to make room for the rest
        promised = self.cache.protected + sum(other.reserved - other.shared for other in self._admitted)
        if promised + sequence.reserved - cached > self.limits.max_total_tokens:
            self.cache.unlock(node)
            return False
        sequence.stage, sequence.admitted = Stage.RUNNING, now
        sequence.prefilled = sequence.cached = sequence.shared = cached
        self._admitted[sequence] = node
        self.totals.prompt_tokens += sequence.input_len
        self.totals.cached_tokens += cached
        return True

    def _decode_step(self, now: float) -> Step | None:
        if not self.running:
            return None
        batch = len(self.running)
        seconds = self.step_time.decode(batch, sum(sequence.context for sequence in self.running))
        return Step("decode", now, seconds, list(self.running), [0] * batch, 0, self.step_time.in_graph(batch))
