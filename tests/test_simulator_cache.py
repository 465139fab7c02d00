"""The scheduler over its prefix cache, in virtual time and over HTTP: conservation, rules by hand, what it tells."""

import asyncio
import json
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from serving import FAST, simulator
from test_radix import contents

from loadgen.simulator.engine import Engine, HitRate
from loadgen.simulator.scheduler import Limits, Scheduler, Step
from loadgen.simulator.sequence import Sequence, Stage
from loadgen.simulator.settings import Settings
from loadgen.simulator.status import Status
from loadgen.simulator.steptime import StepTime


def asking(prompt: list[int], max_new_tokens: int, submitted: float = 0.0, says: int = 1000) -> Sequence:
    """A sequence that is answered with `says`, `says` + 1 and so on."""
    return Sequence(np.array(prompt, np.int64), max_new_tokens, submitted, count(says))


def one_by_one(scheduler: Scheduler, *sequences: Sequence) -> list[Step]:
    """Each to its end before the next comes."""
    steps: list[Step] = []
    for sequence in sequences:
        scheduler.submit(sequence)
        while step := scheduler.next_step(sequence.submitted):
            scheduler.complete(step)
            steps.append(step)
    return steps


def test_a_prompt_that_comes_again_is_prefilled_with_its_last_token_only() -> None:
    scheduler, model = Scheduler(Limits(), StepTime()), StepTime()
    prompt = list(range(100))
    first, again, end = one_by_one(scheduler, asking(prompt, 1), asking(prompt, 1), asking([*prompt, 100], 1))
    assert (first.new, first.cached, first.seconds) == ([100], 0, model.prefill([(100, 0)]))
    assert (again.new, again.cached, again.seconds) == ([1], 99, model.prefill([(1, 99)]))
    assert (end.new, end.cached) == ([1], 100), "the last token of the prompt was computed too"


def test_a_conversation_finds_all_of_its_history_but_the_last_token_that_was_said() -> None:
    scheduler = Scheduler(Limits(), StepTime())
    first = asking(list(range(50)), 8)
    one_by_one(scheduler, first)
    assert first.output_ids == list(range(1000, 1008))
    assert contents(scheduler.cache).keys() == {tuple(range(50)), (*range(50), *range(1000, 1007))}
    second = asking([*range(50), *first.output_ids, 7, 7, 7], 8)
    one_by_one(scheduler, second)
    assert (second.cached, second.input_len - second.cached) == (50 + 8 - 1, 1 + 3)


def test_two_alike_in_one_step_are_both_computed_and_one_copy_is_kept() -> None:
    scheduler = Scheduler(Limits(), StepTime())
    alike = [asking(list(range(40)), 3, says=1000), asking(list(range(40)), 3, says=2000)]
    for sequence in alike:
        scheduler.submit(sequence)
    step = scheduler.next_step(0.0)
    assert step is not None
    assert (step.new, step.cached) == ([40, 40], 0)
    scheduler.complete(step)
    assert (scheduler.used_tokens, scheduler.cache.total, scheduler.cache.evictable) == (40, 40, 0)
    while step := scheduler.next_step(0.0):
        scheduler.complete(step)
    assert (scheduler.used_tokens, scheduler.cache.evictable) == (0, 40 + 2 + 2)


def test_a_prompt_that_is_cut_is_in_the_cache_between_its_steps() -> None:
    """32 tokens a step: the last step of the first prompt has 4 of it, and the second finds the 96 before them."""
    scheduler = Scheduler(Limits(chunked_prefill_size=32), StepTime())
    cut, same = asking(list(range(100)), 1), asking(list(range(100)), 1)
    scheduler.submit(cut)
    scheduler.submit(same)
    steps = []
    while step := scheduler.next_step(0.0):
        scheduler.complete(step)
        steps.append((step.new, step.cached))
    assert steps == [([32], 0), ([32], 0), ([32], 0), ([4, 4], 96)]


def test_what_a_cut_prompt_found_is_told_once() -> None:
    scheduler = Scheduler(Limits(chunked_prefill_size=32), StepTime())
    steps = one_by_one(scheduler, asking(list(range(10)), 1), asking(list(range(60)), 1))
    assert [(step.new, step.cached) for step in steps] == [([10], 0), ([32], 10), ([18], 0)]


@pytest.mark.parametrize(("pool", "disabled"), [(90, False), (89, False), (100, True)])
def test_a_shared_prefix_counts_once_in_what_is_admitted(pool: int, disabled: bool) -> None:
    """70 tokens are promised to the first. The second asks for 80, of which it shares 60."""
    scheduler = Scheduler(Limits(max_total_tokens=pool, disable_radix_cache=disabled), StepTime())
    first, second = asking(list(range(60)), 10), asking(list(range(70)), 10)
    scheduler.submit(first)
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.complete(step)
    scheduler.submit(second)
    step = scheduler.next_step(1.0)
    assert step is not None
    if disabled or pool < 70 + 80 - 60:
        assert (step.kind, second.admitted) == ("decode", None)
    else:
        assert (step.kind, step.new, second.cached) == ("prefill", [10], 60)
        scheduler.complete(step)
        assert scheduler.used_tokens == 70


def test_a_match_is_not_evicted_to_make_room_for_what_matched_it() -> None:
    """Both are cached, 90 of 100 tokens, the one that matches less recently used; 30 more need the other's room."""
    scheduler = Scheduler(Limits(max_total_tokens=100), StepTime())
    one_by_one(scheduler, asking([1] * 50, 1), asking([2] * 40, 1))
    third = asking([1] * 50 + [3] * 30, 5)
    one_by_one(scheduler, third)
    assert third.cached == 50
    assert contents(scheduler.cache).keys() == {
        (1,) * 50,
        (1,) * 50 + (3,) * 30,
        (1,) * 50 + (3,) * 30 + (*range(1000, 1004),),
    }


def test_a_hot_prefix_stays_while_what_followed_it_goes() -> None:
    scheduler = Scheduler(Limits(max_total_tokens=120), StepTime())
    requests = [asking([*range(30), *[100 + n] * 20], 5) for n in range(20)]
    one_by_one(scheduler, *requests)
    assert [request.cached for request in requests] == [0] + [30] * 19
    kept = scheduler.cache.total
    assert kept + scheduler.cache.evicted == 30 + 20 * (20 + 4)
    assert 120 - 24 < kept <= 120, "evicted when room is needed and a leaf at a time"


def test_an_aborted_sequence_leaves_what_it_computed_and_holds_nothing() -> None:
    scheduler = Scheduler(Limits(chunked_prefill_size=32), StepTime())
    gone = asking(list(range(100)), 5)
    scheduler.submit(gone)
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.abort(gone)
    scheduler.complete(step)
    assert scheduler.next_step(step.end) is None
    assert (scheduler.used_tokens, scheduler.cache.evictable, scheduler.idle) == (0, 32, True)
    scheduler.flush()
    assert scheduler.available_tokens == scheduler.limits.max_total_tokens


def test_without_chunking_it_is_the_new_tokens_that_must_fit_the_step() -> None:
    scheduler = Scheduler(Limits(chunked_prefill_size=-1, max_prefill_tokens=64), StepTime())
    one_by_one(scheduler, asking(list(range(100)), 1))
    for prompt in ([7], list(range(100))):
        scheduler.submit(asking(prompt, 1))
    step = scheduler.next_step(0.0)
    assert step is not None
    assert (step.new, step.cached) == ([1, 1], 99)


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Limits, list[Sequence], set[int]]:
    """Prompts that share a lot, arrivals, and the sequences that are aborted at the step of that number."""
    limits = Limits(
        max_running_requests=draw(st.integers(1, 6)),
        max_total_tokens=draw(st.integers(45, 120)),
        chunked_prefill_size=draw(st.sampled_from([-1, 1, 7, 16])),
        max_prefill_tokens=draw(st.integers(1, 40)),
        disable_radix_cache=draw(st.sampled_from([False, False, True])),
    )
    sequence = st.builds(asking, PROMPTS, st.integers(1, 15), st.floats(0, 1), st.sampled_from([0, 1000]))
    return limits, draw(st.lists(sequence, min_size=1, max_size=20)), draw(st.sets(st.integers(0, 60), max_size=5))


@given(loads())
def test_the_pool_is_never_over_full_and_nothing_is_lost(load: tuple[Limits, list[Sequence], set[int]]) -> None:
    limits, sequences, aborts = load
    scheduler, pool, now = Scheduler(limits, StepTime()), limits.max_total_tokens, 0.0
    coming = sorted(sequences, key=lambda sequence: sequence.submitted)
    steps, inside = 0, list[Sequence]()
    while coming or not scheduler.idle:
        while coming and coming[0].submitted <= now:
            inside.append(coming.pop(0))
            scheduler.submit(inside[-1])
        if steps in aborts and inside:
            scheduler.abort(inside[steps % len(inside)])
        step = scheduler.next_step(now)
        if step is None:
            now = coming[0].submitted if coming else now
            continue
        steps += 1
        needed = sum(step.new) if step.kind == "prefill" else len(step.sequences)
        assert scheduler.available_tokens >= needed
        assert all(sequence.prefilled < sequence.input_len for sequence in step.sequences) == (step.kind == "prefill")
        scheduler.complete(step)
        now = step.end
        running = [sequence for sequence in inside if sequence.stage is Stage.RUNNING]
        own = [sequence.context - sequence.shared for sequence in running]
        runs = contents(scheduler.cache)
        in_tree = {end[:n] for end in runs for n in range(1, len(end) + 1)}
        assert min(own, default=0) >= 0
        assert len(in_tree) + sum(own) + scheduler.available_tokens == pool
        assert scheduler.available_tokens >= 0
        computed = [(tuple(s.computed_ids().tolist()), s.shared) for s in running]
        held = {tokens[:n] for tokens, shared in computed for n in range(1, shared + 1)}
        assert held <= in_tree
        assert scheduler.used_tokens == len(held) + sum(own)
        if limits.disable_radix_cache:
            assert not runs
    assert (scheduler.used_tokens, scheduler.cache.protected) == (0, 0)
    assert not any(contents(scheduler.cache).values())
    assert all(s.generated == s.max_new_tokens or s.aborted for s in sequences)
    totals = scheduler.totals
    if not totals.aborted:
        assert totals.prefill_tokens == totals.prompt_tokens - totals.cached_tokens


@given(st.lists(st.tuples(PROMPTS, st.integers(1, 5), st.integers(0, 1)), min_size=1, max_size=20))
def test_with_room_enough_the_hits_are_those_of_a_cache_without_an_end(asked: list[tuple[list[int], int, int]]) -> None:
    """One at a time, so that all that came before is there: the longest prefix, short of the last token, of anything
    that was computed."""
    sequences = [asking(prompt, n, says=says) for prompt, n, says in asked]
    one_by_one(Scheduler(Limits(max_running_requests=1, chunked_prefill_size=7), StepTime()), *sequences)
    computed: set[tuple[int, ...]] = {()}
    for (prompt, _, _), sequence in zip(asked, sequences, strict=True):
        assert sequence.cached == max(n for n in range(len(prompt)) if tuple(prompt[:n]) in computed)
        tokens = [*prompt, *sequence.output_ids[:-1]]
        computed |= {tuple(tokens[:n]) for n in range(len(tokens) + 1)}


def test_the_recent_hit_rate_forgets_after_fifteen_seconds() -> None:
    rate = HitRate()
    for start, cached, new in ((0.0, 0, 30), (10.0, 60, 30), (15.0, 90, 0 + 10)):
        rate.count(Step("prefill", start, 1.0, [], [new], cached, in_graph=False))
    assert rate.last == 0.9
    assert rate.recent == (60 + 90) / (90 + 100)


def test_the_waiting_tokens_are_told_less_what_the_cache_may_have_of_them() -> None:
    """The last 20 of a prompt that was cut are left to prefill once its first step has ended; of 101 waiting tokens a
    quarter is expected to be cached."""

    async def told(engine: Engine) -> int:
        answer = await Status(engine, Settings()).loads(make_mocked_request("GET", "/v1/loads"))
        assert isinstance(answer.body, bytes)
        tokens: int = json.loads(answer.body)["loads"][0]["num_waiting_uncached_tokens"]
        return tokens

    scheduler = Scheduler(Limits(chunked_prefill_size=32), StepTime())
    engine = Engine(scheduler, decode_log_interval=40)
    engine.hit_rate.recent = 0.25
    for length in (52, 101):
        scheduler.submit(asking([length] * length, 1))
    step = scheduler.next_step(0.0)
    assert step is not None
    scheduler.complete(step)
    assert asyncio.run(told(engine)) == 20 + 75


# ── over HTTP ──


def ask(url: str, body: dict[str, Any] | None = None) -> str:
    with urllib.request.urlopen(url, None if body is None else json.dumps(body).encode(), timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def generated(url: str, prompt: list[int] | str, n: int = 4) -> dict[str, Any]:
    key = "text" if isinstance(prompt, str) else "input_ids"
    answer: dict[str, Any] = json.loads(ask(f"{url}/generate", {key: prompt, "sampling_params": {"max_new_tokens": n}}))
    return answer


def test_the_next_turn_of_a_conversation_is_cached_in_every_api_and_a_flush_makes_it_cold() -> None:
    with simulator(*FAST, "--enable-cache-report") as (url, _):
        for flushed in (False, True):
            first = generated(url, [1, 2, 3])
            assert first["meta_info"]["cached_tokens"] == 0, flushed
            turn = [1, 2, 3, *first["output_ids"], 8, 9]
            asked = {"input_ids": turn, "sampling_params": {"max_new_tokens": 2}, "stream": True}
            metas = [json.loads(line[6:])["meta_info"] for line in ask(f"{url}/generate", asked).split("\n\n")[:2]]
            assert [meta["cached_tokens"] for meta in metas] == [3 + 4 - 1] * 2
            text = generated(url, "Once upon a time")["text"]
            assert generated(url, f"Once upon a time{text} and")["meta_info"]["cached_tokens"] == 4 + 4 - 1
            said = json.loads(ask(f"{url}/v1/completions", {"prompt": f"Once upon a time{text} and", "max_tokens": 1}))
            assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
            messages = [{"role": "system", "content": "be terse"}, {"role": "user", "content": "hello"}]
            said = json.loads(ask(f"{url}/v1/chat/completions", {"messages": messages, "max_tokens": 4}))
            assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            history = said["usage"]["total_tokens"]
            messages += [said["choices"][0]["message"], {"role": "user", "content": "go on"}]
            options = {"include_usage": True}
            chat = {"messages": messages, "max_tokens": 4, "stream": True, "stream_options": options}
            end = ask(f"{url}/v1/chat/completions", chat).split("\n\n")[-3]
            assert json.loads(end[6:])["usage"]["prompt_tokens_details"] == {"cached_tokens": history - 1}
            assert ask(f"{url}/flush_cache", {}).startswith("Cache flushed.\nPlease check backend logs")
            load = json.loads(ask(f"{url}/v1/loads"))["loads"][0]
            assert (load["num_used_tokens"], load["num_waiting_uncached_tokens"]) == (0, 0)


def test_what_the_server_tells_of_its_cache_adds_up(tmp_path: Path) -> None:
    arguments = ("--max-total-tokens", "60", "--chunked-prefill-size", "16")
    with simulator(*FAST, *arguments, log=tmp_path / "log") as (url, process):
        assert json.loads(ask(f"{url}/server_info"))["disable_radix_cache"] is False
        assert generated(url, list(range(30)), 3)["meta_info"]["cached_tokens"] == 0
        assert generated(url, [*range(29), 99], 3)["meta_info"]["cached_tokens"] == 29
        assert json.loads(ask(f"{url}/v1/loads"))["loads"][0]["cache_hit_rate"] == round(29 / 30, 4)
        generated(url, [5] * 40, 3)
        usage = json.loads(ask(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 1}))["usage"]
        assert usage["prompt_tokens_details"] is None, "told only where it is asked for, as in SGLang"
        text = ask(f"{url}/metrics")
        process.terminate()
        process.wait(timeout=10)
        log = (tmp_path / "log").read_text()
    found = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert found["sglang:cached_tokens_total"] == 29
    assert found["sglang:cache_hit_rate"] == 0
    assert found["sglang:kv_used_tokens"] == found["sglang:num_used_tokens"] == 0
    assert found["sglang:kv_available_tokens"] + found["sglang:kv_evictable_tokens"] == 60
    computed = (30 + 2) + (1 + 2) + (40 + 2) + 1
    assert found["sglang:evicted_tokens_total"] == computed - found["sglang:kv_evictable_tokens"] > 0
    assert "#new-seq: 1, #new-token: 1, #cached-token: 29, token usage: 0." in log
    assert log.count("#cached-token: 0") == 2 + 3 + 1, "a prompt that is cut does not find itself"


def test_a_disabled_cache_keeps_nothing() -> None:
    with simulator(*FAST, "--disable-radix-cache") as (url, _):
        assert json.loads(ask(f"{url}/server_info"))["disable_radix_cache"] is True
        assert [generated(url, [1, 2, 3])["meta_info"]["cached_tokens"] for _ in range(2)] == [0, 0]
        found = {s.name: s.value for f in text_string_to_metric_families(ask(f"{url}/metrics")) for s in f.samples}
    assert (found["sglang:kv_evictable_tokens"], found["sglang:kv_available_tokens"]) == (0, 65536)
