"""Taking a request in, over HTTP or in process: its prompt as ids, and what is wrong with it."""

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from loadgen.simulator.engine import Engine, Generation, answer
from loadgen.simulator.radix import Ids
from loadgen.simulator.sequence import Sequence
from loadgen.simulator.settings import Settings
from loadgen.simulator.shapes import tokenise


class BadRequestError(ValueError):
    """What is wrong with a request, for its sender."""


def take_in(
    engine: Engine,
    settings: Settings,
    prompt: Any,
    max_new_tokens: int,
    rid: str | None,
    token: Callable[[Generation, float], None],
) -> Generation:
    """A generation that may be submitted; `token` will hear of each of its tokens. Raises BadRequestError."""
    ids = _prompt_ids(prompt, settings.vocab_size)
    if max_new_tokens < 1:
        raise BadRequestError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if ids.size + max_new_tokens > settings.context_length:
        raise BadRequestError(
            f"Requested token count exceeds the model's maximum context length of {settings.context_length}: "
            f"{ids.size} tokens of input and {max_new_tokens} of output were asked for."
        )
    if fault := engine.scheduler.never_fits(ids.size, max_new_tokens):
        raise BadRequestError(fault)
    said = answer(ids, settings.vocab_size, settings.random_seed)
    return Generation(rid or uuid.uuid4().hex, Sequence(ids, max_new_tokens, engine.now(), said), token)


def _prompt_ids(prompt: Any, vocab_size: int) -> Ids:
    if isinstance(prompt, str):
        ids = tokenise(prompt, vocab_size)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        ids = prompt
    else:
        raise BadRequestError("a prompt must be given as text or as one list of token ids")
    if not ids:
        raise BadRequestError("the prompt is empty")
    try:
        return np.array(ids, np.int64)
    except OverflowError:
        raise BadRequestError("a token id must fit into 64 bits") from None
