"""The in-process client over engines that are scripted, in virtual time."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
from virtual import VirtualLoop, in_virtual_time

from loadgen.client.engine import EngineClient
from loadgen.client.http import Timeouts
from loadgen.exchange import Exchange, Fault, Outcome, Prompt, Request, Sampling

IDS = array("i", [5, 6, 7])
PATIENT = Timeouts(connect=9, first_token=9, between_tokens=9, total=99)


def output(tokens: int, *, done: bool = False, prompt_tokens: int = 3, **meta: Any) -> dict[str, Any]:
    """What SGLang's Engine yields for a stream: cumulative ids, and the server's counts."""
    reason = {"type": "length", "length": tokens} if done else None
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "cached_tokens": 1, "finish_reason": reason}
    return {"text": "x" * tokens, "output_ids": list(range(tokens)), "meta_info": {"id": "r", **counts, **meta}}


class Scripted:
    """Yields outputs at given seconds after it was asked; keeps what it was asked."""

    def __init__(self, *script: tuple[float, dict[str, Any]]) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []

    async def async_generate(self, prompt: str | None, **asked: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append({"prompt": prompt, **asked})
        return self._outputs()

    async def _outputs(self) -> AsyncIterator[dict[str, Any]]:
        begun = asyncio.get_running_loop().time()
        for at, content in self.script:
            await asyncio.sleep(begun + at - asyncio.get_running_loop().time())
            yield content


def streamed(
    engine: Any, timeouts: Timeouts = PATIENT, prompt: Prompt = IDS, output_len: int = 3
) -> tuple[Exchange, Fault | None]:
    """The exchange of one request that was due at 0, and its fault."""
    exchange = Exchange(Request(0, prompt, output_len), due=0.0)

    async def work(loop: VirtualLoop) -> Fault | None:
        try:
            await EngineClient(engine, timeouts, loop.time).stream(exchange)
        except Fault as fault:
            return fault
        return None

    return exchange, in_virtual_time(work)


def test_chunks_are_stamped_as_they_come_out_and_counted_by_the_engines_own_count() -> None:
    engine = Scripted((0.5, output(1)), (0.75, output(3, done=True)))
    exchange, fault = streamed(engine)
    assert fault is None
    assert (list(exchange.at), list(exchange.tokens)) == ([0.5, 0.75], [1, 3])
    assert (exchange.sent, exchange.input_tokens, exchange.output_tokens, exchange.cached_tokens) == (0.0, 3, 3, 1)


def test_it_was_sent_when_the_engine_was_asked_and_not_when_it_was_due() -> None:
    exchange = Exchange(Request(0, IDS, 3), due=0.0)

    async def work(loop: VirtualLoop) -> None:
        await asyncio.sleep(0.25)
        await EngineClient(Scripted((0.5, output(3, done=True))), PATIENT, loop.time).stream(exchange)

    in_virtual_time(work)
    assert (exchange.sent, list(exchange.at)) == (0.25, [0.75])


def test_the_engine_is_asked_what_the_server_would_be() -> None:
    engine = Scripted((0.1, output(3, done=True)))
    streamed(engine)
    streamed(engine, prompt="some words")
    sampling = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 3, "ignore_eos": True}
    assert engine.asked == [
        {"prompt": None, "input_ids": [5, 6, 7], "sampling_params": sampling, "stream": True},
        {"prompt": "some words", "input_ids": None, "sampling_params": sampling, "stream": True},
    ]
    assert Sampling() == Sampling(0.0, 1.0, ignore_eos=True)


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        ([(0.1, output(1)), (0.2, output(2, done=True))], Outcome.TOKEN_MISMATCH, "3 output tokens were asked for, 2"),
        ([(0.1, output(1))], Outcome.TRUNCATED, "without a finish reason"),
        ([(0.1, {"error": {"message": "no more memory"}})], Outcome.SERVER_ERROR, "no more memory"),
        ([(0.1, {"meta_info": {}})], Outcome.PROTOCOL, "not of this API"),
        ([(10.0, output(3, done=True))], Outcome.TIMEOUT, "no first token"),
        ([(1.0, output(1)), (11.0, output(3, done=True))], Outcome.TIMEOUT, "no further token"),
    ],
)
def test_an_answer_that_is_not_whole_is_a_fault(
    script: list[tuple[float, dict[str, Any]]], kind: Outcome, says: str
) -> None:
    _, fault = streamed(Scripted(*script))
    assert fault is not None
    assert (fault.kind, says in fault.detail) == (kind, True), fault.detail


def test_the_whole_answer_has_its_own_limit() -> None:
    script = [(float(i), output(i + 1)) for i in range(20)]
    exchange, fault = streamed(Scripted(*script), Timeouts(9, 9, 9, total=5.5), output_len=20)
    assert fault is not None
    assert fault.kind is Outcome.TIMEOUT
    assert len(exchange.at) == 6


def test_a_prompt_that_the_engine_refuses_is_a_fault_with_its_words() -> None:
    class Refusing:
        async def async_generate(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
            raise ValueError("The input (9000 tokens) is longer than the model's context length (8192 tokens).")

    _, fault = streamed(Refusing())
    assert fault is not None
    assert (fault.kind, "longer than the model's context" in fault.detail) == (Outcome.STATUS, True)


def test_a_bug_of_the_engine_is_no_fault_of_the_request() -> None:
    class Broken:
        async def async_generate(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
            raise AssertionError("this is a bug")

    with pytest.raises(AssertionError, match="this is a bug"):
        streamed(Broken())
