"""Whether two runs had the same: short hashes over offsets, requests, and their parts."""

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from loadgen.exchange import Request


def of_offsets(offsets: Iterable[float]) -> str:
    """Taken at nanoseconds: the last bit of a logarithm may differ between machines, an arrival does not."""
    return of_bytes(np.rint(np.fromiter(offsets, float) * 1e9).astype("<i8").tobytes())


def of_requests(requests: Iterable[Request]) -> str:
    """Over prompts and asked output lengths, in order."""
    digest = hashlib.sha256()
    for request in requests:
        digest.update(np.array([len(request.prompt), request.output_len], "<i8").tobytes())
        digest.update(_content(request))
    return digest.hexdigest()[:16]


def of_prompts(requests: Iterable[Request]) -> str:
    """Over prompts alone, in order: tells other prompts from other output lengths."""
    digest = hashlib.sha256()
    for request in requests:
        digest.update(np.array([len(request.prompt)], "<i8").tobytes())
        digest.update(_content(request))
    return digest.hexdigest()[:16]


def of_lengths(requests: Iterable[Request]) -> str:
    """Over asked output lengths alone, in order."""
    return of_bytes(np.array([request.output_len for request in requests], "<i8").tobytes())


def joined(fingerprints: Iterable[str]) -> str:
    """One for all classes of traffic; that of a single class stays as it is."""
    first, *rest = fingerprints
    return of_bytes("".join([first, *rest]).encode()) if rest else first


def of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _content(request: Request) -> bytes:
    if isinstance(request.prompt, str | tuple):
        return json.dumps(request.prompt, sort_keys=True).encode()
    return np.asarray(request.prompt, "<i4").tobytes()
