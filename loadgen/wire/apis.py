"""The APIs that are spoken: where a request goes, what it says, and how its answer is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.exchange import Exchange, Request
from loadgen.wire.answer import Answer, GenerateAnswer, OpenAiAnswer


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the server is to choose tokens. `ignore_eos` makes answers exactly as long as asked for."""

    temperature: float
    top_p: float
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Api:
    path: str
    _body: Callable[[Request, Sampling, str], dict[str, Any]]
    _answer: type[Answer]

    def payload(self, request: Request, sampling: Sampling, model: str) -> bytes:
        """The JSON that asks for this request's answer as a stream."""
        return json.dumps({"stream": True, **self._body(request, sampling, model)}).encode()

    def answer(self, exchange: Exchange, sampling: Sampling) -> Answer:
        """A reader for the answer, which notes it on the exchange."""
        return self._answer(exchange, exact=sampling.ignore_eos)


def _generate(request: Request, sampling: Sampling, _: str) -> dict[str, Any]:
    return {
        "input_ids": list(request.input_ids),
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": request.output_len,
            "ignore_eos": sampling.ignore_eos,
        },
    }


def _openai(request: Request, sampling: Sampling, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": request.output_len,  # chat's newer name, max_completion_tokens, is not known to older servers
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "ignore_eos": sampling.ignore_eos,  # not OpenAI's own; SGLang and vLLM know it
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _completions(request: Request, sampling: Sampling, model: str) -> dict[str, Any]:
    return {"prompt": list(request.input_ids), **_openai(request, sampling, model)}


def _chat(request: Request, sampling: Sampling, model: str) -> dict[str, Any]:
    """Chat takes text: one word for each token id, so that lengths are in words. How many tokens the server made of
    them, it says in its usage, and that is noted as `input_tokens`."""
    words = " ".join(f"w{token}" for token in request.input_ids)
    return {"messages": [{"role": "user", "content": words}], **_openai(request, sampling, model)}


APIS = {
    "generate": Api("/generate", _generate, GenerateAnswer),
    "completions": Api("/v1/completions", _completions, OpenAiAnswer),
    "chat": Api("/v1/chat/completions", _chat, OpenAiAnswer),
}
