"""Shared prefixes: Zipf's shares, what is shared and what is not, streams that do not move each other, the theory."""

import itertools
from collections import Counter
from dataclasses import replace
from math import prod, sqrt
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from spelling import common, ids_of

from loadgen.exchange import Request
from loadgen.workload import Constant, SharedPrefix, Uniform

VOCAB = 2**30  # so wide that nothing is equal by chance
PLAIN = SharedPrefix(3, 1.0, Constant(6), Constant(4), Constant(9), VOCAB)


def take(workload: SharedPrefix, n: int = 100, seed: int = 0) -> list[Request]:
    return list(itertools.islice(workload.requests(np.random.default_rng(seed)), n))


def parts(workload: SharedPrefix, system_len: int = 6) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    prompts = [tuple(ids_of(request)) for request in take(workload)]
    return [prompt[:system_len] for prompt in prompts], [prompt[system_len:] for prompt in prompts]


@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.2, 2.5])
def test_groups_are_chosen_as_often_as_zipf_says(zipf: float) -> None:
    """Chi-square over 20,000 choices; a right sampler fails for one seed in a thousand, and the seed is fixed."""
    workload = replace(PLAIN, groups=8, zipf=zipf, system_len=Constant(1), question_len=Constant(1))
    seen = Counter(request.prompt[0] for request in take(workload, 20_000))
    weights = [k**-zipf for k in range(1, 9)]
    expected = [20_000 * weight / sum(weights) for weight in weights]
    assert len(seen) == 8
    observed = [count for _, count in seen.most_common()]
    if zipf == 0:  # which is which cannot be seen: any order has the same statistic
        assert stats.chisquare(observed).pvalue > 0.001
    else:
        assert stats.chisquare(observed, expected).pvalue > 0.001
    assert [workload.share(k) for k in range(1, 9)] == pytest.approx([e / 20_000 for e in expected])


def test_a_rank_that_is_none_has_no_share() -> None:
    for k in (0, 4):
        with pytest.raises(IndexError, match="ranks go from 1 to 3"):
            PLAIN.share(k)


def test_the_first_rank_is_the_only_group_where_there_is_one() -> None:
    (alone,) = set(parts(replace(PLAIN, groups=1))[0])
    ((most, _), *_) = Counter(parts(replace(PLAIN, zipf=2.0))[0]).most_common()
    assert most == alone


def test_a_group_shares_its_system_prompt_and_nothing_more() -> None:
    requests = take(replace(PLAIN, system_len=Uniform(1, 20), question_len=Uniform(1, 9)), 60)
    lengths: dict[object, set[int]] = {}
    for a, b in itertools.combinations(requests, 2):
        if shared := common(ids_of(a), ids_of(b)):
            lengths.setdefault(a.prompt[0], set()).add(shared)
    assert len(lengths) == 3
    assert all(len(shared) == 1 for shared in lengths.values())
    assert len(set.union(*lengths.values())) == 3  # a length of its own for each group


def test_requests_are_numbered_and_exactly_as_long_as_asked() -> None:
    requests = take(PLAIN)
    assert [request.index for request in requests] == list(range(100))
    assert {(request.input_len, request.output_len) for request in requests} == {(10, 9)}


def test_other_seeds_share_nothing() -> None:
    ids = [{id_ for request in take(PLAIN, seed=seed) for id_ in request.prompt} for seed in (0, 1)]
    assert not ids[0] & ids[1]


def test_the_exponent_moves_neither_contents_nor_questions() -> None:
    systems, questions = parts(PLAIN)
    other_systems, other_questions = parts(replace(PLAIN, zipf=0.3))
    assert set(systems) == set(other_systems)
    assert systems != other_systems
    assert questions == other_questions


def test_more_groups_leave_the_contents_of_the_first() -> None:
    assert set(parts(PLAIN)[0]) < set(parts(replace(PLAIN, groups=6))[0])
    assert parts(PLAIN)[1] == parts(replace(PLAIN, groups=6))[1]


def test_longer_system_prompts_begin_with_the_shorter_and_move_nothing() -> None:
    longer = replace(PLAIN, system_len=Constant(11))
    assert [system[:6] for system in parts(longer, 11)[0]] == parts(PLAIN)[0]
    assert parts(longer, 11)[1] == parts(PLAIN)[1]
    drawn = {request.prompt[0] for request in take(replace(PLAIN, system_len=Uniform(1, 20)))}
    assert drawn == {system[0] for system in parts(PLAIN)[0]}


def test_question_lengths_move_neither_choices_nor_the_stream_of_contents_nor_outputs() -> None:
    plain = replace(PLAIN, output_len=Uniform(1, 99))
    other = replace(plain, question_len=Uniform(1, 9))
    assert parts(plain)[0] == parts(other)[0]
    one, two = (list(itertools.chain(*parts(workload)[1])) for workload in (plain, other))
    assert common(one, two) == min(len(one), len(two))
    assert [request.output_len for request in take(plain)] == [request.output_len for request in take(other)]


def test_output_lengths_move_no_prompt() -> None:
    other = replace(PLAIN, output_len=Uniform(1, 99))
    assert [request.prompt for request in take(PLAIN)] == [request.prompt for request in take(other)]


@given(groups=st.integers(1, 3), zipf=st.floats(0, 3), n=st.integers(1, 5))
def test_the_expected_hit_rate_is_that_over_all_that_can_be_chosen(groups: int, zipf: float, n: int) -> None:
    """Brute force: every sequence of choices, with its probability, and the hits it has."""
    workload = SharedPrefix(groups, zipf, Uniform(10, 50), Constant(20), Constant(1), VOCAB)
    hits = sum(
        prod(workload.share(k) for k in choices) * (n - len(set(choices))) * 30
        for choices in itertools.product(range(1, groups + 1), repeat=n)
    )
    assert workload.expected_hit_rate(n) == pytest.approx(hits / (n * 50), abs=1e-12)


def test_a_cache_without_limit_hits_as_often_as_the_theory_says() -> None:
    """200 runs of 40 requests, hits counted by comparing prompts; within four standard errors of their mean."""
    workload = SharedPrefix(12, 0.9, Uniform(5, 25), Uniform(1, 9), Constant(1), VOCAB)
    rates = []
    for seed in range(200):
        prompts = [ids_of(request) for request in take(workload, 40, seed)]
        hits = sum(max((common(prompts[i], prompts[j]) for j in range(i)), default=0) for i in range(40))
        rates.append(hits / (40 * (15 + 5)))
    assert mean(rates) == pytest.approx(workload.expected_hit_rate(40), abs=4 * stdev(rates) / sqrt(200))
