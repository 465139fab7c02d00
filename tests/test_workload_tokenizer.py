"""Tokenizers of three kinds, read from disk: what their ids are, and texts of an exact number of tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spelling import KINDS, SPECIAL, corpus, ids_of, trained
from tokenizers import Tokenizer as Model
from tokenizers import decoders, models, normalizers, pre_tokenizers

from loadgen.exchange import Request
from loadgen.workload import Constant, SharedPrefix, Tokenizer, TokenizerError, Uniform, as_ids, as_text

TOKENIZERS = {kind: Tokenizer(Model.from_str(trained(kind))) for kind in KINDS}
every_kind = pytest.mark.parametrize("kind", KINDS)
places = st.lists(st.integers(0, 10**6), max_size=60)


@every_kind
def test_a_tokenizer_is_read_from_its_file_or_its_folder(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(trained(kind), encoding="utf-8")
    for path in (tmp_path, str(tmp_path / "tokenizer.json")):
        tokenizer = Tokenizer.load(path)
        sentence = corpus()[3].removesuffix(".").removesuffix("!")
        ids = tokenizer.encode(sentence)
        assert tokenizer.decode(ids) == sentence
        assert not set(ids) & {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "tokenizer.json: there is no such file; give a tokenizer.json or the folder that has it"),
        ("vocab.txt", b"a\nb", "tokenizer.json: there is no such file; give"),
        ("tokenizer.json", b"\xff\xfe{}", "tokenizer.json: is no text; give"),
        ("tokenizer.json", b'{"model"', "tokenizer.json: describes no tokenizer: EOF.*; give"),
        ("tokenizer.json", b'{"hidden_size": 64}', "tokenizer.json: describes no tokenizer: .*; give"),
    ],
)
def test_a_path_without_a_tokenizer_is_told_with_what_to_give(
    name: str | None, content: bytes, message: str, tmp_path: Path
) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)


def test_a_folder_where_the_file_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match=r"tokenizer.json: cannot be read: Is a directory; give"):
        Tokenizer.load(tmp_path)


def test_what_a_file_says_of_cutting_and_padding_is_not_heeded(tmp_path: Path) -> None:
    model = Model.from_str(trained("words"))
    model.enable_truncation(4)
    model.enable_padding(length=100)
    model.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["truncation"] is not None
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.encode(" ".join(corpus()[0].split()[:3] * 3))) == 9


@every_kind
def test_ordinary_ids_are_all_but_the_special_and_the_added(kind: str) -> None:
    model = Model.from_str(trained(kind))
    trained_size = model.get_vocab_size()
    model.add_special_tokens(["<|turn|>"])
    model.add_tokens(["added"])
    tokenizer = Tokenizer(model)
    assert tokenizer.vocab_size == trained_size + 2
    assert list(tokenizer.ordinary_ids) == list(range(len(SPECIAL), trained_size))


@every_kind
def test_words_are_ordinary_ids_and_there_are_many(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert set(tokenizer.words) <= set(tokenizer.ordinary_ids)
    assert len(tokenizer.words) > 90
    first = tokenizer.words[0]
    apart = tokenizer.decode([first]) + " "
    assert all(tokenizer.decode([first, id_]).startswith(apart) for id_ in tokenizer.words)


def test_an_id_whose_text_is_read_as_another_is_no_word() -> None:
    model = Model(models.WordLevel({"Ba": 0, "ba": 1, "Ro": 2, "ro": 3}, unk_token="ba"))  # noqa: S106 - a word
    model.normalizer = normalizers.Lowercase()
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert list(Tokenizer(model).words) == [1, 3]


@every_kind
@given(places=places)
def test_words_stay_themselves_in_a_text(kind: str, places: list[int]) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = [tokenizer.words[place % len(tokenizer.words)] for place in places]
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.text_of(ids) == (tokenizer.decode(ids), len(ids))


@every_kind
@given(places=places)
def test_a_text_has_as_many_tokens_as_its_ids_were_whatever_they_are(kind: str, places: list[int]) -> None:
    """Pieces of words and, of the first kind, of characters are among them."""
    tokenizer = TOKENIZERS[kind]
    ids = [tokenizer.ordinary_ids[place % len(tokenizer.ordinary_ids)] for place in places]
    text, tokens = tokenizer.text_of(ids)
    assert tokens == len(tokenizer.encode(text)) == len(ids)


@pytest.mark.parametrize("ids", [[0], [0, 0], [0] * 3, [0] * 7, [1, 0, 1], [2] * 5])
def test_the_count_is_the_real_one_and_never_further_off_where_tokens_grow_together(ids: list[int]) -> None:
    """Two as are one token, and four are; there are no words to fill up with."""
    model = Model(models.BPE({"a": 0, "aa": 1, "aaaa": 2}, [("a", "a"), ("aa", "aa")]))
    model.decoder = decoders.Fuse()
    tokenizer = Tokenizer(model)
    assert len(tokenizer.words) == 0
    text, tokens = tokenizer.text_of(ids)
    assert tokens == len(tokenizer.encode(text))
    first = len(tokenizer.encode(tokenizer.decode(ids)))
    assert abs(tokens - len(ids)) <= abs(first - len(ids))


def test_a_text_that_cannot_be_exact_has_its_real_count() -> None:
    """Texts are made lower case, and the vocabulary has capitals only: no text has any token."""
    model = Model(models.BPE({"A": 0, "B": 1}, []))
    model.normalizer = normalizers.Lowercase()
    assert Tokenizer(model).text_of([0, 1, 1]) == ("A B B", 0)


@every_kind
def test_prompts_of_words_are_the_same_as_text_and_back_and_share_the_same(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    workload = SharedPrefix(3, 1.0, Constant(20), Uniform(1, 9), Constant(5), 0, ids=tokenizer.words)
    requests = [request for request, _ in zip(workload.requests(np.random.default_rng(0)), range(50), strict=False)]
    texts = [as_text(request, tokenizer) for request in requests]
    assert all(isinstance(request.prompt, str) for request in texts)
    assert [request.input_len for request in texts] == [request.input_len for request in requests]
    assert [as_ids(request, tokenizer) for request in texts] == requests


def test_each_form_is_turned_into_the_one_that_is_asked_for() -> None:
    tokenizer = TOKENIZERS["words"]
    word = tokenizer.decode([50])
    ids = Request(0, [50, 50, 50], 7, traffic="chat")
    text = Request(1, f"{word} {word}", 7)
    talk = Request(2, ({"role": "user", "content": word},), 7, session=4)
    assert [as_text(request, tokenizer) for request in (ids, text, talk)] == [
        Request(0, f"{word} {word} {word}", 7, text_len=3, traffic="chat"),
        Request(1, f"{word} {word}", 7, text_len=2),
        talk,
    ]
    first, second, third = (as_ids(request, tokenizer) for request in (ids, text, talk))
    assert (first, third) == (ids, talk)
    assert ids_of(second) == [50, 50]
    assert second.text_len is None


def test_a_tokenizer_without_a_word_for_the_unknown_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(Model(models.WordLevel({"a": 0, "b": 1})).to_str())
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: this tokenizer cannot write every text: WordLevel"):
        tokenizer.encode("a c")
    with pytest.raises(TokenizerError, match="cannot write every text"):
        _ = tokenizer.words


def test_half_a_surrogate_pair_counts_as_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(trained("bytes"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a \ud83d b") == tokenizer.encode("a ? b")
