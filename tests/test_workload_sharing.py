"""What earlier prompts share with a new one, against comparing them all."""

import itertools
from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spelling import common

from loadgen.workload import Constant, RandomTokens, SharedPrefix, Sharing, TracePrompts

prompts = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=25)


@given(prompts)
def test_sharing_is_the_longest_prefix_that_any_earlier_prompt_begins_with(prompts: list[list[int]]) -> None:
    sharing = Sharing()
    for i, prompt in enumerate(prompts):
        most = max((common(prompt, earlier) for earlier in prompts[:i]), default=0)
        assert sharing.of(array("i", prompt) if i % 2 else prompt) == max(0, min(most, len(prompt) - 1))


@given(prompts)
def test_what_is_kept_is_in_order_and_begins_no_other(prompts: list[list[int]]) -> None:
    sharing = Sharing()
    for prompt in prompts:
        sharing.add(prompt)
    kept = [list(ids) for ids in sharing._seen]
    assert kept == sorted(kept)
    assert all(common(a, b) < len(a) for a, b in itertools.permutations(kept, 2))
    assert all(any(common(prompt, ids) == len(prompt) for ids in kept) for prompt in prompts)


def test_a_prompt_that_came_before_is_shared_but_for_its_last_token() -> None:
    sharing = Sharing()
    assert [sharing.of([7, 7, 7]) for _ in range(3)] == [0, 2, 2]
    assert sharing.add([7, 7, 7]) == 3


def test_texts_and_conversations_have_no_tokens_to_share() -> None:
    sharing = Sharing()
    assert sharing.of("once upon a time") is None
    assert sharing.of(({"role": "user", "content": "hello"},)) is None


def test_an_answer_that_was_added_is_shared_by_the_next_turn() -> None:
    sharing = Sharing()
    assert sharing.of([1, 2, 3]) == 0
    assert sharing.add([1, 2, 3, 40, 50]) == 3
    assert sharing.of([1, 2, 3, 40, 50, 6]) == 5


def test_random_prompts_share_nothing_and_groups_their_system_prompt() -> None:
    rng = np.random.default_rng
    sharing = Sharing()
    random = RandomTokens(Constant(50), Constant(1), 2**30)
    assert {sharing.of(request.prompt) for request in itertools.islice(random.requests(rng(0)), 50)} == {0}
    sharing, seen = Sharing(), set()
    for request in itertools.islice(
        SharedPrefix(4, 0.5, Constant(30), Constant(8), Constant(1), 2**30).requests(rng(1)), 60
    ):
        assert sharing.of(request.prompt) == (30 if request.prompt[0] in seen else 0)
        seen.add(request.prompt[0])


def test_a_traces_prompts_share_what_its_hash_ids_say() -> None:
    blocks = [[1, 2, 3], [1, 2, 4], [1, 9], [1, 2, 4, 5]]
    workload = TracePrompts([24, 20, 16, 30], [1] * 4, 2**30, blocks, 8)
    sharing = Sharing()
    # of the last, three blocks of 8 are told, of which the second row filled four tokens of the third
    expected = [0, 16, 8, 20]
    assert [sharing.of(request.prompt) for request in workload.requests(np.random.default_rng(2))] == expected
