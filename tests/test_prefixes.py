"""What a run had sent before: in the order of sending, over all classes, answers of conversations included."""

import asyncio
from array import array

from virtual import VirtualLoop, in_virtual_time

from loadgen.driver import Driver
from loadgen.exchange import Exchange, Message, Request
from loadgen.prefixes import Prefixes


class Answering:
    def __init__(self, answers: dict[int, list[int]]) -> None:
        self.answers = answers

    async def stream(self, exchange: Exchange) -> None:
        exchange.sent = asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        exchange.answer = self.answers.get(exchange.request.index)


def shared(
    offsets: list[float], requests: list[Request], answers: dict[int, list[int]] | None = None, *, unique: bool = False
) -> dict[int, int | None]:
    """By index what each request shared with what was sent before it."""

    async def work(loop: VirtualLoop) -> dict[int, int | None]:
        ended: list[Exchange] = []
        driver = Driver(Prefixes(Answering(answers or {}), unique=unique), ended.append, now=loop.time)
        await driver.run(offsets, requests, 0.0)
        return {exchange.request.index: exchange.shared for exchange in ended}

    return in_virtual_time(work)


def ids(*tokens: int) -> "array[int]":
    return array("i", tokens)


def test_what_is_sent_first_shares_nothing_whatever_its_index() -> None:
    requests = [Request(7, ids(1, 2, 3, 4), 1), Request(0, ids(1, 2, 3, 9), 1, traffic="other"), Request(1, ids(5), 1)]
    assert shared([0.0, 0.0, 0.5], requests) == {7: 0, 0: 3, 1: 0}


def test_the_answer_of_a_turn_has_been_sent_before_the_next() -> None:
    first = Request(0, ids(1, 2), 3, session=0)
    second = Request(1, ids(1, 2, 8, 8, 9), 1, session=0, turn=1)
    assert shared([0.0, 2.0], [first, second], {0: [8, 8]}) == {0: 0, 1: 4}
    assert shared([0.0, 0.5], [first, second], {0: [8, 8]}) == {0: 0, 1: 2}, "the answer had not come yet"


def test_of_texts_nobody_knows_unless_all_prompts_are_unique() -> None:
    talk: tuple[Message, ...] = ({"role": "user", "content": "a"},)
    requests = [Request(0, "a b", 1), Request(1, talk, 1), Request(2, ids(1, 2), 1), Request(3, ids(1, 2), 1)]
    assert shared([0.0] * 4, requests) == {0: None, 1: None, 2: 0, 3: 1}
    assert shared([0.0] * 4, requests, unique=True) == dict.fromkeys(range(4), 0)
