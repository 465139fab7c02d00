"""What the server was doing in each long gap between two chunks of an answer.

A gap is put down to one cause, the first of these that its server's log shows in it:

    retraction        a sequence was thrown out of the pool
    cold start        the server had not worked before: its first second, of a run without a warm-up
    prefill           prefill steps ended in it: decoding paused for them
    graph fall-back   a decode step ran without a graph, where most of the run's had one
    queueing          requests were waiting, and nothing of the above
    nothing seen      the log has lines, and none that explains it
    no log            the log has none

A line stands for the end of its step, so the steps of a gap are those whose line lies in it, after its first chunk: the
step that brought that chunk ended before it, by the chunk's way to us, and is no part of the gap. Under the overlap
schedule SGLang writes a line after it has launched the next batch, which on a CPU is that batch's whole forward: there
the line of a gap may be that of the step before, and its tokens are too many by up to a step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONG = 3.0  # times the median: gaps above are long
COLD = 1.0  # seconds from the first step
CAUSES = ("retraction", "cold start", "prefill", "graph fall-back", "queueing", "nothing seen", "no log")
FITTED = 10  # gaps that a line through them needs

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Long gaps by cause. Times are seconds; `excess` is what a gap is longer than the median."""

    gaps: int
    median: float
    threshold: float
    causes: dict[str, dict[str, Any]]
    prefill: dict[str, Any] | None  # tokens of the prefills in a gap, and seconds for 1,000 of them

    @property
    def long(self) -> int:
        return sum(int(own["gaps"]) for own in self.causes.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "gaps": self.gaps,
            "long": self.long,
            "median": self.median,
            "threshold": self.threshold,
            "causes": self.causes,
            "prefill": self.prefill,
        }


def attribute(
    requests: Iterable[tuple[Mapping[str, Any], Floats]],
    steps: Iterable[Mapping[str, Any]],
    *,
    threshold: float | None = None,
    warm: bool = True,
) -> Attribution | None:
    """Put every gap over the threshold (default: LONG medians) down to a cause; None where there are no gaps.

    `requests` are lines of requests.jsonl with the instants of their chunks, `steps` those of steps.jsonl, all in
    seconds from the start; `warm` says that the server had worked before.
    """
    answered = [at for request, at in requests if request["outcome"] == "ok" and at.size > 1]
    if not answered:
        return None
    begins, ends = np.concatenate([at[:-1] for at in answered]), np.concatenate([at[1:] for at in answered])
    lengths = ends - begins
    median = float(np.median(lengths))
    threshold = LONG * median if threshold is None else threshold
    long = lengths > threshold
    log = _Log(sorted(steps, key=lambda step: step["at"]))
    window = begins[long], ends[long]
    causes = log.causes(*window, warm=warm)
    lengths = lengths[long]
    excess = lengths - median
    table = {
        cause: _of(lengths[causes == cause], excess, causes == cause) for cause in CAUSES if (causes == cause).any()
    }
    tokens = log.prefill_tokens(*window)[causes == "prefill"]
    fitted = _prefill(tokens, lengths[causes == "prefill"]) if tokens.size else None
    return Attribution(begins.size, median, threshold, table, fitted)


class _Log:
    """The steps of a run, as sorted arrays."""

    def __init__(self, steps: list[Mapping[str, Any]]) -> None:
        self._all = np.array([step["at"] for step in steps])
        prefills = [step for step in steps if step["kind"] == "prefill"]
        decodes = [step for step in steps if step["kind"] == "decode"]
        graphs = [step["graph"] for step in decodes]
        self._prefills = np.array([step["at"] for step in prefills])
        self._tokens = np.concatenate([[0], np.cumsum([step["new_tokens"] for step in prefills])])
        self._retractions = np.array([step["at"] for step in steps if step["kind"] == "retraction"])
        usual = bool(graphs) and sum(map(bool, graphs)) > len(graphs) / 2
        self._without = np.array([step["at"] for step in decodes if usual and step["graph"] is False])
        self._queued = np.array([step["at"] for step in steps if step.get("queued")])

    def causes(self, begins: Floats, ends: Floats, *, warm: bool) -> NDArray[np.str_]:
        if not self._all.size:
            return np.full(begins.size, "no log")
        cold = np.zeros(begins.size, bool) if warm else ends <= self._all[0] + COLD
        seen = {
            "retraction": _count(self._retractions, begins, ends) > 0,
            "cold start": cold,
            "prefill": _count(self._prefills, begins, ends) > 0,
            "graph fall-back": _count(self._without, begins, ends) > 0,
            "queueing": _count(self._queued, begins, ends) > 0,
        }
        return np.select(list(seen.values()), list(seen), "nothing seen")

    def prefill_tokens(self, begins: Floats, ends: Floats) -> Floats:
        """New tokens of the prefill steps in each window, together."""
        last, first = (np.searchsorted(self._prefills, at, "right") for at in (ends, begins))
        tokens: Floats = (self._tokens[last] - self._tokens[first]).astype(float)
        return tokens


def _count(at: Floats, begins: Floats, ends: Floats) -> NDArray[np.intp]:
    """How many of the sorted instants lie in each (begin, end]."""
    return np.searchsorted(at, ends, "right") - np.searchsorted(at, begins, "right")


def _of(lengths: Floats, excess: Floats, own: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "gaps": int(lengths.size),
        "share": float(lengths.size / own.size),
        "excess_share": float(excess[own].sum() / excess.sum()),
        "median": float(np.median(lengths)),
        "max": float(lengths.max()),
    }


def _prefill(tokens: Floats, lengths: Floats) -> dict[str, Any]:
    """How many tokens the prefills in a gap had; and how much longer it is for 1,000 more, by least squares."""
    slope = None
    if tokens.size >= FITTED and np.ptp(tokens) > 0:
        slope = float(np.polyfit(tokens, lengths, 1)[0] * 1000)
    return {"tokens_p50": float(np.median(tokens)), "tokens_max": float(tokens.max()), "s_per_1000_tokens": slope}
