"""The JSON of the three APIs, in the shapes of SGLang 0.5: how a generation looks as a stream and as a whole.

Text is made of words `w17`, one a token; a word of that form stands for that token id, any other for a hash.
"""

import json
import re
import time
import zlib
from typing import Any, Protocol

from loadgen.simulator.engine import Generation

Json = dict[str, Any]


class Shape(Protocol):
    """How one API answers. `at` is the wall clock of the step, in seconds since 1970."""

    def opening(self, generation: Generation) -> list[Json]: ...
    def chunk(self, generation: Generation, new_ids: list[int]) -> list[Json]: ...
    def closing(self, generation: Generation) -> list[Json]: ...
    def whole(self, generation: Generation) -> Json: ...


def words(ids: list[int]) -> str:
    return "".join(f" w{token}" for token in ids)


def tokenise(text: str, vocab_size: int) -> list[int]:
    """One token a word."""
    return [_token(word, vocab_size) for word in text.split()]


def _token(word: str, vocab_size: int) -> int:
    number = re.fullmatch(r"w(\d+)", word)
    return (int(number[1]) if number else zlib.crc32(word.encode())) % vocab_size


def event(content: Json) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


END_MARK = b"data: [DONE]\n\n"


class GenerateShape:
    """/generate: text and output_ids are cumulative in each chunk."""

    def __init__(self) -> None:
        self._received = time.time()
        self._began = time.perf_counter()

    def opening(self, generation: Generation) -> list[Json]:  # noqa: ARG002 - nothing opens here
        return []

    def chunk(self, generation: Generation, new_ids: list[int]) -> list[Json]:  # noqa: ARG002 - all of it every time
        return [self.whole(generation)]

    def closing(self, generation: Generation) -> list[Json]:  # noqa: ARG002 - the last chunk said it all
        return []

    def whole(self, generation: Generation) -> Json:
        ids = generation.output_ids
        meta: Json = {
            "id": generation.rid,
            "finish_reason": {"type": "length", "length": len(ids)} if generation.done else None,
            "prompt_tokens": len(generation.prompt_ids),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if generation.done:
            meta["e2e_latency"] = time.perf_counter() - self._began
            meta["request_received_ts"] = self._received
        return {"text": words(ids), "output_ids": ids, "meta_info": meta}


class OpenAiShape:
    """Completions, and chat completions when `chat`."""

    def __init__(self, model: str, stream_options: Json, *, chat: bool) -> None:
        self._model, self._chat, self._created = model, chat, int(time.time())
        self._usage_at_end = bool(stream_options.get("include_usage"))
        self._usage_always = bool(stream_options.get("continuous_usage_stats"))

    def opening(self, generation: Generation) -> list[Json]:
        if not self._chat:
            return []
        return [self._event(generation, {"delta": {"reasoning_content": None, "role": "assistant", "content": ""}})]

    def chunk(self, generation: Generation, new_ids: list[int]) -> list[Json]:
        text = words(new_ids)
        if self._chat:
            return [self._event(generation, {"delta": {"reasoning_content": None, "content": text}})]
        return [self._event(generation, {"text": text}, "length" if generation.done else None)]

    def closing(self, generation: Generation) -> list[Json]:
        events = []
        if self._chat:
            events.append(self._event(generation, {"delta": {"reasoning_content": None}}, "length"))
        if self._usage_at_end:
            events.append(self._head(generation, ".chunk") | {"choices": [], "usage": _usage(generation)})
        return events

    def whole(self, generation: Generation) -> Json:
        text = words(generation.output_ids)
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length", "matched_stop": None}
        return self._head(generation, "") | {"choices": [choice], "usage": _usage(generation)}

    def _event(self, generation: Generation, said: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
        usage = {"usage": _usage(generation)} if self._usage_always else {} if self._chat else {"usage": None}
        return self._head(generation, ".chunk") | {"choices": [choice]} | usage

    def _head(self, generation: Generation, part: str) -> Json:
        kind = f"chat.completion{part}" if self._chat else "text_completion"
        return {"id": generation.rid, "object": kind, "created": self._created, "model": self._model}


def _usage(generation: Generation) -> Json:
    prompt, output = len(generation.prompt_ids), len(generation.output_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
