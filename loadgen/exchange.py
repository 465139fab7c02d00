"""What one request saw, and every metric that is computed from it.

All metric definitions stand in this file and nowhere else. One request has one origin, the instant it was
*due*; a client that falls behind, or a cap that holds it back, makes its latency longer, never its start later
(coordinated omission, G. Tene, "How NOT to measure latency", 2013).

    due ──► ready ──► sent ──────────► first ── … ── last ──► ended
     │        │         │               chunk        chunk     stream closed
     │        │         └ the request's bytes were handed to the socket
     │        └ allowed to leave: `due`, or later where `limits.max_concurrency` held it back
     └ where the schedule put it

    lateness      sent - due
    lag           sent - ready                      the client's own share of the lateness
    ttft          first - due
    ttft_service  first - sent                      what most other tools print as TTFT
    tpot          (last - first) / (tokens at last - tokens at first)
    itl           gaps between chunks, in seconds a token (see `Exchange.itl`)
    e2e           last - due

Instants are seconds on the driver's monotonic clock, durations are seconds. A request that failed keeps its
lateness and has no latencies; it stays in every count.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ItlRule = Literal["spread", "chunk"]

METRICS = ("ttft", "ttft_service", "tpot", "itl", "e2e", "lateness")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


class Outcome(StrEnum):
    """How a request ended. Every scheduled request ends in exactly one of these.

    `OK` and `DROPPED` (the cap was reached and `limits.overflow = "drop"`) are not faults; all others are.
    """

    OPEN = "open"
    OK = "ok"
    DROPPED = "dropped"
    CONNECT = "connect"  # no connection could be made
    TIMEOUT = "timeout"  # one of the limits.timeout_* passed
    STATUS = "status"  # an HTTP status other than 200
    PROTOCOL = "protocol"  # bytes that are no HTTP, no event stream, no JSON, or not this API
    TRUNCATED = "truncated"  # the stream stopped before its end mark
    SERVER_ERROR = "server_error"  # an error object inside a 200
    TOKEN_MISMATCH = "token_mismatch"  # other than the number of tokens asked for, or counts that contradict
    NO_ROOM = "no_room"  # a fixed batch that the pool or the memory has no room for
    CANCELLED = "cancelled"  # still open when the run was stopped


class Fault(Exception):
    """Why a request failed. Clients raise it, the driver notes it on the exchange and goes on."""

    def __init__(self, kind: Outcome, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the server is to choose tokens. `ignore_eos` makes answers exactly as long as asked for."""

    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = True


Message = dict[str, Any]  # {"role": …, "content": …}, as OpenAI's chat has it
Prompt = Sequence[int] | str | tuple[Message, ...]  # token ids, a text, or a conversation


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how much output to ask for.

    A prompt of token ids has an exact length. A text's is what a tokenizer counted, `text_len`, None where there is
    none. `output_len` is in tokens. `traffic` names the class of traffic, "" where there is one only; `index` counts
    within it. A turn of a conversation has the number of its session and, from 0, its own; its prompt is only what it
    adds until the turns before it have been answered.
    """

    index: int
    prompt: Prompt
    output_len: int
    text_len: int | None = None
    sampling: Sampling = Sampling()
    traffic: str = ""
    session: int | None = None
    turn: int = 0

    @property
    def input_len(self) -> int | None:
        """Tokens of the prompt, None where nobody counted them."""
        return self.text_len if isinstance(self.prompt, str | tuple) else len(self.prompt)


@dataclass(slots=True)
class Exchange:
    """One request from the instant it was due to the end of its answer.

    `at` and `tokens` have one entry for each chunk that brought output: when it was read, and the output tokens
    received so far, that chunk's included. `input_tokens`, `output_tokens` and `cached_tokens` are the server's
    own counts, None where it gave none. `shared` is how many of the prompt's leading tokens had been sent or answered
    before in this run, None where that is not known: what a cache that began cold can hold of it at most. `answer` is
    what came, as ids or as text, and kept only where another turn will need it. `server_ttft` and `server_span` are
    what the server says of itself, in seconds by its own clock: from the request being there to its first token, and to
    its first chunk being handed on; None where it does not say.
    """

    request: Request
    due: float
    ready: float | None = None
    sent: float | None = None
    at: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
    ended: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    shared: int | None = None
    answer: Sequence[int] | str | None = None
    server_ttft: float | None = None
    server_span: float | None = None
    outcome: Outcome = Outcome.OPEN
    detail: str = ""

    def chunk(self, at: float, tokens: int) -> None:
        """Note that output was read at `at` and `tokens` output tokens have now come in all."""
        self.at.append(at)
        self.tokens.append(tokens)

    def settle(self, total: int) -> None:
        """Deal `total` output tokens evenly over the chunks, for a server that counts only at the end."""
        chunks = len(self.tokens)
        self.tokens = array("q", (total * (i + 1) // chunks for i in range(chunks)))

    @property
    def answered(self) -> bool:
        """Ended well and brought output: only then are there latencies."""
        return self.outcome is Outcome.OK and len(self.at) > 0

    @property
    def first(self) -> float | None:
        return self.at[0] if self.at else None

    @property
    def last(self) -> float | None:
        return self.at[-1] if self.at else None

    @property
    def lateness(self) -> float | None:
        return None if self.sent is None else self.sent - self.due

    @property
    def lag(self) -> float | None:
        return None if self.sent is None or self.ready is None else self.sent - self.ready

    @property
    def ttft(self) -> float | None:
        return self.at[0] - self.due if self.answered else None

    @property
    def ttft_service(self) -> float | None:
        return self.at[0] - self.sent if self.answered and self.sent is not None else None

    @property
    def transport(self) -> float | None:
        """Of `ttft_service` what is not between the server's two stamps: the ways there and back. No two clocks are
        compared, only a span of ours and one of the server's."""
        ours = self.ttft_service
        return None if ours is None or self.server_span is None else ours - self.server_span

    @property
    def e2e(self) -> float | None:
        return self.at[-1] - self.due if self.answered else None

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first chunk; None for an answer of one chunk."""
        if not self.answered or (after_first := self.tokens[-1] - self.tokens[0]) == 0:
            return None
        return (self.at[-1] - self.at[0]) / after_first

    def itl(self, rule: ItlRule = "spread") -> NDArray[np.float64]:
        """Inter-token latencies in seconds; empty unless the request ended well.

        `spread`: a gap before a chunk of n tokens counts as n latencies of gap/n, so that their sum is last - first
        and a server that sends tokens in bundles is not called slower than it is. `chunk`: one latency, the whole
        gap, for each chunk: what a reader of the stream waited for.
        """
        if not self.answered:
            return np.empty(0)
        at, tokens = np.frombuffer(self.at), np.frombuffer(self.tokens, dtype=np.int64)
        brought = np.diff(tokens, prepend=0) > 0
        gaps, n = np.diff(at[brought]), np.diff(tokens[brought])
        return gaps if rule == "chunk" else np.repeat(gaps / n, n)
