"""What exchanges come to: rates over their window, and hits that what was sent before explains."""

import io
from array import array
from typing import Any

import pytest

from loadgen.exchange import Exchange, Outcome, Request
from loadgen.histogram import IntervalLog
from loadgen.tally import Tally


def totals(*exchanges: Exchange, window: tuple[float, float] = (0.0, 100.0)) -> dict[str, Any]:
    tally = Tally("spread", window)
    tally.begin(lambda metric: IntervalLog(io.StringIO(), metric, 0.0))
    for exchange in exchanges:
        assert exchange.ended is not None
        tally.add(exchange, exchange.ended)
    return tally.totals(None, window[1] - window[0])


def exchange(
    ended: float = 1.0, *, asked: int = 100, server: int = 100, cached: int | None = 0, shared: int | None = 0
) -> Exchange:
    made = Exchange(Request(0, [1] * asked, 2), 0.0, ready=0.0, sent=0.0, ended=ended, outcome=Outcome.OK)
    made.at, made.tokens = array("d", [0.5, ended]), array("q", [1, 2])
    made.input_tokens, made.cached_tokens, made.shared = server, cached, shared
    return made


def test_rates_are_of_what_ended_in_the_window_and_counts_of_all() -> None:
    found = totals(*(exchange(ended) for ended in (1.0, 5.0, 7.0, 9.0)), window=(4.0, 8.0))
    assert found["throughput"] == {
        "requests_per_s": 2 / 4, "input_tokens_per_s": 200 / 4, "output_tokens_per_s": 4 / 4
    }  # fmt: skip
    assert found["counts"]["ok"] == found["metrics"]["ttft"]["count"] == 4


@pytest.mark.parametrize(
    ("why", "made", "unexplained"),
    [
        ("nothing was shared, and ids have no template", exchange(cached=63), 63),
        ("all of it had been sent before", exchange(cached=63, shared=63), 0),
        ("a template of the server's own", exchange(asked=100, server=120, cached=60), 0),
        ("more than any template", exchange(asked=100, server=120, cached=90), 90),
        ("words of four tokens each", exchange(asked=100, server=430, cached=320, shared=70), 0),
        ("nobody knows what is shared", exchange(cached=90, shared=None), 0),
        ("the server does not tell", exchange(cached=None), 0),
    ],
)
def test_hits_beyond_what_was_sent_before_are_unexplained(why: str, made: Exchange, unexplained: int) -> None:
    assert totals(made)["prompts"]["cache"]["unexplained_tokens"] == unexplained, why


def test_lengths_are_compared_where_both_sides_know_them() -> None:
    found = totals(exchange(server=103), exchange(), exchange(server=98))["prompts"]["lengths"]
    assert found == {"requests": 3, "differ": 2, "most": 3, "asked_tokens": 300, "server_tokens": 301}


def test_what_was_cancelled_before_it_left_is_told_apart() -> None:
    waiting = Exchange(Request(0, [1], 1), 0.0, ended=1.0, outcome=Outcome.CANCELLED)
    under_way = Exchange(Request(1, [1], 1), 0.0, ready=0.0, sent=0.0, ended=1.0, outcome=Outcome.CANCELLED)
    found = totals(waiting, under_way)
    assert (found["faults"], found["unsent"]) == ({"cancelled": 2}, 1)


def test_the_parts_of_the_ttft_are_spans_of_one_clock_each_and_add_up_to_ours() -> None:
    told = [exchange() for _ in range(3)]
    for number, own in enumerate(told[:2]):
        own.server_ttft, own.server_span = 0.25 + 0.125 * number, 0.375 + 0.0625 * number
    assert [own.transport for own in told] == [0.5 - 0.375, 0.5 - 0.4375, None]
    ways = totals(*told)["ways"]
    assert ways == {
        "requests": 2,
        "ttft_service": 0.5,
        "server_ttft": 0.3125,
        "handed_on": 0.09375,
        "transport": 0.09375,
    }
    assert ways["server_ttft"] + ways["handed_on"] + ways["transport"] == ways["ttft_service"]
    assert totals(exchange())["ways"] is None
