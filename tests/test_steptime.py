"""Step times from /v1/loads, on sums that are built here as SGLang's scheduler builds them, against numpy's own fit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.steptime import difference

GOLDEN = Path(__file__).parent / "golden"
DECODE = {"steps", "mean_batch", "mean_step_s", "base_s", "per_sequence_s", "output_tokens"}


def sums(steps: list[tuple[int, int]]) -> list[float]:
    """_accumulate_decode_moment of scheduler.py, step by step."""
    totals = [0.0] * 6
    for b, t in steps:
        for i, gained in enumerate((1, b, t, b * b, b * t, b)):
            totals[i] += gained
    return totals


def answer(moments: list[float] | None, tokens: int = 0, busy: int = 0, rank: int = 0) -> dict[str, Any]:
    load = {"dp_rank": rank, "decode_moments": moments}
    load |= {"total_prefill_uncached_tokens": tokens, "total_prefill_busy_us": busy}
    return {"timestamp": "…", "loads": [load]}


steps_of_servers = st.lists(st.tuples(st.integers(1, 512), st.integers(1, 1_999_999)), max_size=60)


@given(steps_of_servers, steps_of_servers)
def test_the_line_is_numpys(earlier: list[tuple[int, int]], steps: list[tuple[int, int]]) -> None:
    found = difference(answer(sums(earlier) if earlier else None), answer(sums(earlier + steps)))
    assert found["steps"] == len(steps)
    assert found["output_tokens"] == sum(b for b, _ in steps)
    if not steps:
        assert found["mean_step_s"] is None
        return
    b, t = (np.array(values, float) for values in zip(*steps, strict=True))
    assert found["mean_batch"] == pytest.approx(b.mean())
    assert found["mean_step_s"] == pytest.approx(t.mean() / 1e6)
    if len(steps) < 3 or np.ptp(b) == 0:
        assert found["base_s"] is None
        assert found["per_sequence_s"] is None
        assert {"base_s", "per_sequence_s"} <= found["reason"].keys()
        return
    slope, base = np.polyfit(b, t, 1)
    assert found["per_sequence_s"] == pytest.approx(slope / 1e6, rel=1e-6, abs=1e-9)
    assert found["base_s"] == pytest.approx(base / 1e6, rel=1e-6, abs=1e-7)


def test_after_a_long_life_the_differences_are_still_exact() -> None:
    """A hundred million steps came before; their sums would swallow a line taken in floating point."""
    life = [1e8 * x for x in sums([(256, 30_000)])]
    steps = [(b, 5_000 + 7 * b) for b in (255, 256, 257)]
    after = [x + y for x, y in zip(life, sums(steps), strict=True)]
    found = difference(answer(life), answer(after))
    assert (found["base_s"], found["per_sequence_s"]) == (pytest.approx(0.005), pytest.approx(7e-6))


def test_the_real_servers_answer() -> None:
    """98 steps of one sequence, 3.422047 s; 47 prompt tokens in 0.677598 s; nothing had been before."""
    text = (GOLDEN / "GET_v1_loads_include_all.txt").read_text()
    after = json.loads(text[text.index("{") :])
    found = difference(answer(None), after)
    equal = "all batches were equal: there is no line through them"
    assert found == {
        "steps": 98,
        "mean_batch": 1.0,
        "mean_step_s": pytest.approx(3.422047 / 98),
        "base_s": None,
        "per_sequence_s": None,
        "output_tokens": 98,
        "prefill_tokens": 47,
        "prefill_s_per_token": pytest.approx(0.677598 / 47),
        "reason": {"base_s": equal, "per_sequence_s": equal},
    }


def test_two_ranks_are_added() -> None:
    one, other = [(1, 100), (2, 150), (4, 260)], [(8, 420), (3, 230)]
    before = {"loads": answer(None, rank=0)["loads"] + answer(None, rank=1)["loads"]}
    after = {"loads": answer(sums(other), 30, 10, 1)["loads"] + answer(sums(one), 10, 30, 0)["loads"]}
    pooled = difference(answer(None), answer(sums(one + other), 40, 40))
    assert difference(before, after) == pooled
    assert pooled["prefill_s_per_token"] == 1e-6


def test_two_steps_make_no_line() -> None:
    found = difference(answer(None), answer(sums([(1, 100), (2, 200)])))
    assert found["reason"]["base_s"] == "2 steps are too few for a line"
    assert found["mean_batch"] == 1.5


def test_each_reason_stands_alone() -> None:
    moments = sums([(1, 100), (2, 150), (4, 260)])
    good = answer(moments, 100, 1000)
    no_moments = {"loads": [{k: v for k, v in good["loads"][0].items() if k != "decode_moments"}]}
    no_busy = {"loads": [{k: v for k, v in good["loads"][0].items() if k != "total_prefill_busy_us"}]}
    no_tokens = {"loads": [{k: v for k, v in good["loads"][0].items() if k != "total_prefill_uncached_tokens"}]}

    found = difference(no_moments, no_moments)
    assert {key for key, why in found["reason"].items() if "no decode_moments" in why} == DECODE
    found = difference(answer(None), no_busy)
    assert found["reason"] == {"prefill_s_per_token": "the server has no total_prefill_busy_us"}
    assert (found["prefill_tokens"], found["steps"]) == (100, 3)
    found = difference(answer(None), no_tokens)
    assert set(found["reason"]) == {"prefill_tokens", "prefill_s_per_token"}
    found = difference(answer(None, 200, 10), good)
    assert found["reason"].keys() == {"prefill_tokens", "prefill_s_per_token"}
    assert "restarted" in found["reason"]["prefill_tokens"]
    found = difference(answer(None, 0, 2000), good)
    assert found["reason"] == {"prefill_s_per_token": found["reason"]["prefill_s_per_token"]}
    assert "restarted" in found["reason"]["prefill_s_per_token"]
    found = difference(good, answer(None, 100, 1000))
    assert {key for key, why in found["reason"].items() if "restarted" in why} == DECODE
    found = difference(good, good)
    assert found["steps"] == 0
    assert found["reason"]["prefill_s_per_token"] == "no token was prefilled between the two answers"


@pytest.mark.parametrize("loads", [{}, {"loads": None}, {"loads": []}, answer(None, rank=3)])
def test_answers_that_cannot_be_subtracted(loads: dict[str, Any]) -> None:
    found = difference(loads, answer(None) if loads.get("loads") else loads)
    figures = {key: value for key, value in found.items() if key != "reason"}
    assert set(figures.values()) == {None}
    assert found["reason"].keys() == figures.keys()


def test_the_slope_is_in_seconds_per_sequence() -> None:
    found = difference(answer(None), answer(sums([(b, 1000 * b + 2000) for b in range(1, 9)])))
    assert math.isclose(found["per_sequence_s"], 0.001)
    assert math.isclose(found["base_s"], 0.002)
