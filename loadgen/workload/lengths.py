"""Distributions of lengths, in tokens, and what the peers' `--random-range-ratio` makes of a length."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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


def sglang_range(length: int, ratio: float) -> Uniform:
    """What SGLang makes of `--random-range-ratio`: [max(int(length·ratio), 1), length], so that 1 is fixed and its
    default, 0, is anything from 1, about half the tokens that were named.

    SGLang 0.5.23, `compute_random_lens` in sglang/benchmark/datasets/common.py. Where it sends text it takes the
    tokenizer's special tokens off the input's length afterwards. ValueError unless 0 ≤ ratio ≤ 1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"SGLang's range ratio lies in [0, 1], got {ratio:g}")
    return Uniform(max(int(length * ratio), 1), length)


def vllm_range(length: int, ratio: float) -> Uniform:
    """What vLLM makes of `--random-range-ratio`: [⌊length·(1 - ratio)⌋, ⌈length·(1 + ratio)⌉], so that its default, 0,
    is fixed.

    vLLM 0.11.0, `RandomDataset.get_sampling_params` in vllm/benchmarks/datasets.py. It takes the tokenizer's special
    tokens off an input's length before, and holds only output lengths to at least 1; here both are, as no server takes
    an empty prompt. ValueError unless 0 ≤ ratio < 1.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"vLLM's range ratio lies in [0, 1), got {ratio:g}")
    return Uniform(max(floor(length * (1 - ratio)), 1), ceil(length * (1 + ratio)))


def drawn(length: Length, rng: np.random.Generator) -> Iterator[int]:
    """Lengths without end."""
    while True:
        yield from length.draw(rng, 64).tolist()  # some at a time, for speed; the stream does not depend on it
