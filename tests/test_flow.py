"""Closed loops and conversations in virtual time: what follows on an answer, and when."""

import asyncio
from array import array
from collections.abc import Callable, Iterator
from math import inf
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import VirtualLoop, in_virtual_time

from loadgen import flow
from loadgen.driver import Driver
from loadgen.exchange import Exchange, Fault, Outcome, Request
from loadgen.flow import Flow, next_turn
from loadgen.think import Always, Between, Exponential, Lognormal
from loadgen.workload import Constant, RandomTokens, Uniform


def requests(input_len: int = 3, output_len: int = 2) -> Iterator[Request]:
    return RandomTokens(Constant(input_len), Constant(output_len), 1000).requests(np.random.default_rng(1))


def rng() -> np.random.Generator:
    return np.random.default_rng(2)


def answering(seconds: float) -> Callable[[Exchange], float]:
    return lambda _: seconds


def drive(made: Flow, service: Callable[[Exchange], float], duration: float = inf) -> list[Exchange]:
    """All exchanges in order of being due, of a server that takes so long and says ids 7, 8, … of its own."""

    class Server:
        async def stream(self, exchange: Exchange) -> None:
            exchange.sent = asyncio.get_running_loop().time()
            await asyncio.sleep(abs(service(exchange)))
            if service(exchange) < 0:
                raise Fault(Outcome.STATUS, "503")
            exchange.chunk(asyncio.get_running_loop().time(), exchange.request.output_len)
            exchange.answer = list(range(7, 7 + exchange.request.output_len))

    async def work(loop: VirtualLoop) -> list[Exchange]:
        ended: list[Exchange] = []
        driver = Driver(Server(), ended.append, follow=made.follow, duration=duration, now=loop.time)
        await driver.run(made.offsets, made.requests, 0.0)
        return sorted(ended, key=lambda exchange: exchange.due)

    return in_virtual_time(work)


# ── closed ──


def test_each_user_sends_a_think_time_after_its_last_answer_and_takes_the_next_prompt() -> None:
    made = flow.closed_loop([0.0, 1.0], requests(), Always(3.0), rng(), 6)
    ended = drive(made, answering(2.0))
    assert [exchange.due for exchange in ended] == pytest.approx([0.0, 1.0, 5.0, 6.0, 10.0, 11.0])
    assert [exchange.request.index for exchange in ended] == [0, 1, 2, 3, 4, 5]
    assert [exchange.request for exchange in ended] == made.known
    assert made.total == 6


def test_a_closed_loop_never_has_more_than_its_users_in_flight() -> None:
    ended = drive(flow.closed_loop([0.0] * 4, requests(), Exponential(1.0), rng(), 200), answering(0.7))
    events = sorted([(e.due, 1) for e in ended] + [(e.ended or 0, -1) for e in ended], key=lambda event: event)
    assert max(np.cumsum([change for _, change in events])) <= 4
    assert len(ended) == 200


def test_a_closed_loop_without_a_count_goes_on_until_the_duration_and_its_last_answers_end() -> None:
    made = flow.closed_loop([0.0, 0.5], requests(), Always(0.0), rng(), None)
    ended = drive(made, answering(1.0), duration=2000.0)
    assert made.total is None
    assert len(ended) == 4000, "more than are drawn beforehand"
    assert [e.request.index for e in ended] == list(range(4000))
    assert max(e.due for e in ended) < 2000
    assert max(e.ended or 0 for e in ended) == pytest.approx(2000.5)


def test_after_a_failure_a_user_pauses_before_the_next_request() -> None:
    ended = drive(flow.closed_loop([0.0], requests(), Always(0.0), rng(), 3), answering(-1.0))
    assert [exchange.due for exchange in ended] == pytest.approx([0.0, 1.1, 2.2])
    assert {exchange.outcome for exchange in ended} == {Outcome.STATUS}


def test_all_users_begin_however_many_there_are() -> None:
    made = flow.closed_loop(np.linspace(0, 1, 3000, endpoint=False), requests(), Always(1.0), rng(), None)
    assert len(made.offsets) == len(made.requests) == 3000
    assert made.offsets[-1] == pytest.approx(2999 / 3000)


def test_the_clients_own_delay_after_an_answer_is_lateness_and_not_a_later_due() -> None:
    class Busy:
        async def stream(self, exchange: Exchange) -> None:
            exchange.sent = asyncio.get_running_loop().time()
            await asyncio.sleep(1.0)
            exchange.chunk(asyncio.get_running_loop().time(), 2)
            await asyncio.sleep(0.05)  # the task wakes late

    async def work(loop: VirtualLoop) -> list[Exchange]:
        ended: list[Exchange] = []
        made = flow.closed_loop([0.0], requests(), Always(0.0), rng(), 3)
        await Driver(Busy(), ended.append, follow=made.follow, now=loop.time).run(made.offsets, made.requests, 0.0)
        return ended

    ended = in_virtual_time(work)
    assert [exchange.due for exchange in ended] == pytest.approx([0.0, 1.0, 2.05])
    assert [exchange.lateness for exchange in ended] == pytest.approx([0.0, 0.05, 0.05])


def test_fewer_prompts_than_users_leave_the_rest_without() -> None:
    made = flow.closed_loop([0.0, 1.0, 2.0], requests(), Always(1.0), rng(), 2)
    assert (list(made.offsets), made.total) == ([0.0, 1.0], 2)


# ── conversations ──


def conversations(turns: int, count: int | None = None, starts: tuple[float, ...] = (0.0, 10.0)) -> Flow:
    own = requests()
    return flow.sessions(starts, own, own, Constant(turns), Always(3.0), rng(), count)


def test_turns_follow_on_their_answers_and_hold_all_that_was_said() -> None:
    made = conversations(3)
    said = [list(cast("array[int]", request.prompt)) for request in made.known]
    ended = drive(made, answering(2.0))
    first = [exchange for exchange in ended if exchange.request.session == 0]
    assert [exchange.due for exchange in first] == pytest.approx([0.0, 5.0, 10.0])
    assert [exchange.request.turn for exchange in first] == [0, 1, 2]
    prompts = [list(cast("array[int]", exchange.request.prompt)) for exchange in first]
    assert prompts == [said[0], [*said[0], 7, 8, *said[1]], [*said[0], 7, 8, *said[1], 7, 8, *said[2]]]
    assert [exchange.request.input_len for exchange in first] == [3, 8, 13]
    assert len(ended) == 6
    assert made.total == 6


def test_a_count_cuts_the_last_conversation() -> None:
    made = conversations(3, count=4)
    assert [(request.session, request.turn) for request in made.known] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len(drive(made, answering(0.1))) == 4


def test_turns_that_would_come_after_the_end_are_not_sent() -> None:
    ended = drive(conversations(3), answering(2.0), duration=12.0)
    assert sorted((e.request.session, e.request.turn) for e in ended) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_failed_turn_does_not_end_its_conversation_and_a_stand_in_keeps_its_length() -> None:
    ended = drive(conversations(2, starts=(0.0,)), lambda exchange: -1.0 if exchange.request.turn == 0 else 1.0)
    assert [exchange.outcome for exchange in ended] == [Outcome.STATUS, Outcome.OK]
    assert ended[1].request.input_len == 3 + 2 + 3


def test_stand_ins_of_different_turns_differ_so_that_they_share_nothing() -> None:
    made = flow.sessions([0.0, 0.0], requests(40, 30), requests(40, 30), Constant(2), Always(1.0), rng(), None)
    prompts = [Exchange(request, 0.0, outcome=Outcome.OK) for request in made.requests]
    one, other = (next_turn(exchange, made.known[1]).prompt[40:70] for exchange in prompts)
    assert one != other
    assert next_turn(prompts[0], made.known[1]) == next_turn(prompts[0], made.known[1])


def test_a_conversation_in_messages_gets_the_answer_as_the_assistants() -> None:
    asked, turn = ({"role": "user", "content": "one?"},), ({"role": "user", "content": "two?"},)
    before = Exchange(Request(0, asked, 5, session=0), 0.0, answer="ONE.", outcome=Outcome.OK)
    following = next_turn(before, Request(1, turn, 5, text_len=9, session=0, turn=1))
    assert following.prompt == (*asked, {"role": "assistant", "content": "ONE."}, *turn)
    assert following.text_len is None


def test_later_turns_may_come_from_elsewhere() -> None:
    made = flow.sessions([0.0], requests(30), requests(5), Constant(3), Always(1.0), rng(), None)
    assert [(request.index, request.input_len) for request in made.known] == [(0, 30), (1, 5), (2, 5)]


def test_after_a_failure_a_conversation_pauses() -> None:
    own = requests()
    made = flow.sessions([0.0], own, own, Constant(3), Always(0.0), rng(), None)
    assert [exchange.due for exchange in drive(made, answering(-1.0))] == pytest.approx([0.0, 1.1, 2.2])


def test_a_failed_turn_in_text_has_filler_words_for_its_answer() -> None:
    before = Exchange(Request(0, "one?", 3, session=0), 0.0, outcome=Outcome.TIMEOUT)
    assert next_turn(before, Request(1, " two?", 3, session=0, turn=1)).prompt == "one? w0 w0 w0 two?"


def test_a_conversation_in_text_goes_on_after_its_answer() -> None:
    before = Exchange(Request(0, "one?", 5, session=0), 0.0, answer=" ONE.", outcome=Outcome.OK)
    assert next_turn(before, Request(1, " two?", 5, session=0, turn=1)).prompt == "one? ONE. two?"


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
def test_every_turn_of_every_conversation_is_sent_once(turns: int, count: int, seed: int) -> None:
    own = np.random.default_rng(seed)
    starts = np.cumsum(own.exponential(1.0, 40)).tolist()
    made = flow.sessions(starts, requests(), requests(), Uniform(1, turns), Exponential(2.0), own, count)
    ended = drive(made, answering(0.5))
    assert sorted(e.request.index for e in ended) == list(range(count))
    for session in {e.request.session for e in ended}:
        own_turns = [e for e in ended if e.request.session == session]
        assert [e.request.turn for e in own_turns] == list(range(len(own_turns)))


# ── think times ──


@pytest.mark.parametrize(
    ("think", "mean", "cv"),
    [
        (Exponential(2.0), 2.0, 1.0),
        (Lognormal(3.0, 0.5), 3.0, 0.5),
        (Between(1.0, 5.0), 3.0, (4 / 12**0.5) / 3),
        (Always(1.5), 1.5, 0.0),
    ],
)
def test_think_times_have_their_mean_and_cv(think: Exponential, mean: float, cv: float) -> None:
    """Within 4 standard errors of 20,000 draws; for the CV of a lognormal of 0.5 its own error is about 0.006."""
    own = np.random.default_rng(5)
    drawn = np.array([think.draw(own) for _ in range(20_000)])
    assert think.mean == mean
    assert drawn.mean() == pytest.approx(mean, abs=4 * mean * cv / 20_000**0.5 + 1e-12)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, abs=0.025 if cv else 1e-12)
    assert drawn.min() >= 0
