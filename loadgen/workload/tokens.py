"""Token ids to write prompts with, and the workload of nothing but random ones."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import Request
from loadgen.workload.lengths import Length, drawn


@dataclass(frozen=True)
class Alphabet:
    """The ids that may stand in a prompt: [ids_from, vocab_size), or `ids` where given."""

    vocab_size: int
    ids_from: int = 10
    ids: Sequence[int] | None = None

    @cached_property
    def _listed(self) -> NDArray[np.int32] | None:
        return None if self.ids is None else np.asarray(self.ids, dtype=np.int32)

    def __len__(self) -> int:
        return self.vocab_size - self.ids_from if self.ids is None else len(self.ids)

    def at(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids at places in [0, len)."""
        return places + np.int32(self.ids_from) if self._listed is None else self._listed[places]

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int32]:
        """`n` of them, all equally likely."""
        return self.at(rng.integers(0, len(self), n, dtype=np.int32))


def packed(ids: NDArray[np.int32]) -> "array[int]":
    """As requests carry ids: four bytes each, equal to what is equal."""
    return array("i", ids.tobytes())


@dataclass(frozen=True)
class RandomTokens:
    """Prompts of token ids drawn uniformly from [ids_from, vocab_size): nothing is shared, so nothing can be cached.

    Ids below `ids_from` are left out, since tokenizers keep their special tokens there. `ids`, where given, is what is
    drawn from instead: a tokenizer's `ordinary_ids`, or its `words` where the prompts are to be sent as text.
    """

    input_len: Length
    output_len: Length
    vocab_size: int
    ids_from: int = 10
    ids: Sequence[int] | None = None

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        inputs, outputs, contents = rng.spawn(3)
        alphabet = Alphabet(self.vocab_size, self.ids_from, self.ids)
        lengths = zip(drawn(self.input_len, inputs), drawn(self.output_len, outputs), strict=True)
        for index, (input_len, output_len) in enumerate(lengths):
            yield Request(index, packed(alphabet.draw(contents, input_len)), output_len)
