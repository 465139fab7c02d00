"""The APIs that are spoken: where a request goes, what it says, and how its answer is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.exchange import Exchange, Message, Prompt, Request
from loadgen.wire.answer import Answer, GenerateAnswer, OpenAiAnswer


@dataclass(frozen=True, slots=True)
class Api:
    path: str
    _body: Callable[[Request, str], dict[str, Any]]
    _answer: type[Answer]

    def payload(self, request: Request, model: str) -> bytes:
        """The JSON that asks for this request's answer as a stream."""
        return json.dumps({"stream": True, **self._body(request, model)}).encode()

    def answer(self, exchange: Exchange) -> Answer:
        """A reader for the answer, which notes it on the exchange."""
        return self._answer(exchange)


def generate_body(request: Request, _: str = "") -> dict[str, Any]:
    """What SGLang's native API is asked, over HTTP or in process: the prompt and its sampling parameters."""
    sampling = request.sampling
    assert not isinstance(request.prompt, tuple), "a conversation has no form in this API"
    prompt = {"text": request.prompt} if isinstance(request.prompt, str) else {"input_ids": list(request.prompt)}
    return prompt | {
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": request.output_len,
            "ignore_eos": sampling.ignore_eos,
        },
    }


def _openai(request: Request, model: str) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "max_tokens": request.output_len,  # chat's newer name, max_completion_tokens, is not known to older servers
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **({"ignore_eos": True} if sampling.ignore_eos else {}),  # not OpenAI's own; SGLang and vLLM know it
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _completions(request: Request, model: str) -> dict[str, Any]:
    assert not isinstance(request.prompt, tuple), "a conversation has no form in this API"
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    return {"prompt": prompt, **_openai(request, model)}


def _chat(request: Request, model: str) -> dict[str, Any]:
    return {"messages": list(conversation(request.prompt)), **_openai(request, model)}


def conversation(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as chat takes it. Token ids have no text of their own: without a tokenizer each is said as one word, so
    that lengths are in words; how many tokens the server made of them, it says in its usage."""
    if isinstance(prompt, tuple):
        return prompt
    return ({"role": "user", "content": prompt if isinstance(prompt, str) else " ".join(f"w{id_}" for id_ in prompt)},)


APIS = {
    "generate": Api("/generate", generate_body, GenerateAnswer),
    "completions": Api("/v1/completions", _completions, OpenAiAnswer),
    "chat": Api("/v1/chat/completions", _chat, OpenAiAnswer),
}
