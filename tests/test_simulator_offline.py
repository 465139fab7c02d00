"""The simulator in process: SGLang's interface, the scheduler's own times, fixed batches by the model alone."""

import asyncio
import json
import urllib.request
from typing import Any

import numpy as np
import pytest
from serving import FAST, simulator
from virtual import VirtualLoop, in_virtual_time

from loadgen.simulator.batch import Runner
from loadgen.simulator.engine import answer
from loadgen.simulator.offline import Engine

STEP_TIME = {"prefill_base": 1.0, "prefill_per_token": 0.01, "prefill_per_context": 0.0, "decode_base": 0.5}
STEP_TIME |= {"decode_per_sequence": 0.1, "decode_per_context": 0.001, "graph_miss": 0.0}
IDS = [[1, 2, 3, 4], [5, 6, 7, 8]]


def expected(ids: list[int], n: int) -> list[int]:
    said = answer(np.array(ids, np.int64), 32000, 0)
    return [next(said) for _ in range(n)]


def test_all_at_once_are_answered_at_the_ends_of_the_schedulers_steps() -> None:
    """One prefill of 8 tokens, 1.08 s; then decode steps of two sequences with 8 and 10 tokens in the pool."""

    async def work(loop: VirtualLoop) -> list[list[tuple[float, int]]]:
        engine = Engine(now=loop.time, step_time=STEP_TIME)

        async def one(ids: list[int]) -> list[tuple[float, int]]:
            outputs: Any = await engine.async_generate(
                input_ids=ids, sampling_params={"max_new_tokens": 3}, stream=True
            )
            return [(loop.time(), output["meta_info"]["completion_tokens"]) async for output in outputs]

        came = await asyncio.gather(*map(one, IDS))
        engine.shutdown()
        return came

    decode = (0.5 + 0.2 + 0.008, 0.5 + 0.2 + 0.010)
    times = [1.08, 1.08 + decode[0], 1.08 + decode[0] + decode[1]]
    for own in in_virtual_time(work):
        assert [at for at, _ in own] == pytest.approx(times)
        assert [tokens for _, tokens in own] == [1, 2, 3]


def test_answers_are_those_of_the_model_and_the_whole_one_comes_where_no_stream_is_asked_for() -> None:
    async def work(loop: VirtualLoop) -> Any:
        engine = Engine(now=loop.time, step_time=STEP_TIME)
        whole = await engine.async_generate(input_ids=IDS[0], sampling_params={"max_new_tokens": 5})
        assert engine.flush_cache().success
        engine.shutdown()
        return whole

    whole = in_virtual_time(work)
    assert whole["output_ids"] == expected(IDS[0], 5)
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert whole["meta_info"]["prompt_tokens"] == 4


def test_whoever_stops_reading_gives_the_place_back() -> None:
    async def work(loop: VirtualLoop) -> int:
        engine = Engine(now=loop.time, step_time=STEP_TIME)
        outputs: Any = await engine.async_generate(
            input_ids=IDS[0], sampling_params={"max_new_tokens": 100}, stream=True
        )
        async for _ in outputs:
            break
        await outputs.aclose()
        aborted = engine._engine.scheduler.totals.aborted
        engine.shutdown()
        return aborted

    assert in_virtual_time(work) == 1


def test_a_stream_that_nobody_reads_holds_no_place() -> None:
    async def work(loop: VirtualLoop) -> int:
        engine = Engine(now=loop.time, step_time=STEP_TIME)
        outputs: Any = await engine.async_generate(input_ids=IDS[0], stream=True)
        await outputs.aclose()
        engine.shutdown()
        return engine._engine.scheduler.totals.requests

    assert in_virtual_time(work) == 0


def test_a_flush_is_refused_while_a_request_runs_and_the_next_is_cold_only_after_one() -> None:
    async def work(loop: VirtualLoop) -> list[Any]:
        engine = Engine(now=loop.time, step_time=STEP_TIME)

        async def cached() -> int:
            whole: Any = await engine.async_generate(input_ids=IDS[0], sampling_params={"max_new_tokens": 2})
            tokens: int = whole["meta_info"]["cached_tokens"]
            return tokens

        running = asyncio.create_task(cached())
        await asyncio.sleep(0.1)
        told = [engine.flush_cache().success, await running, await cached(), engine.flush_cache().success]
        told.append(await cached())
        engine.shutdown()
        return told

    assert in_virtual_time(work) == [False, 0, 3, True, 0]


def test_in_process_says_what_is_said_over_http() -> None:
    """The same ids and text, and of an engine that has done nothing the same server_info and no moments yet."""
    said: list[Any] = []
    with simulator(*FAST, "--random-seed", "3") as (url, _):
        for path in ("server_info", "v1/loads"):
            with urllib.request.urlopen(f"{url}/{path}", timeout=10) as answer:
                said.append(json.load(answer))
        for ids in IDS:
            body = json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": 6}}).encode()
            with urllib.request.urlopen(f"{url}/generate", body, timeout=10) as answer:
                said.append(json.load(answer))
    info, loads, *answers = said
    step_time = info["simulator"]["step_time"]

    async def work(loop: VirtualLoop) -> None:
        engine = Engine(now=loop.time, random_seed=3, step_time=step_time)
        own = engine.get_server_info()
        for part in (info, own):
            part["simulator"].pop("max_late")
        assert own == info
        for ids, answered in zip(IDS, answers, strict=True):
            ours: Any = await engine.async_generate(input_ids=ids, sampling_params={"max_new_tokens": 6})
            assert (ours["output_ids"], ours["text"]) == (answered["output_ids"], answered["text"])
            assert ours["meta_info"].keys() == answered["meta_info"].keys()
        engine.shutdown()

    in_virtual_time(work)
    assert loads["loads"][0]["decode_moments"] is None, "SGLang's word for none yet"


def test_a_prompt_that_can_never_fit_and_an_unknown_argument_are_refused() -> None:
    async def work(loop: VirtualLoop) -> None:
        engine = Engine(now=loop.time, max_total_tokens=10)
        with pytest.raises(ValueError, match="can never fit a pool of 10 tokens"):
            await engine.async_generate(input_ids=IDS[0], sampling_params={"max_new_tokens": 9})

    in_virtual_time(work)
    with pytest.raises(ValueError, match="does not know magic"):
        Engine(magic=1)
    with pytest.raises(ValueError, match="does not know magic"):
        Runner(magic=1)
    with pytest.raises(ValueError, match="the step-time model has no decode"):
        Engine(step_time={"decode": 0.1})


def test_it_says_of_itself_what_the_server_would() -> None:
    info = Engine(max_running_requests=3, disable_radix_cache=True).get_server_info()
    live = {info["internal_states"][0].pop("last_gen_throughput")}
    live |= {info["simulator"].pop("late_steps"), info["simulator"].pop("max_late")}
    assert live == {0}
    assert (info["max_running_requests"], info["disable_radix_cache"], info["attention_backend"]) == (
        3,
        True,
        "simulated",
    )
    assert info == Runner(max_running_requests=3, disable_radix_cache=True).info()


def test_a_fixed_batch_takes_as_long_as_the_model_says_and_answers_as_it_does() -> None:
    slept: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    runner = Runner(now=lambda: clock[0], sleep=sleep, step_time=STEP_TIME)
    tokens = [runner.prefill(IDS), runner.decode(), runner.decode()]
    assert slept == pytest.approx([1.08, 0.5 + 0.2 + 0.008, 0.5 + 0.2 + 0.010])
    assert [list(own) for own in zip(*tokens, strict=True)] == [expected(ids, 3) for ids in IDS]
    runner.clear()
    assert runner.prefill([[9]]) == expected([9], 1)
    assert (runner.pool, runner.max_batch) == (65536, 64)
