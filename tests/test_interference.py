"""Gaps told apart by injected prefills: worked by hand, and against every pair looked at one by one."""

import itertools
from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.exchange import Exchange, Outcome, Request
from loadgen.interference import Overlap
from loadgen.scenario.tables import Interference

ASKED = Interference(background="streams", injected="injected", full=2)


def stream(*at: float, traffic: str = "streams") -> Exchange:
    tokens = array("q", range(1, len(at) + 1))
    request = Request(0, [1], len(at), traffic=traffic)
    return Exchange(request, 0.0, sent=0.0, at=array("d", at), tokens=tokens, outcome=Outcome.OK)


def prefill(sent: float, first: float) -> Exchange:
    made = stream(first, traffic="injected")
    made.sent = sent
    return made


def test_a_gap_that_shares_time_with_a_prefill_is_overlapped_and_touching_is_not_sharing() -> None:
    overlap = Overlap(ASKED)
    for exchange in (stream(1.0, 2.0, 3.0, 6.0, 7.0), stream(0.5, 2.5, 6.5, 8.0), prefill(3.0, 5.0)):
        overlap.add(exchange)
    found = overlap.as_dict()
    # Of the first stream 3 to 6, of the second 2.5 to 6.5; the gap from 2 to 3 only touches.
    assert found["gaps"]["overlapped"] | {"p999": 0} == {
        "count": 2, "mean": 3.5, "p50": 3.0, "p90": 4.0, "p95": 4.0, "p99": 4.0, "p999": 0, "max": 4.0
    }  # fmt: skip
    assert (found["gaps"]["clear"]["count"], found["gaps"]["clear"]["max"]) == (5, 2.0)
    assert found["gaps"]["longest"]["count"] == 2
    assert (found["prefills"], found["met_full"], found["met_by"]) == (1, 1, {"2": 1})


def test_a_stream_that_began_or_ended_within_the_prefill_does_not_make_the_batch_full() -> None:
    overlap = Overlap(ASKED)
    for exchange in (stream(0.0, 10.0), stream(4.0, 9.0), prefill(3.0, 5.0), prefill(6.0, 7.0), prefill(8.0, 11.0)):
        overlap.add(exchange)
    found = overlap.as_dict()
    assert (found["prefills"], found["met_full"], found["met_by"]) == (3, 1, {"0": 1, "1": 1, "2": 1})


def test_what_failed_and_other_classes_are_left_out() -> None:
    overlap = Overlap(ASKED)
    failed = stream(1.0, 2.0)
    failed.outcome = Outcome.TIMEOUT
    for exchange in (failed, stream(1.0, 2.0, traffic="third")):
        overlap.add(exchange)
    found = overlap.as_dict()
    assert (found["prefills"], found["gaps"]["clear"]["count"], found["gaps"]["clear"]["p50"]) == (0, 0, None)


instants = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted)


@given(st.lists(instants, max_size=4), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6))
def test_every_gap_is_told_apart_as_one_by_one(streams: list[list[int]], prefills: list[tuple[int, int]]) -> None:
    overlap = Overlap(ASKED)
    for at in streams:
        overlap.add(stream(*map(float, at)))
    for sent, seconds in prefills:
        overlap.add(prefill(sent, sent + seconds))
    clear: list[int] = []
    overlapped: list[int] = []
    for at in streams:
        for begin, end in itertools.pairwise(at):
            met = any(begin < sent + seconds and end > sent for sent, seconds in prefills)
            (overlapped if met else clear).append(end - begin)
    longest = [
        max(gaps)
        for sent, seconds in prefills
        for at in streams
        if (gaps := [e - b for b, e in itertools.pairwise(at) if b < sent + seconds and e > sent])
    ]
    found = overlap.as_dict()["gaps"]
    for name, gaps in ("clear", clear), ("overlapped", overlapped), ("longest", longest):
        assert found[name]["count"] == len(gaps)
        assert found[name]["max"] == (max(gaps) if gaps else None)
        assert not gaps or np.isclose(found[name]["mean"], np.mean(gaps))
