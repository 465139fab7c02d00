"""What the scheduler did in a window of time, from the lines of its log; and those lines as JSON and back.

What a line stands for is told in events.py. Two things follow from it:

- A decode step's seconds are `running / throughput` of its line: the server divides the tokens since its decode line
  before by its own clock, so this holds whatever the stamps are good for. They are a step's only where the line before
  was a decode line too (else a prefill or an idle time is in them), and with an interval over 1 only where both lines
  have the same batch: between them it can only shrink. On a CPU, where a launch is the whole forward, they are the next
  batch's; and where prefills have no lines (disaggregated decode), what lies between is not seen.
- Queue and pool are known only at the lines, so each value is held until the next line of the same rank. With stamps of
  whole seconds that is one sample per second.

With several ranks the figures are those of one rank's scheduler; counts of steps and tokens are sums over all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from operator import attrgetter
from statistics import median
from typing import Any

import numpy as np

from loadgen.telemetry.events import Batch, Decode, Event, Prefill, Retraction

_KINDS: dict[str, type[Event]] = {"prefill": Prefill, "decode": Decode, "retraction": Retraction}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def summary(
    events: Iterable[Event], begin: float, end: float, interval: int | None, pool: int | None = None
) -> dict[str, Any]:
    """The steps whose lines lie in [begin, end], epoch seconds; events outside tell what stood before.

    `interval` is the server's decode_log_interval and `pool` its max_total_num_tokens, None where not known. A figure
    that cannot be had is null, and `reason` says of each why. `by_running` counts the logged decode steps of each batch
    size, those that ran in a graph, and their median seconds. `pool_turnover` is how many times the tokens that were
    written, by prefill and by decode, would fill the pool.
    """
    everything = list(events)
    inside = [event for event in everything if begin <= event.at <= end]
    prefills = [event for event in inside if isinstance(event, Prefill)]
    decodes = [event for event in inside if isinstance(event, Decode)]
    batches = [event for event in everything if not isinstance(event, Retraction)]
    lines: list[Batch] = [*prefills, *decodes]
    retractions = [event.requests for event in inside if isinstance(event, Retraction)]
    steps = [(step, seconds) for step, seconds in _timed(everything, interval) if begin <= step.at <= end]
    tokens = np.sort([prefill.new_tokens for prefill in prefills])
    found: dict[str, Any] = {
        "ranks": sorted({event.rank for event in inside}),
        "prefill_steps": len(prefills),
        "decode_lines": len(decodes),
        "decode_log_interval": interval,
        "new_seqs": sum(prefill.new_seqs for prefill in prefills),
        "retractions": {"events": len(retractions), "requests": sum(retractions)},
        "running": {
            "mean": _weighted([(step.running, seconds) for step, seconds in steps]),
            "peak": max((decode.running for decode in decodes), default=None),
        },
        "queued": {
            "mean": _held(batches, begin, end, attrgetter("queued")),
            "peak": max((line.queued for line in lines), default=None),
        },
        "usage": {
            "mean": _held(batches, begin, end, attrgetter("usage")),
            "peak": max((line.usage for line in lines), default=None),
        },
        "prefill_tokens": {
            "p50": int(tokens[(tokens.size + 1) // 2 - 1]) if tokens.size else None,
            "max": int(tokens[-1]) if tokens.size else None,
        },
        "by_running": _by_running(decodes, steps),
    }
    figures, reason = _tokens(prefills, decodes, interval, pool)
    if not prefills:
        reason["prefill_tokens"] = "no prefill was logged"
    if not steps:
        reason["running"] = "no decode step whose time is known"
    if any(one["step_s"] is None for one in found["by_running"].values()):
        reason["step_s"] = "where null: no such step directly follows another that was logged"
    for name in "queued", "usage":
        if found[name]["mean"] is None or not lines:
            reason[name] = "where null: no line in the window, or none that holds for a time"
    return found | figures | {"reason": reason}


def _tokens(
    prefills: list[Prefill], decodes: list[Decode], interval: int | None, pool: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The tokens that were prefilled, cached, decoded and written, and for those that are not known why."""
    new, cached = sum(prefill.new_tokens for prefill in prefills), sum(prefill.cached_tokens for prefill in prefills)
    decoded: int | None = None
    reason: dict[str, str] = {}
    if interval != 1:
        known = "is not known" if interval is None else f"is {interval}"
        reason["decode_tokens"] = f"decode_log_interval {known}: only with 1 has every step its line"
    elif any(decode.accept_len is not None for decode in decodes):
        reason["decode_tokens"] = "under speculative decoding a step brings more than one token per sequence"
    else:
        decoded = sum(decode.running for decode in decodes)
    if decoded is None:
        reason["pool_turnover"] = "decode_tokens is not known"
    elif not pool:
        reason["pool_turnover"] = "the pool's size is not known"
    if not new + cached:
        reason["hit_rate"] = "no prompt token was prefilled"
    return {
        "new_tokens": new,
        "cached_tokens": cached,
        "decode_tokens": decoded,
        "hit_rate": cached / (new + cached) if new + cached else None,
        "pool_turnover": (new + decoded) / pool if pool and decoded is not None else None,
    }, reason


def _timed(events: list[Event], interval: int | None) -> list[tuple[Decode, float]]:
    """The decode lines of which the seconds of one step are known, with these."""
    timed, before = [], dict[str, Event]()
    for event in events:
        last = before.get(event.rank)
        before[event.rank] = event
        if not (isinstance(event, Decode) and isinstance(last, Decode) and event.running and event.throughput):
            continue
        if interval == 1 or last.running == event.running:
            timed.append((event, event.running * (event.accept_len or 1.0) / event.throughput))
    return timed


def _by_running(decodes: list[Decode], steps: list[tuple[Decode, float]]) -> dict[str, dict[str, Any]]:
    seconds = defaultdict[int, list[float]](list)
    for step, took in steps:
        seconds[step.running].append(took)
    return {
        str(running): {
            "steps": sum(d.running == running for d in decodes),
            "graph": sum(d.running == running and d.graph is True for d in decodes),
            "step_s": round(median(seconds[running]), 6) if seconds[running] else None,
        }
        for running in sorted({d.running for d in decodes})
    }


def _held(batches: list[Batch], begin: float, end: float, value: Callable[[Batch], float]) -> float | None:
    """The mean over the window of a value that each line sets for its rank until that rank's next line."""
    held: list[tuple[float, float]] = []
    current: dict[str, Batch] = {}
    for line in batches:
        if (last := current.get(line.rank)) is not None:
            held.append((value(last), min(line.at, end) - max(last.at, begin)))
        current[line.rank] = line
    held += [(value(last), end - max(last.at, begin)) for last in current.values()]
    return _weighted([(figure, seconds) for figure, seconds in held if seconds > 0])


def _weighted(values: list[tuple[float, float]]) -> float | None:
    total = sum(seconds for _, seconds in values)
    return sum(value * seconds for value, seconds in values) / total if total else None


def as_line(event: Event, start: float) -> dict[str, Any]:
    """The event as JSON, `at` in seconds since `start` (epoch seconds)."""
    return {"at": round(event.at - start, 6), "kind": _NAMES[type(event)]} | {
        key: value for key, value in asdict(event).items() if key != "at"
    }


def from_line(line: dict[str, Any], start: float) -> Event:
    """The event of such a line; raises KeyError or TypeError where it is none."""
    fields = {key: value for key, value in line.items() if key not in {"at", "kind"}}
    return _KINDS[line["kind"]](at=start + line["at"], **fields)
