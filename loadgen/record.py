"""A run on disk: everything that is said of a run later is computed from this folder.

    record.json      scenario, seed, fingerprints, counts, metrics, verdict …; written when the run begins, marked
                     incomplete, and again when it ends
    requests.jsonl   one line a request, appended as it ends, so that a killed run keeps what it saw
    *.hlog           HDR interval logs of ttft, ttft_service, tpot, itl, e2e and lateness, in µs
    timeline.jsonl   the client's load and the server's over time
    server.log       the log of a server that was started for the run
    card.yaml        the run in the keys of a model-serving card

Seconds everywhere but in the interval logs; instants count from the start of the run.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import yaml
from numpy.typing import NDArray

from loadgen.driver import InFlight
from loadgen.exchange import METRICS, QUANTILES, Exchange, ItlRule, Outcome
from loadgen.histogram import Histogram, IntervalLog

SCHEMA = 1
# What every record has from its first instant on, and what a reader relies on.
WRITTEN = {"complete": bool, "counts": dict, "mode": str, "name": str, "scenario": dict, "target": dict}
SLACK = 64  # cached tokens that need no explanation where the server adds its own to a prompt: a chat template
BATCH = 64  # exchanges brought into the histograms at a time: cheaper than one by one, and short enough for the loop


class RecordError(Exception):
    """A folder that is no record, or one that this version cannot read."""


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


class _Tally:
    """What the exchanges of one class of traffic come to, or those of all."""

    def __init__(self, itl_rule: ItlRule) -> None:
        self._itl_rule = itl_rule
        self._outcomes: Counter[Outcome] = Counter()
        self._tokens = Counter[str]()
        self._sent, self._due_at, self._sent_at = 0, _Span(), _Span()
        self._pending: list[Exchange] = []
        self._lag = Histogram()
        self._prompts = _Prompts()
        self.last_ended = 0.0  # seconds from the start

    def begin(self, log: Callable[[str], IntervalLog]) -> None:
        """Open the interval logs: `log` gives that of a metric."""
        self._logs = {name: log(name) for name in METRICS}

    def add(self, exchange: Exchange, ended: float) -> None:
        """Note an exchange that ended so many seconds after the start."""
        self._outcomes[exchange.outcome] += 1
        if exchange.sent is not None:
            self._sent += 1
            self._due_at.add(exchange.due)
            self._sent_at.add(exchange.sent)
        if exchange.outcome is Outcome.OK:
            self._tokens["input"] += exchange.input_tokens or exchange.request.input_len or 0
            self._tokens["output"] += exchange.tokens[-1] if exchange.tokens else 0
            self._prompts.add(exchange)
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

    def totals(self, scheduled: int | None, duration: float) -> dict[str, Any]:
        """What it comes to over so many seconds; `scheduled` is None where all that came due has ended."""
        if self._pending:
            self._fold()
        for log in self._logs.values():
            log.close()
        totals = {name: log.total for name, log in self._logs.items()} | {"lag": self._lag}
        faults = {kind.value: n for kind, n in self._outcomes.items() if kind not in (Outcome.OK, Outcome.DROPPED)}
        ok = self._outcomes[Outcome.OK]
        return {
            "counts": {
                "scheduled": self._outcomes.total() if scheduled is None else scheduled,
                "sent": self._sent,
                "ok": ok,
                "fault": sum(faults.values()),
                "dropped": self._outcomes[Outcome.DROPPED],
            },
            "faults": faults,
            "metrics": {name: _summary(total) for name, total in totals.items()},
            "throughput": {
                "requests_per_s": ok / duration if duration else None,
                "input_tokens_per_s": self._tokens["input"] / duration if duration else None,
                "output_tokens_per_s": self._tokens["output"] / duration if duration else None,
            },
            "offered": self._offered(),
            "prompts": self._prompts.as_dict(),
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
            if (shared := exchange.request.shared) is not None:
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


class Recorder:
    """Writes the record of one run while it happens.

    `head` is what is known before the start: mode, scenario, seed, fingerprints, scheduled, target, environment.
    `classes` are the names of the classes of traffic, where there are several.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any], itl_rule: ItlRule, classes: Sequence[str] = ()) -> None:
        self.folder = folder
        self._scheduled: int | None = head["counts"]["scheduled"]
        self._data: dict[str, Any] = {"schema": SCHEMA, **head}
        self._all = _Tally(itl_rule)
        self._classes = {name: _Tally(itl_rule) for name in classes}
        self._files = contextlib.ExitStack()
        self._write("record.json", json.dumps(self._data | {"complete": False}, indent=2))

    def begin(self, start: float, epoch: float) -> None:
        """The clock starts: `start` on the driver's clock is `epoch` seconds since 1970."""
        self._start = start
        self._data["started"] = round(epoch, 6)
        self._requests = self._append("requests.jsonl")
        self._timeline = self._append("timeline.jsonl")
        self._all.begin(lambda metric: IntervalLog(self._append(f"{metric}.hlog"), metric.upper(), epoch))
        for name, tally in self._classes.items():
            self._begin_class(tally, name, epoch)
        self._write("record.json", json.dumps(self._data | {"complete": False}, indent=2))

    def _begin_class(self, tally: _Tally, name: str, epoch: float) -> None:
        tally.begin(lambda metric: IntervalLog(self._append(f"{metric}.{name}.hlog"), metric.upper(), epoch))

    def point(self, point: Mapping[str, Any]) -> None:
        """Note a point of the time line."""
        self._timeline.write(json.dumps(point) + "\n")

    def add(self, exchange: Exchange) -> None:
        """Note an exchange that has ended."""
        assert exchange.ended is not None
        ended = exchange.ended - self._start
        self._requests.write(json.dumps(_line(exchange, self._start)) + "\n")
        self._all.add(exchange, ended)
        if self._classes:
            self._classes[exchange.request.traffic].add(exchange, ended)

    def totals(self, in_flight: InFlight, *, complete: bool) -> dict[str, Any]:
        """The run is over: what it comes to, as it goes into record.json."""
        duration = self._all.last_ended
        data = self._data | self._all.totals(self._scheduled, duration)
        if self._classes:
            data["traffic"] = {name: tally.totals(None, duration) for name, tally in self._classes.items()}
        data["duration"] = round(duration, 6)
        data["concurrency"] = {
            "mean": round(in_flight.mean, 4),
            "peak": in_flight.peak,
            "share_at_cap": round(in_flight.share_at_cap, 4),
        }
        data["complete"] = complete
        return data

    def note_gaps(self, gaps: Iterable[tuple[str, NDArray[np.float64], NDArray[np.float64]]]) -> None:
        """Log gaps between chunks by their kind, in the seconds in which they ended: kind, ends and lengths in seconds
        on the driver's clock."""
        kinds: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
        for kind, ends, lengths in gaps:
            kinds.setdefault(kind, []).append((ends, lengths))
        for kind, parts in kinds.items():
            log = IntervalLog(self._append(f"gaps.{kind}.hlog"), kind.upper(), self._data["started"])
            ends, lengths = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            order = np.argsort(ends, kind="stable")
            seconds = np.floor(ends[order] - self._start)
            for own in np.split(np.arange(order.size), np.flatnonzero(np.diff(seconds)) + 1):
                if own.size:
                    log.record(float(seconds[own[0]]), lengths[order[own]])
            log.close()

    def seal(self, data: dict[str, Any]) -> "Record":
        """Write the finished record: `totals` with a slo, a verdict and a card laid on top."""
        self._files.close()
        self._write("card.yaml", yaml.safe_dump(data["card"], sort_keys=False))
        self._write("record.json", json.dumps(data, indent=2))
        return Record(self.folder, data)

    def _append(self, name: str) -> TextIO:
        # Line-buffered: a line is on its way to the disk when it is whole.
        return self._files.enter_context((self.folder / name).open("a", buffering=1, encoding="utf-8"))

    def _write(self, name: str, text: str) -> None:
        """Replace the file at once: a reader sees the old one or the new one."""
        unfinished = self.folder / f".{name}.part"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.folder / name)


@dataclass(frozen=True)
class Record:
    """A record that was read: `data` is record.json."""

    folder: Path
    data: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Read a record, also of a run that was killed; raises RecordError."""
        if folder.name == "record.json":
            folder = folder.parent
        path = folder / "record.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecordError(f"{folder} is no record: it has no record.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RecordError(f"{path} cannot be read: {error}") from None
        schema = data.get("schema") if isinstance(data, dict) else None
        if type(schema) is not int or schema < 1:
            raise RecordError(f"{path}: expected a record with a schema number, got schema = {schema!r}")
        if schema > SCHEMA:
            raise RecordError(f"{path}: schema {schema} is newer than this loadgen reads ({SCHEMA}): update loadgen")
        if missing := sorted(key for key in WRITTEN if not isinstance(data.get(key), WRITTEN[key])):
            raise RecordError(f"{path}: no {', '.join(missing)}: this is not a whole record")
        record = cls(folder, data)
        if "metrics" not in data:  # killed: count what it had written
            outcomes = Counter(request["outcome"] for request in record.requests())
            data["counts"] |= {
                "sent": sum(request["sent"] is not None for request in record.requests()),
                "ok": outcomes.pop("ok", 0),
                "dropped": outcomes.pop("dropped", 0),
                "fault": outcomes.total(),
            }
            data["faults"] = dict(outcomes)
        return record

    def requests(self) -> Iterator[dict[str, Any]]:
        """The lines of requests.jsonl; a last line that was cut by a kill is left out."""
        path = self.folder / "requests.jsonl"
        if not path.exists():
            return
        try:
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        request = json.loads(line)
                        _ = request["outcome"], request["sent"]
                        yield request
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordError(f"{path}: a line that is no request: {error}") from None


def _line(exchange: Exchange, start: float) -> dict[str, Any]:
    def since(at: float | None) -> float | None:
        return None if at is None else round(at - start, 6)

    request = exchange.request
    place: dict[str, Any] = {"traffic": request.traffic} if request.traffic else {}
    if request.session is not None:
        place |= {"session": request.session, "turn": request.turn}
    return {
        "index": request.index,
        **place,
        "due": since(exchange.due),
        "ready": since(exchange.ready),
        "sent": since(exchange.sent),
        "first": since(exchange.first),
        "last": since(exchange.last),
        "ended": since(exchange.ended),
        "input_len": request.input_len,
        "output_len": request.output_len,
        "input_tokens": request.input_len if exchange.input_tokens is None else exchange.input_tokens,
        "output_tokens": exchange.tokens[-1] if exchange.tokens else 0,
        "chunks": len(exchange.at),
        "cached_tokens": exchange.cached_tokens,
        "shared_tokens": request.shared,
        "outcome": exchange.outcome.value,
        "detail": exchange.detail,
    }


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
