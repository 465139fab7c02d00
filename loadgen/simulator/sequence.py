"""One request as the scheduler sees it: its tokens, and how many of them are in the pool."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from loadgen.simulator.radix import Ids


class Stage(Enum):
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the scheduler. `submitted` and `admitted` are on the driver's clock, in seconds.

    `answer` is what the model will say, a token id at a time, without an end; `output_ids` is what it has said.
    """

    prompt_ids: Ids
    max_new_tokens: int
    submitted: float
    answer: Iterator[int]
    output_ids: list[int] = field(default_factory=list)
    stage: Stage = Stage.WAITING
    prefilled: int = 0  # tokens of the prompt in the pool
    cached: int = 0  # those of them that were there when it was admitted
    shared: int = 0  # tokens that it holds through the cache; the rest of its context is its own
    admitted: float | None = None
    aborted: bool = False

    @property
    def input_len(self) -> int:
        return self.prompt_ids.size

    @property
    def generated(self) -> int:
        return len(self.output_ids)

    @property
    def context(self) -> int:
        """Tokens in the pool: the last token's entry is made by the step that uses it."""
        return self.prefilled + max(self.generated - 1, 0)

    @property
    def reserved(self) -> int:
        """Tokens that it may still come to hold, in all."""
        return self.input_len + self.max_new_tokens

    def computed_ids(self) -> Ids:
        """The tokens in the pool, as many as `context` says."""
        if self.generated < 2:
            return self.prompt_ids[: self.prefilled]
        return np.concatenate([self.prompt_ids, np.array(self.output_ids[:-1], np.int64)])
