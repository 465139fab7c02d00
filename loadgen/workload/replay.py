"""A trace's requests as prompts: of the lengths it has, and sharing what it says was shared."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import Request
from loadgen.workload.tokens import Alphabet, packed

GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio, SplitMix64's step


@dataclass(frozen=True)
class TracePrompts:
    """Prompts of exactly `input_len` token ids, a row each; ends with the trace.

    `blocks` are the hash ids of a row's prompt in order, each standing for `block_size` tokens: an id becomes the same
    tokens wherever it comes up, so two prompts share as many blocks as their rows begin with equal ids, and really
    share them. The last block is cut to the length, and rows of different length that end in one id share the shorter
    part. Tokens beyond the last id are fresh, as is all of a prompt without `blocks`: nobody shares them.

    The `salt` is part of every block's contents. It is drawn where not given, so that a run with another seed meets
    no prompt of this one in the server's cache.

    ValueError where columns do not fit each other, or a row has no input or output.
    """

    input_len: Sequence[int]
    output_len: Sequence[int]
    vocab_size: int
    blocks: Sequence[Iterable[int]] | None = None
    block_size: int | None = None
    salt: int | None = None
    ids_from: int = 10
    ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        rows = {len(self.input_len), len(self.output_len), len(self.input_len if self.blocks is None else self.blocks)}
        if len(rows) > 1:
            raise ValueError(f"the trace's columns differ in length: {', '.join(map(str, sorted(rows)))} rows")
        if self.blocks is not None and (self.block_size or 0) < 1:
            raise ValueError("hash ids say nothing without the number of tokens each stands for: give a block size")
        for name, lengths in ("input", self.input_len), ("output", self.output_len):
            if (empty := np.flatnonzero(np.asarray(lengths) < 1)).size:
                raise ValueError(f"row {empty[0]} has no {name} tokens: leave out such rows, {empty.size} in all")

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        salts, contents = rng.spawn(2)
        alphabet = Alphabet(self.vocab_size, self.ids_from, self.ids)
        salt = int(salts.integers(2**64, dtype=np.uint64)) if self.salt is None else self.salt
        for index, (input_len, output_len) in enumerate(zip(self.input_len, self.output_len, strict=True)):
            prompt = np.empty(0, np.int32)
            if self.blocks is not None and self.block_size is not None:
                needed = -(-input_len // self.block_size)
                prompt = contents_of(self.blocks[index], needed, self.block_size, salt, alphabet)[:input_len]
            fresh = alphabet.draw(contents, input_len - len(prompt))
            yield Request(index, packed(np.concatenate([prompt, fresh])), int(output_len))


def contents_of(
    blocks: Iterable[int], needed: int, block_size: int, salt: int, alphabet: Alphabet
) -> NDArray[np.int32]:
    """The tokens of the first `needed` blocks.

    SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), which is a
    hash of a counter: all tokens of a prompt come out of one pass, and none depends on which blocks were made before.
    """
    # one by one: numpy makes floats, and other ids, of a list that has some from 2⁶³ on
    hashes = np.fromiter((int(id_) % 2**64 for id_ in islice(blocks, needed)), np.uint64)
    seeds = mixed(mixed(hashes + np.uint64(GOLDEN)) ^ np.uint64(salt % 2**64))
    steps = np.arange(1, block_size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    drawn = mixed(seeds[:, np.newaxis] + steps).ravel()
    # the upper half times the size, over 2³²: a place, biased by at most size / 2³²
    return alphabet.at(((drawn >> np.uint64(32)) * np.uint64(len(alphabet)) >> np.uint64(32)).astype(np.int32))


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
