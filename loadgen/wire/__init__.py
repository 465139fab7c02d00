"""Bytes to events, without I/O: what goes out for a request, and what comes back.

sse       event streams, as the WHATWG HTML standard defines them (section 9.2)
apis      the APIs that are spoken: SGLang's /generate, OpenAI's completions and chat completions
"""

from loadgen.wire.answer import Answer
from loadgen.wire.apis import APIS, Api

__all__ = ["APIS", "Answer", "Api"]
