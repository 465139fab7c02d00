"""Prompts that begin alike: a system prompt shared by all requests of a group, and a question that nobody shares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import Request
from loadgen.workload.lengths import Length, drawn
from loadgen.workload.tokens import Alphabet, packed


@dataclass(frozen=True)
class SharedPrefix:
    """Each prompt is the system prompt of one of `groups` and a fresh question.

    The group of rank k, from 1, is chosen with probability P(k) ∝ k^-zipf: 0 is uniform, near 1 is what popularity
    looks like on the web (L. Breslau et al., "Web caching and Zipf-like distributions", INFOCOM 1999). A group's
    system prompt, its length too, is drawn once, from streams of the group's own: more groups, another exponent or
    another distribution of lengths leave the ids of the groups there were.
    """

    groups: int
    zipf: float
    system_len: Length
    question_len: Length
    output_len: Length
    vocab_size: int
    ids_from: int = 10
    ids: Sequence[int] | None = None

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        weights = np.arange(1, self.groups + 1, dtype=float) ** -self.zipf
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def share(self, k: int) -> float:
        """The part of all requests that the group of rank `k`, from 1, is expected to have."""
        if not 1 <= k <= self.groups:
            raise IndexError(f"ranks go from 1 to {self.groups}, got {k}")
        return float(self._shares[k - 1])

    def expected_hit_rate(self, n: int) -> float:
        """The part of the input tokens of the first `n` requests that a cache without limit, cold at the start, holds.

        A request finds its system prompt unless it is the first of its group, and the number of groups that n requests
        see has the mean E[D] = Σ 1 - (1 - P(k))ⁿ. With mean lengths s and q, which are independent of the choice, the
        expected hits over the expected tokens are s·(n - E[D]) / (n·(s + q)). A cache in blocks holds less; questions
        that begin alike by chance are not counted.
        """
        seen = float(np.sum(1 - (1 - self._shares) ** n))
        system, question = self.system_len.mean, self.question_len.mean
        return (1 - seen / n) * system / (system + question)

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        choices, systems, question_lengths, questions, outputs = rng.spawn(5)
        alphabet = Alphabet(self.vocab_size, self.ids_from, self.ids)
        seed = int(systems.integers(2**63))

        @cache
        def system(group: int) -> NDArray[np.int32]:
            own = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(group,)))
            lengths, contents = own.spawn(2)
            return alphabet.draw(contents, int(self.system_len.draw(lengths, 1)[0]))

        chosen = zip(
            self._choices(choices),
            drawn(self.question_len, question_lengths),
            drawn(self.output_len, outputs),
            strict=True,
        )
        for index, (group, question_len, output_len) in enumerate(chosen):
            prompt = np.concatenate([system(group), alphabet.draw(questions, question_len)])
            yield Request(index, packed(prompt), output_len)

    def questions(self, rng: np.random.Generator) -> Iterator[Request]:
        """Questions alone, for the turns of a conversation that its system prompt has opened."""
        question_lengths, questions, outputs = rng.spawn(3)
        alphabet = Alphabet(self.vocab_size, self.ids_from, self.ids)
        lengths = zip(drawn(self.question_len, question_lengths), drawn(self.output_len, outputs), strict=True)
        for index, (question_len, output_len) in enumerate(lengths):
            yield Request(index, packed(alphabet.draw(questions, question_len)), output_len)

    def _choices(self, rng: np.random.Generator) -> Iterator[int]:
        upto = np.cumsum(self._shares)
        upto /= upto[-1]  # the last is then exactly 1, which no draw reaches
        while True:
            yield from np.searchsorted(upto, rng.random(64), side="right").tolist()
