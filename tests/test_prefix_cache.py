"""The prefix cache as a run sees it: hits against what was sent before, and a warm one where a cold one was wanted."""

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import FAST, simulator
from test_run import calm
from test_traffic import WORKLOAD, run

# ── the prefix cache ──

SHARED = """\
[workload]
kind = "prefix"
num_prompts = 60
groups = 3
system_len = 200
question_len = 10
output_len = 2
[arrivals]
kind = "fixed"
rate = 60
[measure]
quantiles = ["p50"]
"""


def test_a_shared_prefix_hits_as_much_as_the_prompts_share(tmp_path: Path) -> None:
    with simulator(*FAST) as (url, _):
        _, data, _ = run(tmp_path, SHARED, "--target", url)
    cache = data["prompts"]["cache"]
    assert calm(data["verdict"]["reasons"]) == []
    assert data["target"]["cache_flushed"] is True
    assert cache["requests"] == 60
    assert cache["prompt_tokens"] == 60 * 210
    assert cache["shared_tokens"] >= 57 * 200
    assert cache["cached_tokens"] == cache["shared_tokens"]
    assert cache["unexplained_tokens"] == 0


@contextlib.contextmanager
def busy(url: str) -> Iterator[None]:
    """A long request keeps the server from flushing as long as this lasts."""
    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True}}
    over = threading.Event()

    def read() -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/generate", json.dumps(body).encode())) as answer:
            while not over.is_set():
                answer.readline()
                begun.set()

    begun = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    begun.wait(20)
    try:
        yield
    finally:
        over.set()
        reader.join()


def test_a_cache_that_was_to_be_cold_and_was_warm_makes_the_run_invalid(tmp_path: Path) -> None:
    slow = ("--step-time", "prefill_base=0.001", "prefill_per_token=0", "decode_base=0.01", "decode_per_sequence=0")
    with simulator(*slow, "--max-total-tokens", "90000") as (url, _):
        run(tmp_path, SHARED, "--target", url)
        with busy(url):
            code, data, _ = run(tmp_path, SHARED, "--target", url)
            _, fresh, _ = run(tmp_path, SHARED, "--target", url, "--seed", "7")
    assert code == 3
    (reason,) = calm(data["verdict"]["reasons"])
    assert reason.startswith("the prefix cache was warm: ")
    assert "could not be flushed" in reason
    assert data["target"]["cache_flushed"] is False
    assert calm(fresh["verdict"]["reasons"]) == [], "another seed has other prompts"
    assert fresh["target"]["cache_flushed"] is False


# ── closed loops and conversations over HTTP ──


def test_a_closed_loop_and_conversations_run_and_are_counted_as_they_come(tmp_path: Path) -> None:
    closed = '[arrivals]\nkind = "closed"\nusers = 4\nthink_time = 0.05\nstagger = 0.2\n'
    sessions = '[arrivals]\nkind = "sessions"\nstarts = { kind = "poisson", rate = 20 }\nturns = 4\nthink_time = 0.05\n'
    end = '[measure]\nduration = 0.8\nquantiles = ["p50"]\n'
    with simulator(*FAST, "--enable-cache-report") as (url, _):
        for api in ("generate", "chat"):
            _, data, record = run(tmp_path, WORKLOAD + closed + end, "--target", url, "--set", f"target.api={api}")
            assert calm(data["verdict"]["reasons"]) == []
            lines = list(record.requests())
            assert data["counts"]["scheduled"] == data["counts"]["ok"] == len(lines) > 15
            assert data["concurrency"]["peak"] <= 4
            assert data["window"] == [0.2, 0.8], "from when all users have begun"
            within = sum(0.2 <= line["ended"] <= 0.8 for line in lines)
            assert data["throughput"]["requests_per_s"] == pytest.approx(within / 0.6)
            assert max(line["due"] for line in lines) < 0.8
            _, data, record = run(tmp_path, WORKLOAD + sessions + end, "--target", url, "--set", f"target.api={api}")
            assert calm(data["verdict"]["reasons"]) == []
            lines = list(record.requests())
            assert data["counts"]["scheduled"] == data["counts"]["ok"] == len(lines) > 10
            later = [line for line in lines if line["turn"] == 3]
            assert data["conversations"] == {
                "turns": 4 * len({line["session"] for line in lines}),
                "turns_due": len(lines),
            }
            assert later
            if api == "generate":  # prompt and answer of three turns, but for the last token, are in the cache
                assert {line["cached_tokens"] for line in later} == {3 * (8 + 2) - 1}
                assert {line["shared_tokens"] for line in later} == {3 * (8 + 2)}
                assert {line["input_tokens"] for line in later} == {3 * (8 + 2) + 8}
            else:
                assert min(line["cached_tokens"] for line in later) > 0
