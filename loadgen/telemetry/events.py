"""What one line of an SGLang server's log says of a scheduler step: a prefill batch, a decode batch, a retraction.

The words are those of SGLang 0.5.23 (metrics_reporter.py, scheduler.py). A line is taken apart into its `key: value`
pairs, so that more of them than are known here do no harm, and those that a version or a mode does not print are None.

What a line stands for (metrics_reporter.py and batch_result_processor.py were read, and the log of a real server):

- It is written when the batch's result has been taken in, which under the overlap schedule is just after the next
  batch was launched: it dates the end of its own forward, not its beginning.
- `running` of a decode line is that batch's size; of a prefill line it is the decoding requests at its admission,
  without its own. `queued`, `usage` and `tokens` are those at the writing, so `usage` of a first prefill may already
  have in it what the batch launched after it takes. Each prefill batch has a line; a decode batch only every
  decode_log_interval-th.
- A prompt in several chunks counts in `new_seqs` once per chunk, in `new_tokens` with each chunk's own tokens, and in
  `cached_tokens` once, with its first chunk. The sum of `new_tokens + cached_tokens` is the prompt tokens to the unit,
  plus one token per /health_generate probe; a retracted request adds its prompt and what it had generated once more.
- With interval 1 the sum of `running` over decode lines is the decoded tokens (each answer's first token is of its
  prefill) where answers end by their length. Under the overlap schedule an answer that ends by a stop token or is
  aborted or retracted may be in one more batch; with mixed chunks the decoding inside prefill batches has no line.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_BATCH = re.compile(r"(Prefill|Decode) batch(?: \[(\d+)\])?[,.] (.*)")
_RETRACTION = re.compile(r"(?:KV cache pool is full\. Retract requests|Testing retraction)\. (.*)")
_USAGES = ("token usage", "full token usage", "swa token usage", "mamba usage")


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill batch; `at` in epoch seconds, `usage` a share of the pool, `throughput` in tokens/s over the time since
    the prefill line before, idle time included: not the speed of a step."""

    at: float
    new_seqs: int
    new_tokens: int
    cached_tokens: int
    usage: float
    running: int
    queued: int
    pending: int | None  # prompt tokens that still wait
    graph: bool | None
    graph_label: str
    throughput: float | None
    iteration: int | None
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode batch; `throughput` in tokens/s over the time since the decode line before, by the server's clock."""

    at: float
    running: int
    tokens: int | None  # in the pool
    usage: float
    graph: bool | None
    graph_label: str
    throughput: float
    queued: int
    accept_len: float | None  # tokens per sequence and step under speculative decoding
    iteration: int | None = None
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Retraction:
    """Requests thrown out of a full pool, back into the queue; `gained` in tokens."""

    at: float
    requests: int
    gained: int | None
    ratio_before: float | None
    ratio_after: float | None
    rank: str = ""


Batch = Prefill | Decode
Event = Batch | Retraction


def reports(message: str) -> bool:
    """Whether a log message begins as one of these lines does."""
    return message.startswith(
        ("Prefill batch", "Decode batch", "KV cache pool is full. Retract", "Testing retraction.")
    )


def read(message: str, at: float, rank: str = "") -> Event:
    """The event of such a message; raises ValueError where it cannot be read."""
    if found := _BATCH.fullmatch(message):
        kind, iteration, rest = found.groups()
        fields = _Fields(rest)
        label = next((key for key in fields if key.endswith(" graph")), "")
        graph = {"True": True, "False": False}.get(fields.get(label, ""))
        step = int(iteration) if iteration else None
        if kind == "Prefill":
            return Prefill(
                at,
                new_seqs=fields.need("#new-seq", _count),
                new_tokens=fields.need("#new-token", _count),
                cached_tokens=fields.need("#cached-token", _count),
                usage=fields.usage(),
                running=fields.need("#running-req", _count),
                queued=fields.need("#queue-req", _count),
                pending=fields.take("#pending-token", _count),
                graph=graph,
                graph_label=label,
                throughput=fields.take("input throughput (token/s)", _number),
                iteration=step,
                rank=rank,
            )
        tokens = fields.take("#token", _count)
        return Decode(
            at,
            running=fields.need("#running-req", _count),
            tokens=fields.take("#full token", _count) if tokens is None else tokens,
            usage=fields.usage(),
            graph=graph,
            graph_label=label,
            throughput=fields.need("gen throughput (token/s)", _number),
            queued=fields.need("#queue-req", _count),
            accept_len=fields.take("accept len", _number),
            iteration=step,
            rank=rank,
        )
    if found := _RETRACTION.fullmatch(message):
        fields = _Fields(found[1])
        before, after = fields.take("#new_token_ratio", _two_numbers) or (None, None)
        gained = fields.take("#new_tokens_gained", int)
        return Retraction(at, fields.need("#retracted_reqs", _count), gained, before, after, rank)
    raise ValueError("no batch, and no retraction")


class _Fields(dict[str, str]):
    """The `key: value` pairs of a line; what is not such a pair is left out."""

    def __init__(self, text: str) -> None:
        super().__init__(
            (key, value) for key, colon, value in (part.partition(": ") for part in text.split(", ")) if colon
        )

    def need(self, key: str, read: Callable[[str], T]) -> T:
        if key not in self:
            raise ValueError(f"it has no {key}")
        return read(self[key])

    def take(self, key: str, read: Callable[[str], T]) -> T | None:
        return read(self[key]) if key in self else None

    def usage(self) -> float:
        """The fullest pool's share, as the server's own gauge token_usage takes it: hybrid models have several."""
        usages = [_number(self[key]) for key in _USAGES if key in self]
        if not usages:
            raise ValueError("it has no token usage")
        return max(usages)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no count")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no number")
    return value


def _two_numbers(text: str) -> tuple[float, float]:
    before, _, after = text.partition(" -> ")
    return _number(before), _number(after)
