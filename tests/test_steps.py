"""What the scheduler did in a window: on a real server's log against sums over its text, and on lines made by hand."""

import json
import re
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.events import Decode, Event, Prefill, Retraction
from loadgen.telemetry.serverlog import ServerLog
from loadgen.telemetry.steps import as_line, from_line, summary

GOLDEN = Path(__file__).parent / "golden"
TEXT = (GOLDEN / "server_log.txt").read_text()


def prefill(at: float, new: int = 100, cached: int = 0, running: int = 0, queued: int = 0, rank: str = "") -> Prefill:
    return Prefill(at, 1, new, cached, 0.5, running, queued, 0, False, "cuda graph", 10.0, None, rank)


def decode(
    at: float, running: int, took: float = 0.1, *, usage: float = 0.5, queued: int = 0, rank: str = ""
) -> Decode:
    """A line whose step took so many seconds by the server's clock."""
    return Decode(at, running, None, usage, True, "cuda graph", running / took, queued, None, None, rank)


def figures(
    events: Sequence[Event], interval: int | None = 1, pool: int | None = 1000, **window: float
) -> dict[str, Any]:
    return summary(events, window.get("begin", 0.0), window.get("end", 100.0), interval, pool)


@pytest.fixture(scope="module")
def real() -> list[Event]:
    return ServerLog().feed(TEXT)


def test_a_real_log_accounts_for_every_token(real: list[Event]) -> None:
    """What was asked of that server, by hand: see golden/README.md. Each answer's first token is of its prefill."""
    found = summary(real, real[0].at, real[-1].at, 1, 4096)
    assert found["new_tokens"] + found["cached_tokens"] == 11 + 1 + 16 + 32 + 4 * 200
    assert found["decode_tokens"] == (8 - 1) + (8 - 1) + (64 - 1) + 4 * (200 - 1)
    assert found["new_seqs"] == 1 + 1 + 1 + 1 + 7  # 800 tokens in chunks of 256: three chunks have the end of a prompt
    assert (found["prefill_steps"], found["decode_lines"]) == (8, 7 + 7 + 63 + 199)
    assert found["pool_turnover"] == (860 + 873) / 4096
    assert (found["running"]["peak"], found["queued"]["peak"], found["usage"]["peak"]) == (4, 1, 0.39)
    assert found["prefill_tokens"] == {"p50": 32, "max": 256}
    assert found["hit_rate"] == 0.0
    assert found["reason"] == {}


def test_a_real_servers_steps_take_what_its_log_says(real: list[Event]) -> None:
    """The second implementation goes over the text; and 198 steps of four fill the seconds their stamps span."""
    lines = [line for line in TEXT.splitlines() if " batch, #" in line]
    rates: dict[str, list[float]] = {"1": [], "4": []}
    for last, line in pairwise(lines):
        if "Decode" in last and "Decode" in line:
            running, rate = re.findall(r"#running-req: (\d+).*gen throughput \(token/s\): ([\d.]+)", line)[0]
            rates[running].append(float(rate))
    found = summary(real, real[0].at, real[-1].at, 1)
    for running, seen in rates.items():
        step_s = statistics.median(int(running) / rate for rate in seen)
        assert found["by_running"][running]["step_s"] == pytest.approx(step_s, abs=1e-6)
    assert found["by_running"]["4"] | {"step_s": 0} == {"steps": 199, "graph": 0, "step_s": 0}
    assert sum(4 / rate for rate in rates["4"]) == pytest.approx(4.0, abs=1.0)  # 21:46:31 to 21:46:35
    seconds = {running: sum(int(running) / rate for rate in seen) for running, seen in rates.items()}
    mean = (seconds["1"] + 4 * seconds["4"]) / (seconds["1"] + seconds["4"])
    assert found["running"]["mean"] == pytest.approx(mean)


def test_retracted_requests_are_prefilled_once_more() -> None:
    """12 prompts of 48 and a probe's one token; what was retracted comes back with what it had generated."""
    events = ServerLog().feed((GOLDEN / "server_log_retraction.txt").read_text())
    found = summary(events, events[0].at, events[-1].at, 1)
    assert found["retractions"] == {"events": 2, "requests": 2}
    assert found["new_tokens"] == 1 + 12 * 48 + 134 + (48 + 109)  # 134 and 109 were gained; 48 had stayed cached
    assert found["usage"]["peak"] == 1.0


def test_a_step_is_timed_only_where_nothing_stands_between_two_lines() -> None:
    thrown = Retraction(4.0, 1, 10, 0.1, 0.9)
    events: list[Event] = [
        prefill(1.0), decode(1.1, 4, 9.0),  # the 9 s have the prefill and an idle time in them
        decode(1.2, 4, 0.1), decode(1.3, 4, 0.2), decode(1.6, 4, 0.3), decode(1.7, 3, 0.05),
        thrown, decode(5.0, 3, 7.0),
    ]  # fmt: skip
    found = figures(events)
    assert found["by_running"] == {
        "3": {"steps": 2, "graph": 2, "step_s": 0.05},
        "4": {"steps": 4, "graph": 4, "step_s": 0.2},
    }
    assert found["running"] == {"mean": pytest.approx((4 * 0.6 + 3 * 0.05) / 0.65), "peak": 4}


def test_with_a_longer_interval_only_equal_batches_time_a_step() -> None:
    events = [decode(1.0, 4), decode(2.0, 4, 0.1), decode(3.0, 3, 0.5), decode(4.0, 3, 0.08)]
    found = figures(events, interval=40)
    assert [found["by_running"][n]["step_s"] for n in ("3", "4")] == [0.08, 0.1]
    assert figures(events)["by_running"]["3"]["step_s"] == pytest.approx(0.29)
    assert figures(events, interval=None)["by_running"] == found["by_running"]


def test_under_speculative_decoding_a_step_brings_more_tokens() -> None:
    line = Decode(2.0, 4, None, 0.5, True, "cuda graph", 100.0, 0, accept_len=2.5)
    found = figures([decode(1.0, 4), line])
    assert found["by_running"]["4"]["step_s"] == 4 * 2.5 / 100
    assert found["decode_tokens"] is None
    assert "speculative" in found["reason"]["decode_tokens"]


def test_queue_and_pool_are_held_from_line_to_line() -> None:
    """By hand: 2 waiting over [10, 12], 0 over [12, 13], 5 over [13, 20]; the line before the window counts."""
    events: list[Event] = [
        decode(9.0, 1, queued=2, usage=0.2), prefill(12.0, queued=0), decode(13.0, 1, queued=5, usage=0.1),
        decode(25.0, 1, queued=99),
    ]  # fmt: skip
    found = figures(events, begin=10.0, end=20.0)
    assert found["queued"] == {"mean": pytest.approx((2 * 2 + 0 * 1 + 5 * 7) / 10), "peak": 5}
    assert found["usage"] == {"mean": pytest.approx((0.2 * 2 + 0.5 * 1 + 0.1 * 7) / 10), "peak": 0.5}
    assert (found["prefill_steps"], found["decode_lines"]) == (1, 1)


def test_ranks_are_told_apart() -> None:
    """Each rank's decode line is followed by the other's; the mean queue is that of one rank."""
    events = [decode(at, 2, 0.1, queued=q, rank=r) for at in (0.0, 5.0) for r, q in (("DP0 TP0", 1), ("DP1 TP0", 3))]
    found = figures(events, end=10.0)
    assert found["ranks"] == ["DP0 TP0", "DP1 TP0"]
    assert found["by_running"] == {"2": {"steps": 4, "graph": 4, "step_s": 0.1}}
    assert found["queued"]["mean"] == 2.0
    assert found["decode_tokens"] == 8


def test_what_cannot_be_had_is_null_and_says_why() -> None:
    found = figures([], interval=None, pool=None)
    assert found["by_running"] == {}
    nulls = {
        key for key, value in found.items() if value is None or (isinstance(value, dict) and None in value.values())
    }
    assert nulls - {"decode_log_interval"} == set(found["reason"])
    assert figures([prefill(1.0, new=60, cached=20)], interval=40)["reason"] == {
        "decode_tokens": "decode_log_interval is 40: only with 1 has every step its line",
        "pool_turnover": "decode_tokens is not known",
        "running": "no decode step whose time is known",
    }
    assert figures([prefill(1.0, new=60, cached=20)], pool=None)["reason"]["pool_turnover"].startswith(
        "the pool's size"
    )
    assert figures([prefill(1.0, new=60, cached=20)])["hit_rate"] == 0.25
    lonely = figures([decode(1.0, 4)])
    assert lonely["by_running"]["4"]["step_s"] is None
    assert "step_s" in lonely["reason"]


@pytest.mark.parametrize(("sizes", "p50"), [((9, 1, 4, 7), 4), ((9, 1, 4), 4), ((9,), 9)])
def test_the_median_of_prefill_tokens_is_one_of_them(sizes: tuple[int, ...], p50: int) -> None:
    found = figures([prefill(1.0, new=n) for n in sizes])
    assert found["prefill_tokens"] == {"p50": p50, "max": 9}


def test_what_the_cache_had_is_not_written_again() -> None:
    found = figures([prefill(1.0, new=60, cached=900), decode(2.0, 4)], pool=128)
    assert found["pool_turnover"] == (60 + 4) / 128


def test_only_steps_in_the_window_count_but_the_line_before_it_begins_one() -> None:
    events = [decode(1.0, 2, 0.1), decode(2.0, 4, 0.2), decode(3.0, 8, 0.4)]
    found = figures(events, begin=1.5, end=2.5)
    assert found["by_running"] == {"4": {"steps": 1, "graph": 1, "step_s": 0.2}}
    assert found["running"] == {"mean": 4.0, "peak": 4}


def test_a_window_without_length_does_not_divide_by_it() -> None:
    found = figures([decode(1.0, 4, queued=3)], begin=1.0, end=1.0)
    assert found["queued"] == {"mean": None, "peak": 3}


instants = st.floats(1.7e9, 1.9e9)
counts = st.integers(0, 10**6)
shares = st.floats(0, 1)
events = st.one_of(
    st.builds(Prefill, instants, counts, counts, counts, shares, counts, counts, st.none() | counts,
              st.none() | st.booleans(), st.just("npu graph"), st.none() | shares, st.none() | counts, st.text()),
    st.builds(Decode, instants, counts, st.none() | counts, shares, st.none() | st.booleans(), st.just("cuda graph"),
              shares, counts, st.none() | shares, st.none() | counts, st.text()),
    st.builds(Retraction, instants, counts, st.none() | counts, st.none() | shares, st.none() | shares, st.text()),
)  # fmt: skip


@given(events, instants)
def test_a_line_of_json_is_the_event(event: Event, start: float) -> None:
    line = json.loads(json.dumps(as_line(event, start)))
    again = from_line(line, start)
    assert again.at == pytest.approx(event.at, abs=2e-6, rel=0)
    assert as_line(again, start) | {"at": 0} == line | {"at": 0}
    assert type(again) is type(event)


def test_a_line_of_json_in_full() -> None:
    assert as_line(Retraction(1000.25, 2, 10, 0.5, 0.75, "TP0"), 1000.0) == {
        "at": 0.25, "kind": "retraction", "requests": 2, "gained": 10, "ratio_before": 0.5, "ratio_after": 0.75,
        "rank": "TP0",
    }  # fmt: skip
