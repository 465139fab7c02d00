"""Fixed batches over a scripted runner whose steps take no time but the clock's own."""

import asyncio
from collections.abc import Sequence

import pytest

from loadgen.client.static import StaticClient
from loadgen.exchange import Exchange, Fault, Outcome, Request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Runner:
    """A prefill takes a second a prompt, a decode step 0.1 s; both are noted."""

    def __init__(self, clock: Clock, pool: int = 100, max_batch: int = 4) -> None:
        self.clock, self.pool, self.max_batch = clock, pool, max_batch
        self.did: list[str] = []

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        self.did.append(f"prefill {[list(prompt) for prompt in prompts]}")
        self.clock.now += len(prompts)
        return [0] * len(prompts)

    def decode(self) -> list[int]:
        self.did.append("decode")
        self.clock.now += 0.1
        return []

    def clear(self) -> None:
        self.did.append("clear")


def run(runner: Runner, size: int, *lengths: tuple[int, int]) -> tuple[list[Exchange], list[object], StaticClient]:
    """Requests of these input and output lengths, all at once: their exchanges, what ended each, and the client."""
    client = StaticClient(runner, size, runner.clock)
    exchanges = [Exchange(Request(i, [i] * n, out), due=0.0) for i, (n, out) in enumerate(lengths)]

    async def work() -> list[object]:
        return list(await asyncio.gather(*map(client.stream, exchanges), return_exceptions=True))

    try:
        return exchanges, asyncio.run(work()), client
    finally:
        client.close()


def test_a_batch_is_prefilled_at_once_and_decoded_until_its_longest_is_done() -> None:
    runner = Runner(Clock())
    exchanges, ended, client = run(runner, 2, (2, 3), (1, 1), (3, 2))
    assert ended == [None, None, None]
    assert runner.did == [
        *("prefill [[0, 0], [1]]", "decode", "decode", "clear"),
        *("prefill [[2, 2, 2]]", "decode", "clear"),
    ]
    assert [list(exchange.at) for exchange in exchanges] == [
        pytest.approx([2.0, 2.1, 2.2]),
        [2.0],
        pytest.approx([3.2, 3.3]),
    ]
    assert [list(exchange.tokens) for exchange in exchanges] == [[1, 2, 3], [1], [1, 2]]
    assert [exchange.sent for exchange in exchanges] == [0.0] * 3
    assert [(e.input_tokens, e.output_tokens, e.cached_tokens) for e in exchanges] == [
        (2, 3, None),
        (1, 1, None),
        (3, 2, None),
    ]
    figures = client.figures()
    assert (figures["fits"], figures["batch_size"], figures["batches"], figures["needs_tokens"]) == (True, 2, 2, 7)
    assert figures["prefill_s"] == {"count": 2, "mean": 1.5, "p50": 1.5, "max": 2.0}
    assert figures["decode_step_s"] == {"count": 3, "mean": 0.1, "p50": 0.1, "max": 0.1}


@pytest.mark.parametrize(
    ("size", "pool", "max_batch", "says"),
    [
        (3, 20, 4, "a batch of 3 does not fit: needs 21 of 20 tokens, 3 of 4 sequences"),
        (3, 99, 2, "a batch of 3 does not fit: needs 21 of 99 tokens, 3 of 2 sequences"),
    ],
)
def test_a_batch_that_does_not_fit_is_a_result(size: int, pool: int, max_batch: int, says: str) -> None:
    runner = Runner(Clock(), pool, max_batch)
    _, ended, client = run(runner, size, (5, 2), (5, 2), (5, 2))
    assert [(fault.kind, fault.detail) for fault in ended if isinstance(fault, Fault)] == [(Outcome.NO_ROOM, says)] * 3
    assert not runner.did
    assert client.figures() | {"prefill_s": None, "decode_step_s": None} == {
        "fits": False,
        "batch_size": 3,
        "batches": 0,
        "needs_tokens": 21,
        "pool_tokens": pool,
        "max_batch": max_batch,
        "prefill_s": None,
        "decode_step_s": None,
    }


def test_a_device_that_runs_out_of_memory_is_a_batch_that_does_not_fit() -> None:
    class Small(Runner):
        def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    runner = Small(Clock())
    _, ended, client = run(runner, 2, (1, 1))
    assert isinstance(ended[0], Fault)
    assert ended[0].kind is Outcome.NO_ROOM
    assert "2.00 GiB" in ended[0].detail
    assert (client.figures()["fits"], runner.did) == (False, ["clear"])


def test_any_other_error_of_the_runner_is_a_bug() -> None:
    class Broken(Runner):
        def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
            raise RuntimeError("shape mismatch")

    _, ended, _ = run(Broken(Clock()), 2, (1, 1), (1, 1))
    assert all(isinstance(error, RuntimeError) and str(error) == "shape mismatch" for error in ended)


def test_a_text_has_no_ids_to_run() -> None:
    client = StaticClient(Runner(Clock()), 2)
    with pytest.raises(Fault, match="takes token ids"):
        asyncio.run(client.stream(Exchange(Request(0, "words", 1), due=0.0)))
    client.close()


def test_figures_of_a_warm_up_can_be_forgotten() -> None:
    _, _, client = run(Runner(Clock()), 2, (1, 2))
    client.reset()
    assert client.figures()["decode_step_s"]["count"] == 0
