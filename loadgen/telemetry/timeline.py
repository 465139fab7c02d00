"""The time line of a run: every so often, the client's load and the server's, on the driver's clock.

Each point: `at` (seconds from the start), the client's `in_flight`, `waiting` (at the cap), `loop_lag` (how late this
point's own timer was, seconds) and `cpu` (share of one core since the point before), and under `server` what
/v1/loads said: running and waiting requests, tokens in the pool; null where the server has no /v1/loads. `cost` is how
long the server took to say it, seconds. Points with `metrics` have the gauges and counters of /metrics, more rarely,
since that text is long and costs both sides; `parsing` is what reading it cost our loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.driver import InFlight, sleep_until
from loadgen.target import Endpoint, InProcess, first
from loadgen.telemetry.exposition import snapshot

_OF_SERVER = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_used_tokens",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
)


@dataclass(slots=True)
class Polls:
    """What looking at the server came to: how often it was asked, and how long it took, seconds."""

    interval: float
    count: int = 0
    total: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    def as_dict(self) -> dict[str, Any]:
        mean = self.total / self.count if self.count else None
        return {"interval": self.interval, "count": self.count, "cost_mean_s": mean, "cost_max_s": self.longest}


async def sample(
    target: Endpoint | InProcess,
    in_flight: InFlight,
    note: Callable[[dict[str, Any]], None],
    *,
    start: float,
    polls: Polls,
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Note a point every `polls.interval` seconds from `start` on, until cancelled."""
    cpu, cpu_at = time.process_time(), now()
    due = max(start, now())
    while True:
        await sleep_until(due, now)
        woke, used = now(), time.process_time()
        point: dict[str, Any] = {
            "at": round(woke - start, 6),
            "in_flight": in_flight.count,
            "waiting": len(in_flight.waiting),
            "loop_lag": round(max(woke - due, 0.0), 6),
            "cpu": round((used - cpu) / (woke - cpu_at), 4) if woke > cpu_at else 0.0,
        }
        cpu, cpu_at = used, woke
        load = first(await target.loads() or {}, "loads")
        point["server"] = {key: load.get(key) for key in _OF_SERVER} if load else None
        if load:
            point["cost"] = round(now() - woke, 6)
            polls.add(point["cost"])
        note(point)
        due += polls.interval


async def scrape(
    target: Endpoint | InProcess,
    note: Callable[[dict[str, Any]], None],
    *,
    start: float,
    polls: Polls,
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Note the gauges and counters of /metrics every `polls.interval` seconds after `start`, until cancelled; end where
    the server has none."""
    due = start + polls.interval
    while True:
        await sleep_until(due, now)
        asked = now()
        if (text := await target.exposition()) is None:
            return
        came = now()
        try:
            seen = snapshot(text, histograms=False)
        except ValueError:
            return
        read = now()
        polls.add(read - asked)
        metrics = {**seen.gauges, **seen.counters}
        note(
            {
                "at": round(asked - start, 6),
                "metrics": metrics,
                "cost": round(came - asked, 6),
                "parsing": round(read - came, 6),
            }
        )
        due = max(due + polls.interval, read)
