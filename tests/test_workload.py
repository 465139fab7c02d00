"""Workloads: exact lengths, stated distributions, streams that do not move each other."""

import itertools
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from loadgen.exchange import Request
from loadgen.fingerprint import of_requests
from loadgen.schedule import stream
from loadgen.workload import (
    Constant,
    Lognormal,
    RandomTokens,
    SharedPrefix,
    ShareGpt,
    TracePrompts,
    Uniform,
    Workload,
    sglang_range,
    vllm_range,
)


def take(workload: RandomTokens, n: int, seed: int = 0) -> list[Request]:
    return list(itertools.islice(workload.requests(np.random.default_rng(seed)), n))


def test_uniform_lengths_include_both_ends_equally() -> None:
    drawn = Uniform(3, 7).draw(np.random.default_rng(1), 50_000)
    counts = np.bincount(drawn)[3:]
    assert set(drawn) == {3, 4, 5, 6, 7}
    assert stats.chisquare(counts).pvalue > 0.001
    assert drawn.mean() == pytest.approx(Uniform(3, 7).mean, abs=4 * sqrt(2 / 50_000))


def test_lognormal_lengths_have_the_mean_and_cv_that_were_asked_for() -> None:
    drawn = Lognormal(mean=300, cv=0.8, high=10**9).draw(np.random.default_rng(2), 200_000)
    assert drawn.mean() == pytest.approx(300, rel=4 * 0.8 / sqrt(200_000))
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.03)
    assert (
        stats.kstest(
            np.log(drawn + np.random.default_rng(3).uniform(-0.5, 0.5, drawn.size)),
            "norm",
            args=(np.log(300) - np.log(1.64) / 2, sqrt(np.log(1.64))),
        ).statistic
        < 0.005
    )


def test_lengths_are_cut_at_high_and_never_below_one() -> None:
    drawn = Lognormal(mean=2, cv=3.0, high=10).draw(np.random.default_rng(4), 10_000)
    assert (drawn.min(), drawn.max()) == (1, 10)


def test_prompts_have_the_exact_length_and_ids_of_the_vocabulary() -> None:
    requests = take(RandomTokens(Uniform(1, 40), Constant(9), vocab_size=500), 300)
    assert [request.index for request in requests] == list(range(300))
    ids = np.concatenate([np.asarray(request.prompt) for request in requests])
    assert (ids.min(), ids.max()) == (10, 499)
    assert {len(request.prompt) for request in requests} == set(range(1, 41))
    assert {request.output_len for request in requests} == {9}


def test_changing_the_output_lengths_moves_neither_prompts_nor_their_lengths() -> None:
    one = take(RandomTokens(Uniform(1, 40), Constant(9), vocab_size=500), 200)
    other = take(RandomTokens(Uniform(1, 40), Uniform(1, 99), vocab_size=500), 200)
    assert [request.prompt for request in one] == [request.prompt for request in other]


def test_a_longer_run_begins_with_the_shorter_ones_prompts() -> None:
    workload = RandomTokens(Uniform(1, 40), Uniform(1, 9), vocab_size=500)
    assert take(workload, 200)[:70] == take(workload, 70)


@pytest.mark.parametrize(
    ("workload", "fingerprint"),
    [
        (RandomTokens(Uniform(1, 40), Constant(9), 500), "1d815f2f72190d7c"),
        (RandomTokens(Lognormal(300, 0.8, 32768), Lognormal(20, 0.5, 100), 4096), "d00848863b3fd4ef"),
        (RandomTokens(Constant(1000), Uniform(3, 7), 150_000, ids_from=5), "856ad9418735d411"),
    ],
)
def test_prompts_are_those_that_old_records_were_made_with(workload: RandomTokens, fingerprint: str) -> None:
    """Golden: 200 requests as 0.1.0 drew them when this was one module. A change here moves fingerprints."""
    requests = itertools.islice(workload.requests(stream(7, "workload")), 200)
    assert of_requests(requests) == fingerprint


@pytest.mark.parametrize(
    ("workload", "fingerprint"),
    [
        (SharedPrefix(5, 1.1, Uniform(10, 50), Uniform(1, 9), Uniform(1, 99), 4096), "f6e5d49cd1204b5e"),
        (TracePrompts([40, 70, 70], [1, 2, 3], 4096, [[1, 2, 3], [1, 2, 4, 5, 6], [1, 7]], 16), "a0f2b9e3d5afba8f"),
        (TracePrompts([40, 70, 70], [1, 2, 3], 4096), "891cb831b2f8e967"),
        (ShareGpt([[str(i), ""] for i in range(40)], Uniform(1, 99), repeat=True), "7a26fd9184c46179"),
    ],
)
def test_other_workloads_draw_the_same_on_every_machine(workload: Workload, fingerprint: str) -> None:
    """Golden: 200 requests, or what there are, as this package first drew them. A change here moves fingerprints."""
    requests = itertools.islice(workload.requests(stream(7, "workload")), 200)
    assert of_requests(requests) == fingerprint


def test_listed_ids_are_drawn_equally_and_no_others() -> None:
    ids = (3, 17, 40, 41, 999)
    requests = take(RandomTokens(Constant(50), Constant(9), vocab_size=1000, ids=ids), 400)
    drawn = np.concatenate([np.asarray(request.prompt) for request in requests])
    values, counts = np.unique(drawn, return_counts=True)
    assert tuple(values) == ids
    assert stats.chisquare(counts).pvalue > 0.001  # a good generator fails it for one seed in a thousand


@pytest.mark.parametrize(
    ("length", "ratio", "low", "high"),
    [
        (1000, 0, 1, 1000),  # SGLang's default: anything
        (1000, 1, 1000, 1000),
        (1000, 0.5, 500, 1000),
        (10, 0.29, 2, 10),  # int(2.9)
        (3, 0.2, 1, 3),  # int(0.6) = 0, so 1
        (1, 0, 1, 1),
    ],
)
def test_sglangs_ratio_is_the_shortest_over_the_longest(length: int, ratio: float, low: int, high: int) -> None:
    assert sglang_range(length, ratio) == Uniform(low, high)


@pytest.mark.parametrize(
    ("length", "ratio", "low", "high"),
    [
        (1000, 0, 1000, 1000),  # vLLM's default: fixed
        (1000, 0.5, 500, 1500),
        (10, 0.25, 7, 13),  # floor 7.5, ceil 12.5
        (1, 0.9, 1, 2),  # floor 0.1 = 0, so 1; ceil 1.9
    ],
)
def test_vllms_ratio_is_the_reach_to_both_sides(length: int, ratio: float, low: int, high: int) -> None:
    assert vllm_range(length, ratio) == Uniform(low, high)


def test_ratios_that_the_peers_refuse_are_refused() -> None:
    for ratio in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"SGLang's range ratio lies in \[0, 1\]"):
            sglang_range(10, ratio)
    for ratio in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"vLLM's range ratio lies in \[0, 1\)"):
            vllm_range(10, ratio)
