"""A run on disk: everything that is said of a run later is computed from this folder.

    record.json      scenario, seed, fingerprints, counts, metrics, verdict …; written when the run begins, marked
                     incomplete, and again when it ends
    requests.jsonl   one line a request, appended as it ends, so that a killed run keeps what it saw
    *.hlog           HDR interval logs of ttft, ttft_service, tpot, itl, e2e and lateness, in µs
    chunks.f64       when each chunk was read: little-endian doubles, for each line of requests.jsonl as many as it says
    timeline.jsonl   the client's load and the server's over time
    server.log       the log of a server that was started for the run
    steps.jsonl      what the server's log says of its steps, on the run's clock
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
from loadgen.exchange import Exchange, ItlRule
from loadgen.histogram import IntervalLog
from loadgen.tally import Tally

SCHEMA = 1
# What every record has from its first instant on, and what a reader relies on.
WRITTEN = {"complete": bool, "counts": dict, "mode": str, "name": str, "scenario": dict, "target": dict}


class RecordError(Exception):
    """A folder that is no record, or one that this version cannot read."""


class Recorder:
    """Writes the record of one run while it happens.

    `head` is what is known before the start: mode, scenario, seed, fingerprints, scheduled, target, environment.
    `classes` has the classes of traffic, where there are several, and how many requests of each are scheduled. Rates
    are over the `window`, in seconds from the start, or unless it is the `whole` load's, as much of it as there was.
    """

    def __init__(
        self,
        folder: Path,
        head: Mapping[str, Any],
        itl_rule: ItlRule,
        classes: Mapping[str, int | None] | None = None,
        window: tuple[float, float] = (0.0, inf),
        *,
        whole: bool = False,
    ) -> None:
        self.folder = folder
        self._scheduled: int | None = head["counts"]["scheduled"]
        self._data: dict[str, Any] = {"schema": SCHEMA, **head}
        self.turns = 0  # of conversations, that came due
        self._window, self._whole = window, whole
        self._all = Tally(itl_rule, window)
        self._totals = classes or {}
        self._classes = {name: Tally(itl_rule, window) for name in self._totals}
        self._files = contextlib.ExitStack()
        self._write("record.json", json.dumps(self._data | {"complete": False}, indent=2))

    def begin(self, start: float, epoch: float) -> None:
        """The clock starts: `start` on the driver's clock is `epoch` seconds since 1970."""
        self._start = start
        self._data["started"] = round(epoch, 6)
        self._requests = self._append("requests.jsonl")
        self._chunks = self._files.enter_context((self.folder / "chunks.f64").open("ab", buffering=0))
        self._timeline = self._append("timeline.jsonl")
        self._all.begin(self._logs(epoch))
        for name, tally in self._classes.items():
            tally.begin(self._logs(epoch, f".{name}"))
        self._write("record.json", json.dumps(self._data | {"complete": False}, indent=2))

    def _logs(self, epoch: float, of: str = "") -> Callable[[str], IntervalLog]:
        """What opens the interval log of a metric: for all, or `of` one class."""
        return lambda metric: IntervalLog(self._append(f"{metric}{of}.hlog"), metric.upper(), epoch)

    def point(self, point: Mapping[str, Any]) -> None:
        """Note a point of the time line."""
        self._timeline.write(json.dumps(point) + "\n")

    def add(self, exchange: Exchange) -> None:
        """Note an exchange that has ended."""
        assert exchange.ended is not None
        ended = exchange.ended - self._start
        if exchange.at:  # before its line: a kill in between leaves chunks without a line, which are left out
            self._chunks.write((np.frombuffer(exchange.at) - self._start).astype("<f8").tobytes())
        self._requests.write(json.dumps(_line(exchange, self._start)) + "\n")
        self._all.add(exchange, ended)
        self.turns += exchange.request.session is not None
        if self._classes:
            self._classes[exchange.request.traffic].add(exchange, ended)

    def totals(self, in_flight: InFlight, *, complete: bool) -> dict[str, Any]:
        """The run is over: what it comes to, as it goes into record.json."""
        duration = self._all.last_ended
        begin, end = self._window
        if end == inf or not (complete and self._whole):
            end = min(end, duration)
        data = self._data | self._all.totals(self._scheduled, end - begin)
        if self._classes:
            data["traffic"] = {
                name: tally.totals(self._totals[name], end - begin) for name, tally in self._classes.items()
            }
        data["window"] = [begin, round(end, 6)]
        data["duration"] = round(duration, 6)
        data["concurrency"] = {
            "mean": round(in_flight.mean, 4),
            "peak": in_flight.peak,
            "share_at_cap": round(in_flight.share_at_cap, 4),
        }
        data["complete"] = complete
        return data

    def note_steps(self, steps: Iterable[Mapping[str, Any]], log: bytes) -> None:
        """Note what the server's log says of its steps, and the log's own words where they are not here already."""
        if log and not (self.folder / "server.log").exists():
            (self.folder / "server.log").write_bytes(log)
        with (self.folder / "steps.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(step) + "\n" for step in steps)

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
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no file")
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
        return self._lines("requests.jsonl", "request", ("outcome", "sent"))

    def steps(self) -> Iterator[dict[str, Any]]:
        """The lines of steps.jsonl: what the server's log says of its steps; none where it was not there."""
        return self._lines("steps.jsonl", "step", ("kind", "at"))

    def chunks(self) -> Iterator[tuple[dict[str, Any], NDArray[np.float64]]]:
        """Each request's line with the instants of its chunks, in seconds from the start; none in older records."""
        path = self.folder / "chunks.f64"
        if not path.exists():  # an older record
            return
        with path.open("rb") as file:
            for request in self.requests():
                instants = np.frombuffer(file.read(8 * request["chunks"]), "<f8")
                if instants.size != request["chunks"]:
                    raise RecordError(f"{path}: ends before the chunks of request {request['index']}")
                yield request, instants

    def _lines(self, name: str, of: str, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return
        try:
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        content = json.loads(line)
                        _ = [content[key] for key in keys]
                        yield content
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordError(f"{path}: a line that is no {of}: {error}") from None


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
        "shared_tokens": exchange.shared,
        "server_ttft": exchange.server_ttft,
        "transport": exchange.transport,
        "outcome": exchange.outcome.value,
        "detail": exchange.detail,
    }
