"""The JSON of the three APIs, in the shapes of SGLang 0.5: how a generation looks as a stream and as a whole.

Text is made of words `w17`, one a token; a word of that form stands for that token id, any other for a hash.

Nearly all chunks of a stream differ in a few places only, so their JSON is made once, with holes that each chunk fills.
"""

import json
import re
import time
import uuid
import zlib
from typing import Any, Protocol

from loadgen.simulator.engine import Generation

Json = dict[str, Any]


class Shape(Protocol):
    """How one API answers: the events of its stream as bytes, or one JSON object."""

    def opening(self, generation: Generation) -> bytes: ...
    def chunk(self, generation: Generation, new_ids: list[int]) -> bytes: ...
    def closing(self, generation: Generation) -> bytes: ...
    def whole(self, generation: Generation) -> Json: ...


def words(ids: list[int]) -> str:
    """Text that needs no escapes in JSON."""
    return "".join(f" w{token}" for token in ids)


def tokenise(text: str, vocab_size: int) -> list[int]:
    """One token a word."""
    return [_token(word, vocab_size) for word in text.split()]


def _token(word: str, vocab_size: int) -> int:
    number = re.fullmatch(r"w(\d{1,9})", word, re.ASCII)
    return (int(number[1]) if number else zlib.crc32(word.encode(errors="replace"))) % vocab_size


def chat_text(messages: list[Json]) -> str:
    """The prompt of a chat: each message after the name of its role, but the assistant's as they were generated, so
    that a prompt and its answer are a prefix of the next turn's prompt."""
    return " ".join(_turn(message.get("role"), _said(message.get("content"))) for message in messages)


def _turn(role: Any, said: str) -> str:
    return said if role == "assistant" else f"{role} {said}"


def _said(content: Any) -> str:
    """The text of a message, which may come in parts."""
    parts = content if isinstance(content, list) else [content]
    return " ".join(str(part.get("text") if isinstance(part, dict) else part) for part in parts)


def event(content: Json) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


END_MARK = b"data: [DONE]\n\n"

# Holes are named anew in each process, so that nothing in a request can look like one.
TEXT, IDS, COUNT = (f"{name} {uuid.uuid4().hex}" for name in ("text", "ids", "count"))


def template(content: Json) -> bytes:
    """An event to be filled in with %: the values TEXT and IDS take bytes, COUNT a number, in the order they stand."""
    made = event(content).replace(b"%", b"%%")
    for hole, filled in ((TEXT, b'"%b"'), (IDS, b"[%b]"), (COUNT, b"%d")):
        made = made.replace(f'"{hole}"'.encode(), filled)
    return made


class GenerateShape:
    """/generate: text and output_ids are cumulative in each chunk.

    Latencies and times of the scheduler are those of the step-time model; the `_ts` stamps that the HTTP face sets are
    the wall clock's, in seconds since 1970.
    """

    def __init__(self) -> None:
        self._received = time.time()
        self._first_sent: float | None = None
        self._text, self._ids = b"", b""
        self._template = b""

    def opening(self, generation: Generation) -> bytes:  # noqa: ARG002 - nothing opens here
        return b""

    def chunk(self, generation: Generation, new_ids: list[int]) -> bytes:
        self._text += words(new_ids).encode()
        self._ids += b"".join(b",%d" % token for token in new_ids)
        if self._first_sent is None:
            self._first_sent = time.time()
            meta = self._meta(generation)
            self._template = template(_generated(TEXT, IDS, meta | {"completion_tokens": COUNT}))
            return event(self.whole(generation, {"response_sent_to_client_ts": self._first_sent}))
        if generation.done:
            return event(self.whole(generation))
        return self._template % (self._text, self._ids[1:], len(generation.output_ids))

    def closing(self, generation: Generation) -> bytes:  # noqa: ARG002 - the last chunk said it all
        return b""

    def whole(self, generation: Generation, more: Json | None = None) -> Json:
        meta = self._meta(generation) | (more or {})
        if generation.done:
            meta |= self._ending(generation)
        return _generated(words(generation.output_ids), generation.output_ids, meta)

    def _meta(self, generation: Generation) -> Json:
        sequence = generation.sequence
        return {
            "id": generation.rid,
            "finish_reason": None,
            "prompt_tokens": sequence.input_len,
            "weight_version": "default",
            "num_retractions": 0,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": self._wall(generation, sequence.admitted),
            "prefill_finished_time": self._wall(generation, generation.first_token_at),
            "queue_time": (sequence.admitted or sequence.submitted) - sequence.submitted,
            "reasoning_tokens": 0,
            "completion_tokens": len(generation.output_ids),
            "cached_tokens": sequence.cached,
            "cached_tokens_details": None,
            "dp_rank": None,
        }

    def _ending(self, generation: Generation) -> Json:
        count, submitted = len(generation.output_ids), generation.sequence.submitted
        first, last = generation.first_token_at or submitted, generation.last_token_at or submitted
        now = time.time()
        return {
            "finish_reason": {"type": "length", "length": count},
            "weight_versions": [{"version": "default", "start": 0, "end": count}],
            "e2e_latency": last - submitted,
            "request_received_ts": self._received,
            "first_token_latency": first - submitted,
            "api_server_dispatch_finish_ts": self._received,
            "response_sent_to_client_ts": self._first_sent or now,
            "request_finished_ts": now,
            "decode_throughput": (count - 1) / (last - first) if last > first else None,
        }

    def _wall(self, generation: Generation, at: float | None) -> float | None:
        return None if at is None else self._received + at - generation.sequence.submitted


def _generated(text: str, ids: list[int] | str, meta: Json) -> Json:
    return {"text": text, "output_ids": ids, "meta_info": meta}


class OpenAiShape:
    """Completions, and chat completions when `chat`."""

    def __init__(self, model: str, stream_options: Json, *, chat: bool, cache_report: bool) -> None:
        self._model, self._chat, self._created = model, chat, int(time.time())
        self._cache_report = cache_report
        self._usage_at_end = bool(stream_options.get("include_usage"))
        self._usage_always = bool(stream_options.get("continuous_usage_stats"))
        self._template = b""

    def opening(self, generation: Generation) -> bytes:
        if not self._chat:
            return b""
        return event(
            self._event(generation, {"delta": {"reasoning_content": None, "role": "assistant", "content": ""}})
        )

    def chunk(self, generation: Generation, new_ids: list[int]) -> bytes:
        text = words(new_ids)
        if self._usage_always or generation.done:
            return event(self._chunk(generation, text))
        self._template = self._template or template(self._chunk(generation, TEXT))
        return self._template % text.encode()

    def closing(self, generation: Generation) -> bytes:
        events = b""
        if self._chat:
            events += event(self._event(generation, {"delta": {"reasoning_content": None}}, "length"))
        if self._usage_at_end:
            events += event(self._head(generation, ".chunk") | {"choices": [], "usage": self._usage(generation)})
        return events

    def whole(self, generation: Generation) -> Json:
        text = words(generation.output_ids)
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length", "matched_stop": None}
        return self._head(generation, "") | {"choices": [choice], "usage": self._usage(generation)}

    def _chunk(self, generation: Generation, text: str) -> Json:
        if self._chat:
            return self._event(generation, {"delta": {"reasoning_content": None, "content": text}})
        return self._event(generation, {"text": text}, "length" if generation.done else None)

    def _event(self, generation: Generation, said: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
        usage = {"usage": self._usage(generation)} if self._usage_always else {} if self._chat else {"usage": None}
        return self._head(generation, ".chunk") | {"choices": [choice]} | usage

    def _head(self, generation: Generation, part: str) -> Json:
        kind = f"chat.completion{part}" if self._chat else "text_completion"
        return {"id": generation.rid, "object": kind, "created": self._created, "model": self._model}

    def _usage(self, generation: Generation) -> Json:
        sequence = generation.sequence
        return {
            "prompt_tokens": sequence.input_len,
            "total_tokens": sequence.input_len + sequence.generated,
            "completion_tokens": sequence.generated,
            "prompt_tokens_details": {"cached_tokens": sequence.cached} if self._cache_report else None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        }
