"""SGLang's prefix cache: a radix tree over token ids, with pages of one token.

A node holds a run of tokens; the runs from the root to it spell a prefix whose keys and values are in the pool, once,
however many sequences share them. What a running sequence uses is locked, all the way up to the root, and stays. The
rest is evictable: a leaf at a time, the least recently used first. Time is a count of the accesses, never a clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens that every prefix through here has in common. The root's is empty and it has no parent."""

    ids: Ids
    parent: "Node | None"
    used: int
    locks: int = 0  # sequences that use it
    children: dict[int, "Node"] = field(default_factory=dict)  # by their first token
    queued: bool = False  # for eviction

    @property
    def evictable(self) -> bool:
        return self.parent is not None and not self.locks and not self.children


class RadixCache:
    """The tree and its sizes, in tokens."""

    def __init__(self) -> None:
        self.evicted = 0  # so far
        self._clock = count()
        self.clear()

    def clear(self) -> None:
        """Forget everything; only where nothing is locked."""
        self.root = Node(np.empty(0, np.int64), None, next(self._clock))
        self.total, self.protected = 0, 0
        self._queue: list[tuple[int, Node]] = []  # a heap of leaves by their last use, which may be out of date

    @property
    def evictable(self) -> int:
        return self.total - self.protected

    def match(self, ids: Ids) -> tuple[int, Node]:
        """How many of these tokens are here, from the first on, and the node that the last of them ends."""
        node, length = self.root, 0
        while length < ids.size and (child := node.children.get(ids.item(length))):
            common = _in_common(child.ids, ids[length:])
            node = child if common == child.ids.size else self._split(child, common)
            node.used = next(self._clock)
            length += common
        return length, node

    def insert(self, ids: Ids) -> Node:
        """Keep these tokens; returns the node that the last of them ends."""
        length, node = self.match(ids)
        if length == ids.size:
            return node
        leaf = Node(ids[length:].copy(), node, next(self._clock))
        node.children[ids.item(length)] = leaf
        self.total += leaf.ids.size
        self._offer(leaf)
        return leaf

    def lock(self, node: Node) -> None:
        """Keep a node and all that leads to it from eviction; locks are counted."""
        for held in _upwards(node):
            if held.locks == 0:
                self.protected += held.ids.size
            held.locks += 1

    def unlock(self, node: Node) -> None:
        """Take back one lock of `lock`, whatever was split on the way since."""
        for held in _upwards(node):
            held.locks -= 1
            if held.locks == 0:
                self.protected -= held.ids.size
                self._offer(held)

    def evict(self, tokens: int) -> int:
        """Free at least so many tokens, in whole leaves, or all that is evictable; returns how many."""
        freed = 0
        while freed < tokens and self._queue:
            used, node = heappop(self._queue)
            node.queued = False
            if node.used > used:
                self._offer(node)  # it was used since it was queued
            elif node.parent and node.evictable:
                freed += node.ids.size
                del node.parent.children[node.ids.item(0)]
                self._offer(node.parent)
        self.total -= freed
        self.evicted += freed
        return freed

    def _offer(self, node: Node) -> None:
        """Queue a leaf that may be evicted. What is no longer one when its turn comes is offered anew when it is."""
        if node.evictable and not node.queued:
            node.queued = True
            heappush(self._queue, (node.used, node))

    def _split(self, node: Node, at: int) -> Node:
        """Cut a run in two; returns the upper half. It counts as a use of the lower half too, as it does in SGLang.

        The halves are copies, so that neither keeps the whole in memory when the other is evicted.
        """
        assert node.parent is not None
        upper = Node(node.ids[:at].copy(), node.parent, node.used, node.locks, {node.ids.item(at): node})
        node.parent.children[node.ids.item(0)] = upper
        node.ids, node.parent, node.used = node.ids[at:].copy(), upper, next(self._clock)
        return upper


def _upwards(node: Node) -> Iterator[Node]:
    """A node and what leads to it, without the root, which holds nothing."""
    while node.parent:
        yield node
        node = node.parent


def _in_common(one: Ids, other: Ids) -> int:
    """The number of tokens that two runs begin with alike."""
    length = min(one.size, other.size)
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
