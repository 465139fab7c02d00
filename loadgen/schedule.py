"""The schedule: who leaves when, with what. It is data, made before the clock starts.

Each concern draws from a stream of its own, named under the one seed, so that the arrivals do not move when the
workload changes, nor either of them when a warm-up is added. The fingerprints say whether two runs had the same
offsets and the same requests.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from loadgen.exchange import Request, Sampling
from loadgen.scenario import Scenario


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream that this seed has for this name."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode()))))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests and their offsets in seconds from the start, pairwise; `warmup` goes out before the start."""

    offsets: list[float]
    requests: list[Request]
    warmup: list[Request]
    fingerprints: dict[str, str]


def plan(scenario: Scenario, seed: int) -> Schedule:
    """The schedule that a scenario has under a seed; the same on every machine."""
    n = scenario.workload.num_prompts
    workload = scenario.workload.prompts()
    offsets = list(itertools.islice(scenario.arrivals.process().offsets(stream(seed, "arrivals")), n))
    sampling = Sampling(**scenario.sampling.model_dump())
    drawn = itertools.islice(workload.requests(stream(seed, "workload")), n)
    requests = [replace(request, sampling=sampling) for request in drawn]
    drawn = itertools.islice(workload.requests(stream(seed, "warmup")), scenario.measure.warmup)
    warmup = [replace(request, sampling=sampling) for request in drawn]
    fingerprints = {
        "schedule": fingerprint_of_offsets(offsets),
        "workload": fingerprint_of_requests(requests),
        "concurrency": _fingerprint(scenario.limits.model_dump_json(include={"max_concurrency", "overflow"}).encode()),
        "sampling": _fingerprint(scenario.sampling.model_dump_json().encode()),
    }
    return Schedule(offsets, requests, warmup, fingerprints)


def fingerprint_of_offsets(offsets: Iterable[float]) -> str:
    """Taken at nanoseconds: the last bit of a logarithm may differ between machines, an arrival does not."""
    return _fingerprint(np.rint(np.fromiter(offsets, float) * 1e9).astype("<i8").tobytes())


def fingerprint_of_requests(requests: Iterable[Request]) -> str:
    """Over prompts and asked output lengths, in order."""
    digest = hashlib.sha256()
    for request in requests:
        prompt = request.prompt
        if isinstance(prompt, str | tuple):
            content = json.dumps(prompt, sort_keys=True).encode()
        else:
            content = np.asarray(prompt, "<i4").tobytes()
        digest.update(np.array([len(prompt), request.output_len], "<i8").tobytes())
        digest.update(content)
    return digest.hexdigest()[:16]


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
