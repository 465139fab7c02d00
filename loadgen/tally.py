"""What exchanges come to: counts, histograms, rates, and what the server said of their prompts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from loadgen.exchange import METRICS, QUANTILES, Exchange, ItlRule, Outcome
from loadgen.histogram import Histogram, IntervalLog

SLACK = 64  # cached tokens that need no explanation where the server adds its own to a prompt: a chat template
BATCH = 64  # exchanges brought into the histograms at a time: cheaper than one by one, and short enough for the loop


@dataclass(slots=True)
class _Span:
    """From the least to the largest instant."""

    first: float = inf
    last: float = -inf

    def add(self, at: float) -> None:
        self.first, self.last = min(self.first, at), max(self.last, at)

    @property
    def length(self) -> float:
        return max(self.last - self.first, 0.0)


class Tally:
    """What the exchanges of one class of traffic come to, or those of all."""

    def __init__(self, itl_rule: ItlRule, window: tuple[float, float]) -> None:
        self._itl_rule = itl_rule
        self._window = window
        self._done = self._unsent = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._tokens = Counter[str]()
        self._sent, self._due_at, self._sent_at = 0, _Span(), _Span()
        self._pending: list[Exchange] = []
        self._lag = Histogram()
        self._prompts = _Prompts()
        self._ways = _Ways()
        self.last_ended = 0.0  # seconds from the start

    def begin(self, log: Callable[[str], IntervalLog]) -> None:
        """Open the interval logs: `log` gives that of a metric."""
        self._logs = {name: log(name) for name in METRICS}

    def add(self, exchange: Exchange, ended: float) -> None:
        """Note an exchange that ended so many seconds after the start."""
        self._outcomes[exchange.outcome] += 1
        self._unsent += exchange.outcome is Outcome.CANCELLED and exchange.sent is None
        if exchange.sent is not None:
            self._sent += 1
            self._due_at.add(exchange.due)
            self._sent_at.add(exchange.sent)
        if exchange.outcome is Outcome.OK:
            if self._window[0] <= ended <= self._window[1]:
                self._done += 1
                self._tokens["input"] += exchange.input_tokens or exchange.request.input_len or 0
                self._tokens["output"] += exchange.tokens[-1] if exchange.tokens else 0
            self._prompts.add(exchange)
            self._ways.add(exchange)
        if len(self._pending) == BATCH or (self._pending and int(ended) != int(self.last_ended)):
            self._fold()
        self.last_ended = ended
        self._pending.append(exchange)

    def _fold(self) -> None:
        """Bring the pending exchanges into the histograms, in bulk; they ended within one second."""
        for name in METRICS:
            if name == "itl":
                values = np.concatenate([exchange.itl(self._itl_rule) for exchange in self._pending])
            else:
                values = np.array([v for exchange in self._pending if (v := getattr(exchange, name)) is not None])
            self._logs[name].record(self.last_ended, values)
        self._lag.record(np.array([lag for exchange in self._pending if (lag := exchange.lag) is not None]))
        self._pending.clear()

    def totals(self, scheduled: int | None, seconds: float) -> dict[str, Any]:
        """What it comes to, its rates over a window of so many seconds; `scheduled` is None where the answers decided
        it."""
        if self._pending:
            self._fold()
        for log in self._logs.values():
            log.close()
        totals = {name: log.total for name, log in self._logs.items()} | {"lag": self._lag}
        faults = {kind.value: n for kind, n in self._outcomes.items() if kind not in (Outcome.OK, Outcome.DROPPED)}
        return {
            "counts": {
                "scheduled": self._outcomes.total() if scheduled is None else scheduled,
                "sent": self._sent,
                "ok": self._outcomes[Outcome.OK],
                "fault": sum(faults.values()),
                "dropped": self._outcomes[Outcome.DROPPED],
            },
            "faults": faults,
            "unsent": self._unsent,
            "metrics": {name: _summary(total) for name, total in totals.items()},
            "throughput": {
                "requests_per_s": self._done / seconds if seconds > 0 else None,
                "input_tokens_per_s": self._tokens["input"] / seconds if seconds > 0 else None,
                "output_tokens_per_s": self._tokens["output"] / seconds if seconds > 0 else None,
            },
            "offered": self._offered(),
            "prompts": self._prompts.as_dict(),
            "ways": self._ways.as_dict(),
        }

    def _offered(self) -> dict[str, Any]:
        """The rate that was scheduled and the one that left, over the requests that left; null for a single instant."""
        scheduled, achieved, gaps = self._due_at.length, self._sent_at.length, self._sent - 1
        return {
            "scheduled_per_s": gaps / scheduled if scheduled else None,
            "achieved_per_s": gaps / achieved if scheduled and achieved else None,
            "scheduled_span": round(scheduled, 6),
            "achieved_span": round(achieved, 6),
        }


@dataclass(slots=True)
class _Ways:
    """What the TTFT from sent is made of, on the requests for which the server tells: means in seconds."""

    requests: int = 0
    ours: float = 0.0
    server_ttft: float = 0.0
    server_span: float = 0.0

    def add(self, exchange: Exchange) -> None:
        first, span, ours = exchange.server_ttft, exchange.server_span, exchange.ttft_service
        if first is not None and span is not None and ours is not None:
            self.requests += 1
            self.ours += ours
            self.server_ttft += first
            self.server_span += span

    def as_dict(self) -> dict[str, Any] | None:
        """Null where no server told."""
        if not (n := self.requests):
            return None
        return {
            "requests": n,
            "ttft_service": self.ours / n,
            "server_ttft": self.server_ttft / n,
            "handed_on": (self.server_span - self.server_ttft) / n,
            "transport": (self.ours - self.server_span) / n,
        }


@dataclass(slots=True)
class _Prompts:
    """The prompts of what went well by the server's own counts: their lengths, and what of them its cache had."""

    counted: int = 0  # requests whose length both sides know
    differ: int = 0
    most: int = 0
    asked: int = 0  # tokens
    server: int = 0  # tokens
    reported: int = 0  # requests for which the server told its cache's hits
    tokens: int = 0
    cached: int = 0
    hits: int = 0  # requests
    explicable: int = 0  # requests of which is known what they share with earlier ones
    shared: int = 0
    unexplained: int = 0

    def add(self, exchange: Exchange) -> None:
        asked, server, cached = exchange.request.input_len, exchange.input_tokens, exchange.cached_tokens
        if server is None:
            return
        if asked is not None:
            self.counted += 1
            self.asked += asked
            self.server += server
            self.differ += asked != server
            self.most = max(self.most, abs(asked - server))
        if cached is not None:
            self.reported += 1
            self.tokens += server
            self.cached += cached
            self.hits += cached > 0
            if (shared := exchange.shared) is not None:
                explained = shared * server / asked if asked else shared  # chat's words are several tokens each
                self.explicable += 1
                self.shared += round(explained)
                if cached > explained + (SLACK if server != asked else 0):
                    self.unexplained += round(cached - explained)

    def as_dict(self) -> dict[str, Any]:
        lengths = {"requests": self.counted, "differ": self.differ, "most": self.most}
        tokens = {"asked_tokens": self.asked, "server_tokens": self.server}
        cache = {"requests": self.reported, "hits": self.hits, "prompt_tokens": self.tokens}
        cache |= {"cached_tokens": self.cached, "unexplained_tokens": self.unexplained}
        cache |= {"shared_known": self.explicable, "shared_tokens": self.shared}
        rate = self.cached / self.tokens if self.tokens else None
        return {"lengths": lengths | tokens, "cache": cache | {"hit_rate": rate}}


def _summary(total: Histogram) -> dict[str, Any]:
    if total.count == 0:
        return {"count": 0, "mean": None} | dict.fromkeys([*QUANTILES, "max"]) | {"overflow": 0}
    quantiles = {name: round(total.quantile(q), 6) for name, q in QUANTILES.items()}
    return (
        {"count": total.count, "mean": round(total.mean, 9)}
        | quantiles
        | {
            "max": round(total.max, 6),
            "overflow": total.overflow,
        }
    )
