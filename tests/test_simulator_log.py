"""The simulator's log lines against a real server's, and against what was done; in virtual time, without a process."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from virtual import VirtualLoop, in_virtual_time

from loadgen.simulator.offline import Engine
from loadgen.telemetry.events import Decode, Event, Prefill, read

STEP_TIME = {"prefill_base": 1.0, "prefill_per_token": 0.01, "prefill_per_context": 0.0, "decode_base": 0.5}
STEP_TIME |= {"decode_per_sequence": 0.1, "decode_per_context": 0.0, "graph_miss": 0.0}


class Lines(logging.Handler):
    """The steps that were logged, dated by the clock of the run."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._now = now

    def emit(self, record: logging.LogRecord) -> None:
        if "batch, " in record.getMessage():
            self.events.append(read(record.getMessage(), self._now(), ""))


def logged(prompts: list[list[int]], outputs: int, gap: float = 0.0, **arguments: int) -> list[Event]:
    """The lines of a run of these prompts, each `gap` seconds after the one before."""

    async def work(loop: VirtualLoop) -> list[Event]:
        engine = Engine(now=loop.time, step_time=STEP_TIME, decode_log_interval=1, **arguments)
        lines = Lines(loop.time)
        logging.getLogger("loadgen.simulator").addHandler(lines)

        async def one(number: int, prompt: list[int]) -> None:
            await asyncio.sleep(number * gap)
            await engine.async_generate(input_ids=prompt, sampling_params={"max_new_tokens": outputs})

        try:
            await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
        finally:
            logging.getLogger("loadgen.simulator").removeHandler(lines)
            engine.shutdown()
        return lines.events

    return in_virtual_time(work)


def prefills(events: list[Event]) -> list[Prefill]:
    return [event for event in events if isinstance(event, Prefill)]


def decodes(events: list[Event]) -> list[Decode]:
    return [event for event in events if isinstance(event, Decode)]


def test_four_prompts_in_chunks_are_told_as_a_real_server_told_them() -> None:
    """These are four lines in a row of SGLang 0.5.23 on a CPU, chunked_prefill_size 256, a pool of 4096; they are what
    four prompts of 200 tokens give. Its usage was 0.12, 0.19, 0.20, 0.20 and its queue 1, 0, 0, 0: under overlap the
    next step has been launched when a line is written. Ours, without, are those of the steps so far: 256, 512, 768 and
    800 tokens."""
    events = logged([[n] * 200 for n in range(4)], outputs=2, chunked_prefill_size=256, max_total_tokens=4096)
    assert [(p.new_seqs, p.new_tokens, p.cached_tokens, p.running, p.pending) for p in prefills(events)] == [
        (2, 256, 0, 0, 544),
        (2, 256, 0, 1, 288),
        (2, 256, 0, 2, 32),
        (1, 32, 0, 3, 0),
    ]
    assert [p.usage for p in prefills(events)] == [0.06, 0.12, 0.19, 0.20]
    assert [p.queued for p in prefills(events)] == [2, 1, 0, 0]


def test_a_line_stands_at_the_end_of_its_step() -> None:
    """100 tokens: 1 + 100 · 0.01 s; then two decode steps of one sequence, 0.6 s each."""
    assert [event.at for event in logged([[1] * 100], outputs=3)] == pytest.approx([2.0, 2.6, 3.2])


def test_the_queue_is_that_of_the_steps_end() -> None:
    """The second comes at 0.5 s, amid the first's prefill, the third at 1 s."""
    first, second, *_ = prefills(logged([[n] * 10 for n in range(3)], outputs=1, gap=0.5))
    assert first.at == pytest.approx(1.1)
    assert (first.queued, first.pending) == (2, 0)
    assert (second.new_seqs, second.queued) == (2, 0)


def test_throughputs_are_over_the_time_since_the_line_of_their_kind_before() -> None:
    """The second prompt comes when the first, 1.1 s of prefill and 0.6 s of decoding, has long ended: its prefill ends
    at 11.1 s, its decode step at 11.7 s. An answer's first token is not a decode step's."""
    events = logged([[n] * 10 for n in range(2)], outputs=2, gap=10.0)
    assert [p.throughput for p in prefills(events)] == pytest.approx([10 / 1.1, 10 / 10], abs=0.005)
    assert [d.throughput for d in decodes(events)] == pytest.approx([1 / 1.7, 1 / 10], abs=0.005)


def test_the_lines_add_up_to_the_tokens_of_the_run() -> None:
    """The prompts share 40 tokens, and most are cut; every prompt token is new or cached once, and every output token
    but the first of each answer is one sequence of one decode step."""
    prompts = [[*range(40), *[100 + n] * (7 * n + 1)] for n in range(12)]
    events = logged(prompts, outputs=9, gap=0.7, chunked_prefill_size=16, max_running_requests=4)
    assert sum(p.new_tokens + p.cached_tokens for p in prefills(events)) == sum(map(len, prompts))
    assert sum(p.cached_tokens for p in prefills(events)) > 0
    assert sum(d.running for d in decodes(events)) == 12 * (9 - 1)
