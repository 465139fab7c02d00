"""Long gaps put down to causes: by hand, by brute force, and laws."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.diagnosis.attribution import CAUSES, COLD, LONG, attribute

Request = tuple[dict[str, Any], NDArray[np.float64]]


def request(*at: float, outcome: str = "ok") -> Request:
    return {"outcome": outcome}, np.array(at)


def even(*extra: float, n: int = 40, gap: float = 0.01) -> Request:
    """n even gaps from 100 on, and then gaps of these lengths, each followed by even ones again."""
    gaps = [gap] * n
    for length in extra:
        gaps += [length, gap, gap]
    return request(*(100 + np.concatenate([[0], np.cumsum(gaps)])))


def decode(at: float, **more: Any) -> dict[str, Any]:
    return {"at": at, "kind": "decode", "graph": True, "queued": 0, **more}


def prefill(at: float, tokens: int, **more: Any) -> dict[str, Any]:
    return {"at": at, "kind": "prefill", "new_tokens": tokens, "graph": False, "queued": 0, **more}


RETRACTED = {"at": 100.45, "kind": "retraction", "requests": 1}
FIRST = decode(1.0)  # long before: the server has worked


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ([FIRST, prefill(100.45, 500)], "prefill"),
        ([FIRST, prefill(100.45, 500, queued=3), RETRACTED], "retraction"),
        ([FIRST, decode(100.3), decode(100.35), decode(100.45, graph=False)], "graph fall-back"),
        ([FIRST, decode(100.45, graph=False)], "nothing seen"),  # no graph is the usual thing here
        ([FIRST, decode(100.45, queued=2)], "queueing"),
        ([FIRST, decode(100.45)], "nothing seen"),
        ([FIRST, prefill(100.2, 500), prefill(100.6, 500)], "nothing seen"),  # before and after the gap
        ([FIRST, prefill(100.398, 500)], "nothing seen"),  # the step that brought the gap's first chunk
        ([], "no log"),
    ],
)
def test_a_gap_is_put_down_to_what_ended_in_it(steps: list[dict[str, Any]], cause: str) -> None:
    found = attribute([even(0.1)], steps)  # the long gap is from 100.4 to 100.5
    assert found is not None
    assert (found.gaps, found.long) == (43, 1)
    assert list(found.causes) == [cause]
    own = found.causes[cause]
    assert (own["gaps"], own["share"], own["excess_share"]) == (1, 1.0, 1.0)
    assert (own["median"], own["max"]) == pytest.approx((0.1, 0.1))
    assert found.threshold == pytest.approx(LONG * 0.01)


def test_the_first_second_of_a_server_that_was_not_warmed_up_is_a_cold_start() -> None:
    steps = [prefill(100.0, 10), prefill(100.45, 500), prefill(100.45 + COLD, 500)]
    answer = even(0.1, *([0.01] * 30), 0.5)
    cold, warm = attribute([answer], steps, warm=False), attribute([answer], steps, warm=True)
    assert cold is not None
    assert warm is not None
    assert {cause: own["gaps"] for cause, own in cold.causes.items()} == {"cold start": 1, "prefill": 1}
    assert {cause: own["gaps"] for cause, own in warm.causes.items()} == {"prefill": 2}


def test_shares_are_of_gaps_and_of_their_time_over_the_median() -> None:
    found = attribute([even(0.11, 0.31)], [FIRST, prefill(100.45, 700)])
    assert found is not None
    assert found.causes["prefill"]["share"] == found.causes["nothing seen"]["share"] == 0.5
    assert found.causes["prefill"]["excess_share"] == pytest.approx(0.1 / 0.4)
    assert found.causes["nothing seen"]["excess_share"] == pytest.approx(0.3 / 0.4)
    assert found.prefill == {"tokens_p50": 700.0, "tokens_max": 700.0, "s_per_1000_tokens": None}


def test_what_a_thousand_prefill_tokens_cost_is_the_slope_through_ten_gaps() -> None:
    """Gaps of 20 ms and 50 µs a token: two prefills in each, whose tokens count together."""
    gaps = [0.02 + 50e-6 * tokens for tokens in range(1000, 2000, 100)]
    answer = even(*gaps)
    ends = [end for begin, end in zip(answer[1], answer[1][1:], strict=False) if end - begin > 0.03]
    steps = [FIRST]
    for end, tokens in zip(ends, range(1000, 2000, 100), strict=True):
        steps += [prefill(end - 0.015, tokens - 300), prefill(end - 0.012, 300)]
    found = attribute([answer], steps)
    assert found is not None
    assert found.prefill is not None
    assert found.prefill["s_per_1000_tokens"] == pytest.approx(0.05)
    assert (found.prefill["tokens_p50"], found.prefill["tokens_max"]) == (1450.0, 1900.0)


def test_the_prefill_of_the_request_itself_is_no_part_of_its_first_gap() -> None:
    """Its line stands 2 ms before its first chunk; that of the prefill which interrupted it stands in the gap."""
    found = attribute([even(0.1), request(100.4, 100.5)], [FIRST, prefill(100.398, 256), prefill(100.45, 700)])
    assert found is not None
    assert found.prefill == {"tokens_p50": 700.0, "tokens_max": 700.0, "s_per_1000_tokens": None}


def test_only_answers_with_gaps_count() -> None:
    assert attribute([request(1.0), request(1.0, 9.0, outcome="timeout"), request()], []) is None


def test_the_threshold_can_be_said() -> None:
    found = attribute([even(0.1, 0.2)], [], threshold=0.15)
    assert found is not None
    assert (found.threshold, found.long) == (0.15, 1)


several = st.lists(st.floats(0.001, 1.0), min_size=3, max_size=30)
events = st.lists(
    st.tuples(
        st.floats(0.0, 20.0), st.sampled_from(["prefill", "decode", "retraction"]), st.booleans(), st.integers(0, 2)
    )
)


@given(gaps=st.lists(several, min_size=1, max_size=4), drawn=events, warm=st.booleans())
def test_it_is_what_looking_at_each_gap_alone_gives(
    gaps: list[list[float]], drawn: list[tuple[float, str, bool, int]], warm: bool
) -> None:
    requests = [request(*np.cumsum(own)) for own in gaps]
    steps: list[dict[str, Any]] = []
    for at, kind, graph, queued in drawn:
        step = {"at": at, "kind": kind}
        if kind != "retraction":
            step |= {"graph": graph, "queued": queued, "new_tokens": 10}
        steps.append(step)
    found = attribute(iter(requests), iter(steps), warm=warm)
    assert found is not None
    decodes = [step["graph"] for step in steps if step["kind"] == "decode"]
    usual = sum(decodes) > len(decodes) / 2
    counts: dict[str, int] = dict.fromkeys(CAUSES, 0)
    for _, instants in requests:
        for begin, end in itertools.pairwise(instants.tolist()):
            if end - begin <= found.threshold:
                continue
            within = [step for step in steps if begin < step["at"] <= end]
            kinds = {step["kind"] for step in within}
            if not steps:
                counts["no log"] += 1
            elif "retraction" in kinds:
                counts["retraction"] += 1
            elif not warm and end <= min(step["at"] for step in steps) + COLD:
                counts["cold start"] += 1
            elif "prefill" in kinds:
                counts["prefill"] += 1
            elif usual and any(step["kind"] == "decode" and not step["graph"] for step in within):
                counts["graph fall-back"] += 1
            elif any(step.get("queued") for step in within):
                counts["queueing"] += 1
            else:
                counts["nothing seen"] += 1
    assert {cause: own["gaps"] for cause, own in found.causes.items()} == {c: n for c, n in counts.items() if n}
    if found.long:
        assert sum(own["share"] for own in found.causes.values()) == pytest.approx(1.0)
        assert sum(own["excess_share"] for own in found.causes.values()) == pytest.approx(1.0)
