"""What comes back for one request, noted on its exchange; and whether it is whole.

An answer is whole if it is an event stream without an error in it, says why it finished, ends with its end mark
`[DONE]`, and brought as many tokens as it should. Everything else is a Fault: an HTTP 200 alone says nothing.
"""

import json
from typing import Any

from loadgen.exchange import Exchange, Fault, Outcome
from loadgen.wire.sse import Decoder

END_MARK = b"[DONE]"
_SHOWN = 200  # characters of the server's text kept in a fault
_HEAD = 65536  # bytes kept of a body that is no event stream: it may be one JSON error with a long message


class Answer:
    """Reads one answer. Under ignore_eos exactly the number of tokens asked for must come."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._exact = exchange, exchange.request.sampling.ignore_eos
        self._keep = exchange.request.session is not None  # a next turn will need what was said
        self._events = Decoder()
        self._head = bytearray()  # the first bytes, until there is an event
        self._seen_event = self._ended = False
        self._finish_reason: str | None = None
        self._counted = 0  # output tokens by the server's own running count
        self._total: int | None = None  # output tokens by the server's last word

    def feed(self, data: bytes, at: float) -> None:
        """Take bytes of the body that were read at `at`; raises Fault."""
        events = self._events.feed(data)
        if not self._seen_event:
            self._head += data[: _HEAD - len(self._head)]
            self._seen_event = bool(events)
        for event in events:
            if self._ended:
                raise Fault(Outcome.PROTOCOL, f"an event after the end mark: {_shown(event)}")
            if event == END_MARK:
                self._ended = True
            else:
                self._note(event, at)

    def close(self) -> None:
        """The body has ended; raises Fault unless the answer is whole."""
        if not self._seen_event:
            raise self._no_stream()
        if not self._ended:
            got = len(self._exchange.at)
            raise Fault(Outcome.TRUNCATED, f"the stream ended without {END_MARK.decode()}, after {got} chunks")
        if self._events.pending:
            raise Fault(Outcome.PROTOCOL, "the stream went on after its end mark")
        self.settle()

    def settle(self) -> None:
        """All events have been taken; raises Fault unless they finished the answer and brought what was asked for."""
        asked, got = self._exchange.request.output_len, len(self._exchange.at)
        if self._finish_reason is None:
            raise Fault(Outcome.TRUNCATED, f"the stream ended without a finish reason, after {got} chunks")
        total = self._exchange.output_tokens = self._total
        if total is not None and (total > asked or (self._exact and total != asked)):
            hint = "; does this server know ignore_eos?" if total < asked else ""
            raise Fault(Outcome.TOKEN_MISMATCH, f"{asked} output tokens were asked for, {total} came{hint}")
        if (total is None and got > asked) or (self._exact and not got):
            raise Fault(Outcome.TOKEN_MISMATCH, f"{asked} output tokens were asked for, {got} chunks brought any")

    def _note(self, event: bytes, at: float) -> None:
        try:
            content = json.loads(event)
        except (ValueError, RecursionError):
            raise Fault(Outcome.PROTOCOL, f"an event that is no JSON: {_shown(event)}") from None
        self.take(content, at)

    def take(self, content: Any, at: float) -> None:
        """Take an event that is decoded already, and was there at `at`; raises Fault."""
        if fault := _error_in(content):
            raise fault
        try:
            self._read(content, at)
        except (KeyError, TypeError, IndexError, AttributeError):
            shown = _shown(json.dumps(content, default=str).encode())
            raise Fault(Outcome.PROTOCOL, f"an event that is not of this API: {shown}") from None

    def _read(self, content: Any, at: float) -> None:
        """Note one event of this API."""
        raise NotImplementedError

    def _count(self, tokens: int, at: float) -> None:
        """Note the server's running count of output tokens. It may rise in an event that brought no text: the server
        holds text back until its characters are whole."""
        if tokens < self._counted:
            raise Fault(Outcome.TOKEN_MISMATCH, f"the output token count fell from {self._counted} to {tokens}")
        self._total = tokens
        if tokens > self._counted:
            self._counted = tokens
            self._exchange.chunk(at, tokens)

    def _finish(self, reason: str | None, message: str | None = None) -> None:
        if reason == "abort":
            raise Fault(
                Outcome.SERVER_ERROR, _printable(f"the server aborted the request: {message or 'no reason given'}")
            )
        self._finish_reason = reason or self._finish_reason

    def _no_stream(self) -> Fault:
        head = bytes(self._head).strip()
        try:
            error = _error_in(json.loads(head))
        except (ValueError, RecursionError):
            error = None
        if error:
            return error
        if head.startswith((b"data:", b":", b"event:")) or b"data:".startswith(head):
            return Fault(Outcome.TRUNCATED, "the body ended before its first event")
        return Fault(Outcome.PROTOCOL, f"not an event stream: {_shown(head)}")


class GenerateAnswer(Answer):
    """SGLang's /generate: `meta_info` counts the output tokens so far, and one event may bring several."""

    _said: Any = None  # ids or text, as the server sent them

    def _read(self, content: Any, at: float) -> None:
        meta = content["meta_info"]
        self._exchange.input_tokens = _tokens(meta["prompt_tokens"])
        if (cached := meta.get("cached_tokens")) is not None:
            self._exchange.cached_tokens = _tokens(cached)
        total = _tokens(meta["completion_tokens"])
        if self._keep:
            self._keep_said(content, total)
        self._count(total, at)
        if reason := meta["finish_reason"]:
            self._finish(reason["type"], reason.get("message"))
            self._note_times(meta)

    def _note_times(self, meta: Any) -> None:
        """The server's own times, which SGLang tells with --enable-metrics; stamps are seconds since 1970."""
        first, received = meta.get("first_token_latency"), meta.get("request_received_ts")
        handed = meta.get("response_sent_to_client_ts")
        if all(isinstance(time, int | float) for time in (first, received, handed)):
            self._exchange.server_ttft, self._exchange.server_span = float(first), float(handed - received)

    def _keep_said(self, content: Any, total: int) -> None:
        """Keep what the next turn will need: ids where the prompt was ids, text where it was text. The server sends all
        so far with each event, or under --incremental-streaming-output what is new; the ids tell which."""
        ids = content.get("output_ids")
        new = content["text"] if isinstance(self._exchange.request.prompt, str) else ids
        if new:
            whole = self._said is None or ids is None or len(ids) == total
            self._said = new if whole else self._said + new

    def settle(self) -> None:
        super().settle()
        if isinstance(self._said, list):
            if not all(type(id_) is int and 0 <= id_ < 1 << 31 for id_ in self._said):
                raise Fault(Outcome.PROTOCOL, f"output_ids that are no token ids: {_printable(str(self._said))}")
            self._exchange.answer = self._said
        elif isinstance(self._said, str):
            self._exchange.answer = self._said


class OpenAiAnswer(Answer):
    """Completions and chat completions.

    Where each chunk carries its usage (`continuous_usage_stats`) the tokens are the server's count. Where usage comes
    only at the end, each chunk with output counts as one until the total is known, and the total is then dealt evenly
    over the chunks. Where it never comes, the chunks are all there is, and `output_tokens` stays None.
    """

    _uncounted = False  # output came in a chunk without a count
    _final: int | None = None  # the count in the chunk that gave the finish reason

    def _read(self, content: Any, at: float) -> None:
        choices, usage = content["choices"], content.get("usage")
        if self._keep and choices:
            self._exchange.answer = str(self._exchange.answer or "") + _said(choices[0])
        total = self._note_usage(usage) if usage else None
        if choices:
            self._finish_choice(choices[0], total)
        if total is not None and not self._uncounted and (choices or self._counted):
            self._count(total, at)
        elif choices and _brings_output(choices[0]):
            self._uncounted = True
            self._total = total
            self._exchange.chunk(at, self._exchange.tokens[-1] + 1 if self._exchange.tokens else 1)

    def _note_usage(self, usage: Any) -> int:
        """The output tokens by this usage. SGLang's chat counts only chunks with text, so that the usage at the end may
        rightly name more tokens than the last of them; not so once the count of the finishing chunk is known."""
        total = _tokens(usage["completion_tokens"])
        if self._final not in (None, total):
            raise Fault(Outcome.TOKEN_MISMATCH, f"{self._final} tokens came by the chunks' count, {total} by usage")
        self._total = total
        self._exchange.input_tokens = _tokens(usage["prompt_tokens"])
        details = usage.get("prompt_tokens_details")
        if details and (cached := details.get("cached_tokens")) is not None:
            self._exchange.cached_tokens = _tokens(cached)
        return total

    def _finish_choice(self, choice: Any, total: int | None) -> None:
        reason = choice.get("finish_reason")
        self._finish(reason)
        if reason:
            self._final = total

    def settle(self) -> None:
        super().settle()
        if self._uncounted and self._total is not None:
            self._exchange.settle(self._total)


def _brings_output(choice: Any) -> bool:
    """Not so the role-only chunk that opens a chat, nor an empty delta."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice["text"])
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _said(choice: Any) -> str:
    """The text of a choice that belongs into the conversation: not the reasoning."""
    delta = choice.get("delta")
    return str((choice["text"] if delta is None else delta.get("content")) or "")


def _error_in(content: Any) -> Fault | None:
    """The fault in an event or body that is an error object, in SGLang's form, OpenAI's or vLLM's."""
    if not isinstance(content, dict):
        return None
    error = content.get("error") or (content if content.get("object") == "error" else None)
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return Fault(Outcome.SERVER_ERROR, _printable(str(message or error)))


def _tokens(count: Any) -> int:
    """A number of tokens as JSON has it; raises TypeError for anything else."""
    if type(count) is not int or count >> 63:  # negative, or more than an exchange can hold
        raise TypeError
    return count


def _printable(text: str) -> str:
    """The beginning of a text that may hold half a surrogate pair, which JSON allows and no encoding does."""
    return text[:_SHOWN].encode("utf-8", "replace").decode()


def _shown(data: bytes) -> str:
    return data[:_SHOWN].decode("utf-8", "replace")
