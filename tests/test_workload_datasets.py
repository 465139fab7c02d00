"""Data sets as requests: what is kept, in what order, how long, and where they end."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spelling import trained
from tokenizers import Tokenizer as Model

from loadgen.exchange import Request
from loadgen.workload import Constant, Jsonl, ShareGpt, Tokenizer, Uniform

WORDS = Tokenizer(Model.from_str(trained("words")))
WORD = WORDS.decode([50])


def say(n: int) -> str:
    """A text of `n` tokens."""
    return " ".join([WORD] * n)


def made(workload: ShareGpt | Jsonl, n: int | None = None, seed: int = 0) -> list[Request]:
    return list(itertools.islice(workload.requests(np.random.default_rng(seed)), n))


CONVERSATIONS = [[say(i), say(i + 1)] for i in range(2, 42)]


@given(
    conversations=st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=12),
    max_len=st.none() | st.integers(2, 12),
    fixed=st.none() | st.integers(4, 6),
)
def test_what_sglang_would_keep_is_kept(conversations: list[list[int]], max_len: int | None, fixed: int | None) -> None:
    """Its loop over lengths, in file order."""
    expected = []
    for lengths in conversations:
        if len(lengths) < 2:
            continue
        prompt_len, output_len = lengths[0], lengths[1] if fixed is None else fixed
        if prompt_len < 2 or output_len < 2:
            continue
        if max_len and prompt_len + output_len > max_len:
            continue
        expected.append((prompt_len, output_len))
    texts = [[say(n) for n in lengths] for lengths in conversations]
    outputs = None if fixed is None else Constant(fixed)
    requests = made(ShareGpt(texts, outputs, WORDS, max_len, shuffle=False))
    assert [(request.text_len, request.output_len) for request in requests] == expected
    assert [request.prompt for request in requests] == [say(n) for n, _ in expected]
    assert [request.index for request in requests] == list(range(len(expected)))


def test_the_order_is_drawn_and_ends_after_each_came_once() -> None:
    requests = made(ShareGpt(CONVERSATIONS, tokenizer=WORDS))
    lengths = [request.text_len for request in requests]
    assert sorted(length or 0 for length in lengths) == list(range(2, 42))
    assert lengths != list(range(2, 42))
    assert lengths == [request.text_len for request in made(ShareGpt(CONVERSATIONS, tokenizer=WORDS))]
    assert lengths != [request.text_len for request in made(ShareGpt(CONVERSATIONS, tokenizer=WORDS), seed=1)]


def test_output_lengths_do_not_move_the_order_nor_what_is_left_out_the_output_lengths() -> None:
    answers = made(ShareGpt(CONVERSATIONS, tokenizer=WORDS))
    drawn = made(ShareGpt(CONVERSATIONS, Uniform(5, 500), WORDS))
    assert [request.prompt for request in answers] == [request.prompt for request in drawn]
    passes = [made(ShareGpt(CONVERSATIONS, length, WORDS, repeat=True), 100) for length in (None, Uniform(5, 500))]
    assert [request.prompt for request in passes[0]] == [request.prompt for request in passes[1]]
    shorter = made(ShareGpt(CONVERSATIONS, Uniform(5, 500), WORDS, max_len=300))
    assert 0 < len(shorter) < len(drawn)
    pairs = {(request.prompt, request.output_len) for request in drawn}
    assert {(request.prompt, request.output_len) for request in shorter} < pairs


def test_repeated_it_begins_anew_in_another_order_and_goes_on_counting() -> None:
    requests = made(ShareGpt(CONVERSATIONS, tokenizer=WORDS, repeat=True), 100)
    assert [request.index for request in requests] == list(range(100))
    passes = [[request.prompt for request in requests[i : i + 40]] for i in (0, 40)]
    assert set(passes[0]) == set(passes[1])
    assert passes[0] != passes[1]


def test_repeated_without_anything_to_keep_it_ends() -> None:
    assert made(ShareGpt([], tokenizer=WORDS, repeat=True)) == []
    assert made(ShareGpt([[say(1), say(1)]], tokenizer=WORDS, repeat=True)) == []


def test_without_a_tokenizer_prompts_have_no_length_and_none_is_left_out() -> None:
    requests = made(ShareGpt([["a", "b"], ["c"], ["", "d"]], Constant(1), shuffle=False))
    assert requests == [Request(0, "a", 1), Request(1, "", 1)]


def test_a_data_set_that_can_be_read_once_serves_the_warm_up_and_the_run() -> None:
    workload = ShareGpt(iter(CONVERSATIONS), tokenizer=WORDS)
    assert made(workload, 5) == made(workload)[:5]
    rows = Jsonl(iter([Row(prompt="a", output_len=3)]))
    assert made(rows) == made(rows) == [Request(0, "a", 3)]


def test_what_only_a_tokenizer_can_tell_needs_one() -> None:
    with pytest.raises(ValueError, match="give a tokenizer, or an output length"):
        ShareGpt(CONVERSATIONS)
    with pytest.raises(ValueError, match="a longest length is in tokens: give a tokenizer"):
        ShareGpt(CONVERSATIONS, Constant(5), max_len=100)


@dataclass(frozen=True)
class Row:
    prompt: str | None = None
    messages: Sequence[dict[str, Any]] | None = None
    input_ids: Sequence[int] | None = None
    input_len: int | None = None
    output_len: int | None = None
    timestamp: float | None = None


HELLO = {"role": "user", "content": "hello"}


def test_rows_become_requests_in_their_order_and_form() -> None:
    rows = [
        Row(prompt=say(3), output_len=5),
        Row(messages=[HELLO], output_len=6, input_len=9),
        Row(input_ids=[4, 5, 6], output_len=7, input_len=99),
        Row(prompt="", output_len=8, input_len=4),
    ]
    text, talk, ids, empty = made(Jsonl(rows))
    assert text == Request(0, say(3), 5)
    assert talk == Request(1, (HELLO,), 6, text_len=9)
    assert (list(ids.prompt), ids.input_len, ids.text_len, ids.output_len) == ([4, 5, 6], 3, None, 7)
    assert empty == Request(3, "", 8, text_len=4)


def test_a_tokenizers_count_is_believed_before_a_rows() -> None:
    rows = [Row(prompt=say(3), output_len=5, input_len=17), Row(messages=[HELLO], output_len=5)]
    assert [request.text_len for request in made(Jsonl(rows, tokenizer=WORDS))] == [3, None]


def test_a_row_without_an_output_length_is_given_the_drawn_one_and_moves_no_other() -> None:
    bare = [Row(prompt="a")] * 20
    some = [*bare[:5], Row(prompt="a", output_len=7), *bare[6:]]
    drawn = [request.output_len for request in made(Jsonl(bare, Uniform(1, 10**6)))]
    assert len(set(drawn)) > 15
    expected = [*drawn[:5], 7, *drawn[6:]]
    assert [request.output_len for request in made(Jsonl(some, Uniform(1, 10**6)))] == expected


def test_a_row_without_an_output_length_and_none_to_draw_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 has no output length: write one, or give one for all"):
        made(Jsonl([Row(prompt="a", output_len=1), Row(prompt="b")]))


def test_rows_end_or_begin_anew() -> None:
    rows = [Row(prompt="a", output_len=1), Row(prompt="b", output_len=2)]
    assert len(made(Jsonl(rows))) == 2
    repeated = made(Jsonl(rows, repeat=True), 5)
    assert [(request.index, request.prompt) for request in repeated] == list(enumerate("ababa"))
    assert made(Jsonl([], repeat=True)) == []
