"""The prefix cache against a naive one: the set of all prefixes that are kept, with the ends of its runs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadgen.simulator.radix import Ids, Node, RadixCache

Prefix = tuple[int, ...]


def ids(*tokens: int) -> Ids:
    return np.array(tokens, np.int64)


def contents(cache: RadixCache) -> dict[Prefix, int]:
    """Every run of the tree, spelled from the root, and its locks."""
    found: dict[Prefix, int] = {}
    nodes: list[tuple[Prefix, Node]] = [((), cache.root)]
    while nodes:
        prefix, node = nodes.pop()
        for first, child in node.children.items():
            assert child.ids.item(0) == first
            assert child.parent is node
            spelled = prefix + tuple(child.ids.tolist())
            found[spelled] = child.locks
            nodes.append((spelled, child))
    return found


class Naive:
    """Prefixes as tuples, each kept on its own; `ends` says where the runs end and when each was last used."""

    def __init__(self) -> None:
        self.kept: set[Prefix] = set()
        self.ends: dict[Prefix, int] = {}
        self.locks: Counter[Prefix] = Counter()
        self.time = 0

    def use(self, end: Prefix) -> None:
        self.time += 1
        self.ends[end] = self.time

    def match(self, tokens: Prefix) -> Prefix:
        length = max((n for n in range(1, len(tokens) + 1) if tokens[:n] in self.kept), default=0)
        matched = tokens[:length]
        if matched and matched not in self.ends:
            self.use(min((end for end in self.ends if end[:length] == matched), key=len))
            self.use(matched)
        for n in range(1, length + 1):
            if tokens[:n] in self.ends:
                self.use(tokens[:n])
        return matched

    def insert(self, tokens: Prefix) -> None:
        if self.match(tokens) != tokens:
            self.kept |= {tokens[:n] for n in range(1, len(tokens) + 1)}
            self.use(tokens)

    def locks_of(self, prefix: Prefix) -> int:
        return sum(number for end, number in self.locks.items() if end[: len(prefix)] == prefix)

    def evict(self, tokens: int) -> int:
        freed = 0
        while freed < tokens:
            inner = {prefix[:-1] for prefix in self.kept}
            leaves = [end for end in self.ends if end not in inner and not self.locks_of(end)]
            if not leaves:
                break
            oldest = min(leaves, key=self.ends.__getitem__)
            del self.ends[oldest]
            while oldest and oldest not in self.ends:
                self.kept.remove(oldest)
                oldest = oldest[:-1]
                freed += 1
        return freed


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


class AgainstTheNaiveOne(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache, self.naive = RadixCache(), Naive()
        self.held: list[tuple[Node, Prefix]] = []

    @rule(tokens=PROMPTS)
    def match(self, tokens: Prefix) -> None:
        assert self.cache.match(ids(*tokens))[0] == len(self.naive.match(tokens))

    @rule(tokens=PROMPTS)
    def insert(self, tokens: Prefix) -> None:
        self.cache.insert(ids(*tokens))
        self.naive.insert(tokens)

    @rule(tokens=PROMPTS)
    def match_and_lock(self, tokens: Prefix) -> None:
        _, node = self.cache.match(ids(*tokens))
        self._hold(node, self.naive.match(tokens))

    @rule(tokens=PROMPTS)
    def insert_and_lock(self, tokens: Prefix) -> None:
        self.naive.insert(tokens)
        self._hold(self.cache.insert(ids(*tokens)), tokens)

    def _hold(self, node: Node, end: Prefix) -> None:
        self.cache.lock(node)
        self.naive.locks[end] += 1
        self.held.append((node, end))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, end = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.unlock(node)
        self.naive.locks[end] -= 1

    @rule(tokens=st.integers(-1, 12))
    def evict(self, tokens: int) -> None:
        before = self.cache.evicted
        freed = self.cache.evict(tokens)
        assert freed == self.naive.evict(tokens) == self.cache.evicted - before
        assert freed >= tokens or self.cache.evictable == 0

    @precondition(lambda self: not self.held)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.naive = Naive()

    @invariant()
    def both_hold_the_same(self) -> None:
        runs = contents(self.cache)
        assert runs == {end: self.naive.locks_of(end) for end in self.naive.ends}
        assert self.cache.total == len(self.naive.kept)
        assert self.cache.protected == sum(1 for prefix in self.naive.kept if self.naive.locks_of(prefix))
        assert self.cache.evictable == self.cache.total - self.cache.protected


TestAgainstTheNaiveOne = AgainstTheNaiveOne.TestCase


def test_what_two_prompts_share_is_kept_once() -> None:
    cache = RadixCache()
    cache.insert(ids(1, 2, 3, 4))
    cache.insert(ids(1, 2, 5))
    assert contents(cache).keys() == {(1, 2), (1, 2, 3, 4), (1, 2, 5)}
    assert cache.total == 5
    assert cache.match(ids(1, 2, 3, 9))[0] == 3
    assert cache.match(ids(2, 3))[0] == 0
    assert cache.match(ids())[0] == 0


def test_the_least_recently_used_leaf_goes_first_and_a_match_counts_as_a_use() -> None:
    cache = RadixCache()
    for first in (1, 2, 3):
        cache.insert(ids(first, 0, 0))
    cache.match(ids(1, 0, 0))
    assert cache.evict(1) == 3
    assert contents(cache).keys() == {(1, 0, 0), (3, 0, 0)}
    assert cache.evict(4) == 6


def test_a_locked_prefix_survives_and_what_hangs_on_it_does_not() -> None:
    cache = RadixCache()
    cache.insert(ids(1, 2, 3, 4, 5))
    _, node = cache.match(ids(1, 2, 3))
    cache.lock(node)
    assert (cache.protected, cache.evictable) == (3, 2)
    assert cache.evict(100) == 2
    assert contents(cache) == {(1, 2, 3): 1}
    cache.unlock(node)
    assert cache.evict(100) == 3
    assert cache.total == 0


@pytest.mark.parametrize("first_difference", [0, 1, 65_535, 99_999])
def test_long_prompts_part_where_they_differ(first_difference: int) -> None:
    cache, prompt = RadixCache(), np.arange(100_000)
    cache.insert(prompt)
    other = prompt.copy()
    other[first_difference] = -1
    assert cache.match(other)[0] == first_difference
