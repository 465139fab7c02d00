"""How much of a prompt was already in the prompts before it."""

from array import array
from collections.abc import Sequence

import numpy as np

from loadgen.exchange import Prompt


class Sharing:
    """What a prefix cache without limit, cold at the start, could have answered from: hits beyond it are none that the
    workload implies, so the cache was warm.

    Exact to the token. What was seen is kept in order, where the prompt that has most in common with a new one is a
    neighbour of the place the new one belongs; one that a longer one begins with is dropped. Prompts are kept, not
    copied: nobody may change them afterwards.
    """

    def __init__(self) -> None:
        self._seen: list[array[int]] = []

    def of(self, prompt: Prompt) -> int | None:
        """How many leading tokens of `prompt` an earlier one begins with too; then it counts as seen.

        At most all but one, since a server computes the last token in any case, to have something to go on from. None
        for a text or a conversation: their tokens are the server's.
        """
        if isinstance(prompt, str | tuple):
            return None
        return max(0, min(self.add(prompt), len(prompt) - 1))

    def add(self, ids: Sequence[int]) -> int:
        """Note ids as seen and return how many of them, from the first, were seen before.

        For what the cache also holds: a prompt with its answer, which the next turn of the conversation begins with.
        """
        new = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)
        low, high, before, after = 0, len(self._seen), 0, 0
        while low < high:
            middle = (low + high) // 2
            other = self._seen[middle]
            same = common(other, new)
            if same == len(other) or (same < len(new) and other[same] < new[same]):
                low, before = middle + 1, same
            else:
                high, after = middle, same
        if low > 0 and before == len(self._seen[low - 1]):
            self._seen[low - 1] = new
        elif not (low < len(self._seen) and after == len(new)):
            self._seen.insert(low, new)
        return max(before, after)


def common(a: "array[int]", b: "array[int]") -> int:
    """How many leading ids two prompts have in common."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    first = int(differ.argmax())
    return first if differ[first] else n
