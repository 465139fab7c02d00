"""What is sent: workloads make the ordered requests of a run from a seeded generator.

    RandomTokens   tokens        made up, nothing shared
    SharedPrefix   prefix        made up, a system prompt shared by all of a group
    TracePrompts   replay        a trace's lengths, and what its hash ids say is shared
    ShareGpt       datasets      the first turns of conversations that people had
    Jsonl          datasets      rows of one's own

Each concern (lengths, contents, order, choice) draws from a stream of its own, so that changing one of them never
moves the others. `as_text` and `as_ids` turn prompts into the form an API takes; `Sharing` says how much of a prompt
was in the ones before it.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from loadgen.exchange import Request
from loadgen.workload.datasets import Jsonl, ShareGpt
from loadgen.workload.lengths import Constant, Length, Lognormal, Uniform, sglang_range, vllm_range
from loadgen.workload.prefix import SharedPrefix
from loadgen.workload.replay import TracePrompts
from loadgen.workload.sharing import Sharing
from loadgen.workload.tokenizer import Tokenizer, TokenizerError, as_ids, as_text
from loadgen.workload.tokens import RandomTokens

__all__ = [
    "Constant",
    "Jsonl",
    "Length",
    "Lognormal",
    "RandomTokens",
    "ShareGpt",
    "SharedPrefix",
    "Sharing",
    "Tokenizer",
    "TokenizerError",
    "TracePrompts",
    "Uniform",
    "Workload",
    "as_ids",
    "as_text",
    "sglang_range",
    "vllm_range",
]


class Workload(Protocol):
    """Something that makes requests."""

    def requests(self, rng: np.random.Generator) -> Iterator[Request]:
        """Requests in order, numbered from 0: without end where they are made up, to its end where a data set is read.
        Equal generators give equal requests."""
        ...
