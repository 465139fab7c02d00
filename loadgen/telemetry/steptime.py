"""How long a step takes by the server's own count, from two answers of SGLang's /v1/loads.

The server keeps sums (scheduler.py, _record_step_counters, 0.5.23): over decode steps that directly followed another,
decode_moments = [n, Σb, Σt, Σb², Σb·t, Σg] with b the batch, t the microseconds from the launch before to this launch,
and g the tokens; steps of 2 s and more, steps after a prefill or an idle time and health probes are left out. Of two
answers the differences are the sums of the time between them, and carry the mean and the least-squares line
t = base + per_sequence · b. Under the overlap schedule the time between two launches is mostly that of the step before,
so the slope is a little too flat where the batch changes at every step.

Prefill: the microseconds in which prefills ran, overlapping ones once, and the prompt tokens that no cache had. The
entries of several data-parallel ranks are added: mean and line are those of a step of any rank.
"""

from collections.abc import Mapping
from typing import Any

_MOMENTS = 6
_RESTARTED = "it went back: the server was restarted between the two answers"


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What happened between two answers of /v1/loads (the whole answers, as JSON), times in seconds.

    `output_tokens` are those of the counted `steps`, which are not all. A figure that cannot be had is null, and
    `reason` says of each why.
    """
    reason: dict[str, str] = {}
    figures: dict[str, Any] = dict.fromkeys(
        "steps mean_batch mean_step_s base_s per_sequence_s output_tokens prefill_tokens prefill_s_per_token".split()
    )
    entries = _entries(before), _entries(after)
    if not entries[1] or entries[0].keys() != entries[1].keys():
        what = "the two answers are not of the same ranks" if all(entries) else "there is no answer with loads in it"
        return figures | {"reason": dict.fromkeys(figures, what)}

    moments = _moments(*entries)
    if isinstance(moments, str):
        reason |= dict.fromkeys("steps mean_batch mean_step_s base_s per_sequence_s output_tokens".split(), moments)
    else:
        _decode(moments, figures, reason)

    tokens, busy = (_sum(*entries, f"total_prefill_{name}") for name in ("uncached_tokens", "busy_us"))
    if isinstance(tokens, str):
        reason["prefill_tokens"] = reason["prefill_s_per_token"] = tokens
        return figures | {"reason": reason}
    figures["prefill_tokens"] = tokens
    if isinstance(busy, str):
        reason["prefill_s_per_token"] = busy
    elif tokens == 0:
        reason["prefill_s_per_token"] = "no token was prefilled between the two answers"
    else:
        figures["prefill_s_per_token"] = busy / tokens / 1e6
    return figures | {"reason": reason}


def _decode(moments: list[int], figures: dict[str, Any], reason: dict[str, str]) -> None:
    """In whole numbers, as the server counts: differences of large sums lose nothing."""
    n, b, t, bb, bt, generated = moments
    figures |= {"steps": n, "output_tokens": generated}
    if n == 0:
        why = "no decode step followed another between the two answers"
        reason |= dict.fromkeys(("mean_batch", "mean_step_s", "base_s", "per_sequence_s"), why)
        return
    figures |= {"mean_batch": b / n, "mean_step_s": t / n / 1e6}
    spread = n * bb - b * b  # n² times the variance of the batch
    if n < 3 or spread <= 0:
        why = f"{n} steps are too few for a line" if n < 3 else "all batches were equal: there is no line through them"
        reason |= dict.fromkeys(("base_s", "per_sequence_s"), why)
        return
    slope = (n * bt - b * t) / spread
    figures |= {"base_s": (t - slope * b) / n / 1e6, "per_sequence_s": slope / 1e6}


def _entries(answer: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The entry of each rank."""
    loads = answer.get("loads")
    return {load.get("dp_rank", 0): load for load in loads} if isinstance(loads, list) else {}


Entries = dict[int, Mapping[str, Any]]


def _moments(before: Entries, after: Entries) -> list[int] | str:
    """The differences, added over the ranks, or why there are none."""
    total = [0] * _MOMENTS
    for rank, load in after.items():
        # Null is the server's word for none yet.
        now, then = (one.get("decode_moments", ()) for one in (load, before[rank]))
        then = [0] * _MOMENTS if then is None else then
        now = [0] * _MOMENTS if now is None else now
        if len(now) != _MOMENTS or len(then) != _MOMENTS:
            return "the server has no decode_moments of six sums"
        gained = [int(later) - int(earlier) for later, earlier in zip(now, then, strict=True)]
        if min(gained) < 0:
            return f"decode_moments: {_RESTARTED}"
        total = [one + other for one, other in zip(total, gained, strict=True)]
    return total


def _sum(before: Entries, after: Entries, key: str) -> int | str:
    """The same of one counter."""
    total = 0
    for rank, load in after.items():
        now, then = load.get(key), before[rank].get(key)
        if now is None or then is None:
            return f"the server has no {key}"
        if now < then:
            return f"{key}: {_RESTARTED}"
        total += now - then
    return total
