"""A virtual clock for tests: an event loop that jumps to its next timer instead of waiting for it.

An hour of load passes in seconds, and the answer can be held against queueing theory.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Jump(selectors.SelectSelector):
    """Waits for nothing: moves the clock on by as long as it was asked to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen: every task waits for another"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def in_virtual_time(work: Callable[[VirtualLoop], Coroutine[Any, Any, T]], kind: type[VirtualLoop] = VirtualLoop) -> T:
    """The result of work(loop), run on a virtual clock that starts at 0."""
    loop = kind()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()
