"""Requests that come from a data set: conversations that people had, or rows of one's own."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from loadgen.exchange import Message, Prompt, Request
from loadgen.workload.lengths import Length, drawn
from loadgen.workload.tokenizer import Tokenizer


@dataclass(frozen=True)
class ShareGpt:
    """The first turn of each conversation as the prompt, the length of the answer it got as the output length.

    `conversations` are turns in order, the user's first; those of fewer than two are passed over. As in SGLang's
    bench_serving (0.5.23, sglang/benchmark/datasets/sharegpt.py) so are prompts and answers of fewer than 2 tokens, and
    what passes `max_len` tokens with its output, there `--sharegpt-context-len`. (SGLang counts the special tokens that
    its tokenizer adds, so its prompts are often a token longer.) The order is drawn, or with `shuffle` off the file's.
    With `repeat` the data set begins anew, in a new order, where it ends.

    With `output_len` the outputs are drawn instead, one for each conversation whether it is kept or not. Then no
    tokenizer is needed; without one no prompt is too short, and none has a length. ValueError where one is missing.
    """

    conversations: Iterable[Sequence[str]]
    output_len: Length | None = None
    tokenizer: Tokenizer | None = None
    max_len: int | None = None
    shuffle: bool = True
    repeat: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer is None and self.output_len is None:
            raise ValueError(
                "how long the answers were is in tokens: give a tokenizer, or an output length of your own"
            )
        if self.tokenizer is None and self.max_len is not None:
            raise ValueError("a longest length is in tokens: give a tokenizer")

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        return [(turns[0], turns[1]) for turns in self.conversations if len(turns) >= 2]

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        orders, outputs = rng.spawn(2)
        lengths = None if self.output_len is None else drawn(self.output_len, outputs)
        index, before = 0, -1
        while index > before:  # a pass that kept nothing is the last
            before = index
            order = orders.permutation(len(self._pairs)) if self.shuffle else range(len(self._pairs))
            for place in order:
                prompt, answer = self._pairs[place]
                output_len = None if lengths is None else next(lengths)
                if (measured := self._measured(prompt, answer, output_len)) is not None:
                    text_len, output_len = measured
                    yield Request(index, prompt, output_len, text_len)
                    index += 1
            if not self.repeat:
                return

    def _measured(self, prompt: str, answer: str, output_len: int | None) -> tuple[int | None, int] | None:
        """The prompt's length, None where nobody can count it, and its output's; None for a pair that is left out."""
        if self.tokenizer is None:
            assert output_len is not None
            return None, output_len
        text_len = len(self.tokenizer.encode(prompt))
        if output_len is None:
            output_len = len(self.tokenizer.encode(answer))
            if output_len < 2:
                return None
        if text_len < 2 or (self.max_len is not None and text_len + output_len > self.max_len):
            return None
        return text_len, output_len


class Row(Protocol):
    """Exactly one of `prompt`, `messages` and `input_ids` is there."""

    @property
    def prompt(self) -> str | None: ...
    @property
    def messages(self) -> Sequence[Message] | None: ...
    @property
    def input_ids(self) -> Sequence[int] | None: ...
    @property
    def input_len(self) -> int | None: ...
    @property
    def output_len(self) -> int | None: ...


@dataclass(frozen=True)
class Jsonl:
    """Rows as requests, in their order.

    `output_len` is for rows that name none; one is drawn for every row, so that a row's own length moves no other's. A
    text's length is what `tokenizer` counts or, without one, what its row says. With `repeat` the rows begin anew where
    they end. ValueError for a row without an output length where there is none to draw.
    """

    rows: Iterable[Row]
    output_len: Length | None = None
    tokenizer: Tokenizer | None = None
    repeat: bool = False

    @cached_property
    def _rows(self) -> list[Row]:
        return list(self.rows)

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        (outputs,) = rng.spawn(1)
        lengths = None if self.output_len is None else drawn(self.output_len, outputs)
        index = 0
        while self._rows:
            for number, row in enumerate(self._rows):
                default = None if lengths is None else next(lengths)
                output_len = default if row.output_len is None else row.output_len
                if output_len is None:
                    raise ValueError(f"row {number} has no output length: write one, or give one for all rows without")
                prompt = _prompt(row)
                text_len = row.input_len if isinstance(prompt, str | tuple) else None
                if isinstance(prompt, str) and self.tokenizer is not None:
                    text_len = len(self.tokenizer.encode(prompt))
                yield Request(index, prompt, output_len, text_len)
                index += 1
            if not self.repeat:
                return


def _prompt(row: Row) -> Prompt:
    if row.prompt is not None:
        return row.prompt
    if row.messages is not None:
        return tuple(row.messages)
    assert row.input_ids is not None, "a row has a prompt, messages or input_ids"
    return array("i", row.input_ids)
