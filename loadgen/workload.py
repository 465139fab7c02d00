"""What is sent: workloads make the ordered requests of a run from a seeded generator.

Input lengths, output lengths and token ids come from three streams of their own, so that changing one of them never
moves the others.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import Request


class Length(Protocol):
    """A distribution of lengths, in tokens, never below 1."""

    @property
    def mean(self) -> float: ...

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class Constant:
    value: int

    @property
    def mean(self) -> float:
        return float(self.value)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:  # noqa: ARG002 - nothing is random here
        return np.full(n, self.value)


@dataclass(frozen=True)
class Uniform:
    """Integers from `low` to `high`, both included, all equally likely."""

    low: int
    high: int

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return rng.integers(self.low, self.high, n, endpoint=True)


@dataclass(frozen=True)
class Lognormal:
    """Lognormal with this `mean` and `cv` (standard deviation over mean) before rounding and the cap at `high`.

    With s² = ln(1 + cv²), the logarithm is normal with variance s² and mean ln(mean) - s²/2.
    """

    mean: float
    cv: float
    high: int

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        s = sqrt(log(1 + self.cv**2))
        lengths = rng.lognormal(log(self.mean) - s * s / 2, s, n)
        return np.clip(np.rint(lengths), 1, self.high).astype(np.int64)


class Workload(Protocol):
    """Something that makes requests."""

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        """Requests in order, numbered from 0, without end."""
        ...


@dataclass(frozen=True)
class RandomTokens:
    """Prompts of token ids drawn uniformly from [ids_from, vocab_size): nothing is shared, so nothing can be cached.

    Ids below `ids_from` are left out, since tokenizers keep their special tokens there.
    """

    input_len: Length
    output_len: Length
    vocab_size: int
    ids_from: int = 10
    block = 64  # requests drawn at a time; the streams do not depend on it

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        inputs, outputs, ids = rng.spawn(3)
        index = 0
        while True:
            lengths = zip(
                self.input_len.draw(inputs, self.block), self.output_len.draw(outputs, self.block), strict=True
            )
            for input_len, output_len in lengths:
                prompt = ids.integers(self.ids_from, self.vocab_size, input_len, dtype=np.int32)
                yield Request(index, array("i", prompt.tobytes()), int(output_len))
                index += 1
