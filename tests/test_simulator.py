"""The simulator's scheduler in virtual time: queueing theory, conservation, and SGLang's rules one by one."""

import asyncio
from itertools import count, repeat
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from virtual import VirtualLoop, in_virtual_time

from loadgen.simulator.engine import Engine, Generation
from loadgen.simulator.scheduler import Limits, Scheduler, Step
from loadgen.simulator.sequence import Sequence
from loadgen.simulator.steptime import StepTime

FREE_DECODE = StepTime(
    prefill_base=1.0, prefill_per_token=0.0, prefill_per_context=0.0, decode_base=0.0, decode_per_sequence=0.0,
    decode_per_context=0.0, graph_miss=0.0,
)  # fmt: skip
A_SECOND_A_TOKEN = StepTime(
    prefill_base=0.0, prefill_per_token=0.0, prefill_per_context=0.0, decode_base=1.0, decode_per_sequence=0.0,
    decode_per_context=0.0, graph_miss=0.0,
)  # fmt: skip

serials = count(1)


def fresh(input_len: int, max_new_tokens: int, submitted: float) -> Sequence:
    """A sequence whose prompt begins as no other does."""
    ids = np.zeros(input_len, np.int64)
    ids[0] = next(serials)
    return Sequence(ids, max_new_tokens, submitted, repeat(0))


def play(scheduler: Scheduler, arrivals: list[Sequence]) -> list[tuple[Step, list[Sequence]]]:
    """Run to the end in virtual time; each sequence arrives when it says it was submitted."""
    now, played, coming = 0.0, [], sorted(arrivals, key=lambda sequence: sequence.submitted)
    while coming or not scheduler.idle:
        while coming and coming[0].submitted <= now:
            scheduler.submit(coming.pop(0))
        step = scheduler.next_step(now)
        if step is None:
            now = coming[0].submitted
            continue
        now = step.end
        while coming and coming[0].submitted <= now:
            scheduler.submit(coming.pop(0))
        played.append((step, scheduler.complete(step)))
    return played


def mean_waits(step_time: StepTime, output_lens: list[NDArray[np.int64]], rate: float) -> NDArray[np.float64]:
    means = []
    for replication, lengths in enumerate(output_lens):
        gaps = np.random.default_rng([9, replication]).exponential(1 / rate, lengths.size)
        sequences = [fresh(1, int(n), at) for n, at in zip(lengths, np.cumsum(gaps), strict=True)]
        play(Scheduler(Limits(max_running_requests=1, max_total_tokens=10**9), step_time), sequences)
        means.append(np.mean([s.admitted - s.submitted for s in sequences if s.admitted is not None]))
    return np.array(means)


def test_one_at_a_time_with_a_constant_service_is_m_d_1() -> None:
    """Prefill takes 1 s and brings the only token. Wq = rho / (2 (1 - rho)); 4 standard errors of 10 replications."""
    means = mean_waits(FREE_DECODE, [np.ones(3000, np.int64)] * 10, rate=0.7)
    assert abs(means.mean() - 0.7 / (2 * 0.3)) < 4 * means.std(ddof=1) / sqrt(10)


def test_one_at_a_time_with_geometric_lengths_is_m_g_1() -> None:
    """A decode step takes 1 s and the first token nothing, so the service is n - 1 seconds. Pollaczek and Khinchine:
    Wq = rate E[S²] / (2 (1 - rho)); 4 standard errors of 10 replications."""
    lengths = [np.random.default_rng([10, r]).geometric(0.25, 3000) + 1 for r in range(10)]
    rate, mean, square = 0.15, 4.0, (2 - 0.25) / 0.25**2
    means = mean_waits(A_SECOND_A_TOKEN, lengths, rate)
    theory = rate * square / (2 * (1 - rate * mean))
    assert abs(means.mean() - theory) < 4 * means.std(ddof=1) / sqrt(10)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Limits, list[Sequence]]:
    limits = Limits(
        max_running_requests=draw(st.integers(1, 8)),
        max_total_tokens=draw(st.integers(60, 300)),
        chunked_prefill_size=draw(st.sampled_from([-1, 1, 7, 16, 64])),
        max_prefill_tokens=draw(st.integers(1, 64)),
    )
    sequence = st.builds(fresh, st.integers(1, 40), st.integers(1, 20), st.floats(0, 2))
    return limits, draw(st.lists(sequence, min_size=1, max_size=30))


@given(loads())
def test_every_token_comes_once_and_nothing_is_ever_over_its_limit(load: tuple[Limits, list[Sequence]]) -> None:
    limits, sequences = load
    scheduler = Scheduler(limits, StepTime())
    budget = limits.max_prefill_tokens
    if limits.chunked_prefill_size > 0:
        budget = min(budget, limits.chunked_prefill_size)
    came = dict.fromkeys(sequences, 0)
    for step, got in play(scheduler, sequences):
        for sequence in got:
            came[sequence] += 1
        assert len(step.sequences) <= limits.max_running_requests
        assert scheduler.used_tokens <= limits.max_total_tokens
        if step.kind == "prefill":
            assert sum(step.new) <= budget or (limits.chunked_prefill_size < 0 and len(step.new) == 1)
    assert came == {sequence: sequence.max_new_tokens for sequence in sequences}
    assert scheduler.used_tokens == 0
    admitted = [s.admitted for s in sorted(sequences, key=lambda s: s.submitted)]
    assert admitted == sorted(a for a in admitted if a is not None), "first come, first served"
    totals = scheduler.totals
    assert totals.generated_tokens == sum(sequence.max_new_tokens for sequence in sequences)
    assert totals.prefill_tokens == totals.prompt_tokens == sum(sequence.input_len for sequence in sequences)


def test_a_sequence_alone_takes_exactly_what_the_model_says() -> None:
    model = StepTime()
    steps = [step.seconds for step, _ in play(Scheduler(Limits(), model), [fresh(100, 4, 0.0)])]
    assert steps == [model.prefill([(100, 0)]), model.decode(1, 100), model.decode(1, 101), model.decode(1, 102)]


def test_step_times_are_the_published_form_worked_by_hand() -> None:
    """Prefill of 10 new tokens on 5 cached and of 20 alone: 1 + 2 · 30 + 3 · (10 · 15 + 20 · 20). Decode of 4 sequences
    with 100 tokens: 4 + 5 · 4 + 6 · 100, and 7 more out of the graph window."""
    model = StepTime(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, graph_max_batch=4)
    assert model.prefill([(10, 5), (20, 0)]) == 1711.0
    assert model.decode(4, 100) == 624.0
    assert model.decode(5, 100) == 636.0
    assert 0.015 < StepTime().prefill([(256, 0)]) < 0.020
    assert StepTime().decode(16, 16 * 300) == pytest.approx(0.010, abs=0.001)


def test_a_long_prompt_is_cut_into_chunks_and_decoding_pauses_for_them() -> None:
    running, long = fresh(10, 30, 0.0), fresh(1000, 2, 0.05)
    played = play(Scheduler(Limits(chunked_prefill_size=256), StepTime()), [running, long])
    kinds = [(step.kind, step.new) for step, _ in played]
    first = kinds.index(("prefill", [256]))
    assert kinds[first : first + 5] == [
        ("prefill", [256]), ("prefill", [256]), ("prefill", [256]), ("prefill", [232]), ("decode", [0, 0])
    ]  # fmt: skip
    assert played[first + 3][1] == [long], "the chunk that ends a prompt brings its first token"


def test_the_prompt_that_was_cut_continues_first_and_shares_its_last_step() -> None:
    cut, short = fresh(300, 1, 0.0), fresh(20, 1, 0.0)
    played = play(Scheduler(Limits(chunked_prefill_size=256), StepTime()), [cut, short])
    assert [(step.sequences, step.new) for step, _ in played] == [([cut], [256]), ([cut, short], [44, 20])]


def test_without_chunking_a_prompt_over_the_limit_goes_alone() -> None:
    short, long = fresh(20, 1, 0.0), fresh(500, 1, 0.0)
    limits = Limits(chunked_prefill_size=-1, max_prefill_tokens=256)
    played = play(Scheduler(limits, StepTime()), [short, long])
    assert [step.new for step, _ in played] == [[20], [500]]


def test_a_full_pool_makes_requests_wait_in_order() -> None:
    """The first takes 60 of 100 tokens. The second needs 60 and waits; the third would fit and may not overtake."""
    first, second, third = fresh(40, 20, 0.0), fresh(40, 20, 0.0), fresh(5, 5, 0.0)
    scheduler = Scheduler(Limits(max_total_tokens=100), StepTime())
    played = play(scheduler, [first, second, third])
    ended = next(step.end for step, got in played if first in got and first.generated == 20 and step.start > 0.1)
    assert first.admitted == 0.0
    assert second.admitted is not None
    assert second.admitted >= played[19][0].end, "after the 20 tokens of the first"
    assert second.admitted == third.admitted
    assert ended > 0


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="90 input and 20 output tokens can never fit a pool of 100"):
        Scheduler(Limits(max_total_tokens=100), StepTime()).submit(fresh(90, 20, 0.0))


def test_an_abort_gives_its_tokens_back_at_the_next_step() -> None:
    scheduler = Scheduler(Limits(max_running_requests=1), StepTime())
    gone, next_one, never = fresh(50, 20, 0.0), fresh(10, 1, 0.0), fresh(10, 1, 0.0)
    for sequence in (gone, next_one, never):
        scheduler.submit(sequence)
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.complete(step)
    scheduler.abort(gone)
    scheduler.abort(never)
    step = scheduler.next_step(step.end)
    assert step is not None
    assert step.sequences == [next_one]
    scheduler.complete(step)
    assert (scheduler.used_tokens, scheduler.idle, scheduler.totals.aborted) == (0, True, 2)


def test_an_abort_amid_a_cut_prompt_gives_its_tokens_back_once() -> None:
    scheduler = Scheduler(Limits(chunked_prefill_size=32, max_total_tokens=100), StepTime())
    cut, next_one = fresh(90, 10, 0.0), fresh(90, 10, 0.0)
    scheduler.submit(cut)
    scheduler.submit(next_one)
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.abort(cut)
    scheduler.abort(cut)
    assert scheduler.complete(step) == []
    assert scheduler.used_tokens == 32
    step = scheduler.next_step(step.end)
    assert step is not None
    assert (step.sequences, step.new) == ([next_one], [32])
    assert (scheduler.used_tokens, scheduler.totals.aborted) == (0, 1)


def test_an_abort_during_the_last_step_of_a_sequence_changes_nothing() -> None:
    scheduler = Scheduler(Limits(), StepTime())
    last = fresh(5, 1, 0.0)
    scheduler.submit(last)
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.abort(last)
    scheduler.complete(step)
    assert scheduler.next_step(step.end) is None
    assert scheduler.idle


def test_a_step_holds_nothing_that_was_submitted_after_it_began() -> None:
    """A driver that is behind hands in what came later than the step that it asks for."""
    scheduler = Scheduler(Limits(), StepTime())
    early, late = fresh(5, 1, 1.0), fresh(5, 1, 2.0)
    scheduler.submit(early)
    scheduler.submit(late)
    assert scheduler.next_step(0.5) is None
    step = scheduler.next_step(1.5)
    assert step is not None
    assert step.sequences == [early]


def test_an_idle_engine_begins_when_a_request_came_and_not_when_it_woke() -> None:
    async def work(loop: VirtualLoop) -> list[float]:
        engine = Engine(Scheduler(Limits(), A_SECOND_A_TOKEN), decode_log_interval=40, now=loop.time)
        steps = asyncio.create_task(engine.run())
        stamps: list[float] = []
        for submitted in (5.0, 5.5):  # both are told of at 6
            sequence = fresh(3, 3, submitted)
            await asyncio.sleep(6 - loop.time())
            engine.submit(Generation("x", sequence, lambda _, at: stamps.append(at)))
        await asyncio.sleep(10)
        steps.cancel()
        return stamps

    assert in_virtual_time(work) == pytest.approx([5, 6, 6, 7, 7, 8])


def test_a_batch_past_the_graph_window_pays_for_it() -> None:
    model = StepTime(graph_max_batch=4)
    assert model.decode(5, 100) - model.decode(4, 100) == pytest.approx(model.decode_per_sequence + model.graph_miss)
    sequences = [fresh(1, 3, 0.0) for _ in range(5)]
    steps = [step for step, _ in play(Scheduler(Limits(), model), sequences) if step.kind == "decode"]
    assert [step.in_graph for step in steps] == [False, False]


def test_timers_that_wake_late_do_not_add_up() -> None:
    """Every timer wakes up to 10 ms late; a hundred steps of 7 ms still end at the model's time."""

    class Late(VirtualLoop):
        def time(self) -> float:
            return ceil(super().time() * 100 - 1e-6) / 100

    async def work(loop: VirtualLoop) -> list[float]:
        engine = Engine(Scheduler(Limits(), A_SECOND_A_TOKEN), decode_log_interval=40, now=loop.time)
        engine.scheduler.step_time = StepTime(
            prefill_base=0.007, prefill_per_token=0, prefill_per_context=0,
            decode_base=0.007, decode_per_sequence=0, decode_per_context=0,
        )  # fmt: skip
        stamps: list[float] = []
        generation = Generation("x", fresh(3, 100, 0.0), lambda _, at: stamps.append(at))
        engine.submit(generation)
        steps = asyncio.create_task(engine.run())
        while not generation.done:
            await asyncio.sleep(0.1)
        steps.cancel()
        return stamps

    stamps = in_virtual_time(work, Late)
    assert stamps == pytest.approx([0.007 * (i + 1) for i in range(100)])


def test_two_readings_of_the_decode_moments_give_the_models_slope() -> None:
    """Ordinary least squares from sums, as a reader of /v1/loads does it; context terms off, so that it is exact."""
    model = StepTime(decode_per_context=0.0, graph_miss=0.0)
    scheduler = Scheduler(Limits(), model)
    play(scheduler, [fresh(5, n, 0.01 * n) for n in range(1, 60)])
    n, b, t, bb, bt, generated = scheduler.totals.decode_moments
    slope = (n * bt - b * t) / (n * bb - b * b)
    assert slope * 1e-6 == pytest.approx(model.decode_per_sequence)
    assert (t - slope * b) / n * 1e-6 == pytest.approx(model.decode_base)
    assert generated == sum(range(1, 60)) - 59, "first tokens come from prefill"
