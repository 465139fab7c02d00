"""What the prefill of one class of traffic does to the decoding of another, as the client sees it.

An injected request's prefill is the time from when it was sent to its first token, or to its end where it failed before
that: its wait in the server's queue is in it. A gap between two chunks of a background stream is `overlapped` where it
shares some of that time, else `clear`. A prefill met a full batch where as many background streams as that takes had
their first chunk before it and their last after it; a figure for a batch of four says nothing where only two decoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import QUANTILES, Exchange
from loadgen.scenario.tables import Interference


@dataclass
class Overlap:
    """Told of each exchange that ended, it keeps the background's chunk times and the injected prefills."""

    asked: Interference
    _chunks: list[NDArray[np.float64]] = field(default_factory=list)
    _prefills: list[tuple[float, float]] = field(default_factory=list)

    def add(self, exchange: Exchange) -> None:
        if exchange.request.traffic == self.asked.background and exchange.answered:
            self._chunks.append(np.array(exchange.at))
        elif exchange.request.traffic == self.asked.injected and exchange.sent is not None:
            # One that failed before its first token may have been prefilled until then.
            until = exchange.ended if exchange.first is None else exchange.first
            self._prefills.append((exchange.sent, exchange.sent if until is None else until))

    def gaps(self) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
        """Of each stream: `clear` or `overlapped`, when its gaps of that kind ended, and how long they were."""
        sent = np.array(sorted(at for at, _ in self._prefills))
        first = np.array(sorted(at for _, at in self._prefills))
        for at in self._chunks:
            # A prefill that ended after the gap began, and is not one of those that were sent after it ended.
            met = np.searchsorted(sent, at[1:], side="left") > np.searchsorted(first, at[:-1], side="right")
            for kind, own in ("clear", ~met), ("overlapped", met):
                yield kind, at[1:][own], np.diff(at)[own]

    def as_dict(self) -> dict[str, Any]:
        """Gaps in seconds: clear, overlapped, and for each prefill and each stream that it met the longest; prefills,
        and how many of them met how many background streams."""
        gaps: dict[str, list[NDArray[np.float64]]] = {"clear": [], "overlapped": []}
        for kind, _, seconds in self.gaps():
            gaps[kind].append(seconds)
        begins, ends = (np.array([at[i] for at in self._chunks]) for i in (0, -1))
        met_by, longest = [], []
        for begun, ended in self._prefills:
            met_by.append(int(np.sum((begins <= begun) & (ends >= ended))))
            near = np.flatnonzero((begins < ended) & (ends > begun))
            longest += [self._longest(self._chunks[stream], begun, ended) for stream in near]
        return {
            "gaps": {
                **{kind: _summary(parts) for kind, parts in gaps.items()},
                "longest": _summary([np.array([gap for gap in longest if gap is not None])]),
            },
            "prefills": len(met_by),
            "full": self.asked.full,
            "met_full": sum(streams >= self.asked.full for streams in met_by),
            "met_by": {str(streams): met_by.count(streams) for streams in sorted(set(met_by))},
        }

    @staticmethod
    def _longest(at: NDArray[np.float64], begun: float, ended: float) -> float | None:
        """The longest of a stream's gaps that overlap this prefill; None where none does."""
        beginning, after = np.searchsorted(at, begun, side="right"), np.searchsorted(at, ended, side="left")
        around = at[max(beginning - 1, 0) : after + 1]
        return float(np.diff(around).max()) if around.size > 1 else None


def _summary(parts: list[NDArray[np.float64]]) -> dict[str, Any]:
    gaps = np.sort(np.concatenate(parts)) if parts else np.empty(0)
    if not gaps.size:
        return {"count": 0, "mean": None} | dict.fromkeys([*QUANTILES, "max"])
    ranks = {name: max(int(np.ceil(q * gaps.size)), 1) - 1 for name, q in QUANTILES.items()}
    figures = {name: round(float(gaps[rank]), 6) for name, rank in ranks.items()}
    return {"count": int(gaps.size), "mean": float(gaps.mean())} | figures | {"max": round(float(gaps[-1]), 6)}
