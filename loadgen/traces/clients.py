"""ServeGen's tables (Xiang et al., NSDI 2026): what many clients of one service do in each span of ten minutes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from typing import Literal

from loadgen.traces.lines import DataError, Faults, Wrong, cells, lines, shown, text

COLUMNS = ("client", "timestamp_s", "rate_rps", "cv", "pattern", "shape", "scale")
WIDTH = 600.0  # seconds: ServeGen's, where a table has but one stamp to tell it by

Pattern = Literal["gamma", "weibull", "exponential"]
PATTERNS: dict[str, Pattern] = {"gamma": "gamma", "weibull": "weibull", "": "exponential"}


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from the start of the selection, requests per second, and the law of the gaps with its shape."""

    start: float
    end: float
    rate: float
    pattern: Pattern
    shape: float  # 1 for exponential


@dataclass(frozen=True)
class Client:
    """A client and the windows it sends in, in order; it sends nothing between them."""

    id: int
    windows: list[Window]

    @property
    def requests(self) -> float:
        """How many are expected of it."""
        return sum(window.rate * (window.end - window.start) for window in self.windows)


def read_clients(path: Path, *, start: float = 0.0, stop: float | None = None, top: int | None = None) -> list[Client]:
    """The clients that send between start and stop, in seconds of the table, by their number.

    `path` is one CSV of client,timestamp_s,rate_rps,cv,pattern,shape,scale, or a folder of ServeGen's own
    chunk-<client>-trace.csv, which have no header and no client. Windows are cut to the selection and count from its
    start; they are as long as the least distance between two stamps. `top` keeps the clients with the largest mean rate
    in the selection.

    The rate is the table's. Its scale is not used: it belongs to a fit whose mean contradicts the rate in many rows,
    and ServeGen's own generator rescales what it draws, so that only the shape counts. A gamma without a shape has
    1/cv². Windows with a rate of 0 or none are left out; a client has no arrivals where it has no window.

    Raises DataError with every fault, or if nothing is selected.
    """
    tables: dict[int, dict[float, _Row]] = {}
    faults = Faults(path)
    for client, number, raw in _rows(path, faults):
        try:
            values = _fields(text(raw), COLUMNS if client is None else COLUMNS[1:])
            who = _number_of(values.pop(0)) if client is None else client
            at, row = _read(*values)
        except Wrong as wrong:
            faults.add(number, *wrong.args, cut=not raw.endswith(b"\n"))
            continue
        table = tables.setdefault(who, {})
        if table and at <= (last := next(reversed(table))):
            faults.add(number, f"client {who}: {at:.10g} s comes after {last:.10g} s: expected stamps that increase")
        table[at] = row
    faults.settle()
    stamps = sorted({at for table in tables.values() for at in table})
    if not stamps:
        raise DataError([f"{path}: has no rows: expected at least one window"])
    width = min((later - at for at, later in pairwise(stamps)), default=WIDTH)
    end = stamps[-1] + width
    until = end if stop is None else min(stop, end)
    clients = [Client(who, _select(tables[who], width, start, until)) for who in sorted(tables)]
    clients = [client for client in clients if client.windows]
    if not clients:
        span = f"the table spans {stamps[0]:.6g} s to {end:.6g} s"
        raise DataError([f"{path}: no client sends from {start:.6g} s to {until:.6g} s: {span}"])
    if top is not None:
        largest = {client.id for client in sorted(clients, key=lambda client: -client.requests)[:top]}
        clients = [client for client in clients if client.id in largest]
    return clients


_Row = tuple[float, Pattern, float]


def _rows(path: Path, faults: Faults) -> Iterator[tuple[int | None, int, bytes]]:
    """The client where the file's name tells it, the number of the line, and the line."""
    try:
        chunks = sorted(path.glob("chunk-*-trace.csv")) if path.is_dir() else None
    except OSError as error:
        raise DataError([f"{path}: cannot be read: {error.strerror}"]) from None
    if chunks is None:
        source = lines(path, faults)
        number, header = next(source, (1, b""))
        if header.strip() != ",".join(COLUMNS).encode():
            seen = shown(header.decode(errors="replace").strip())
            raise DataError([f"{path}:{number}: has {seen}: expected {','.join(COLUMNS)}"])
        yield from ((None, number, raw) for number, raw in source)
    elif not chunks:
        raise DataError([f"{path}: is a folder without chunk-<client>-trace.csv: expected ServeGen's tables"])
    else:
        for chunk in chunks:
            faults.path = chunk
            client = chunk.name.removeprefix("chunk-").removesuffix("-trace.csv")
            try:
                who = _number_of(client)
            except Wrong as wrong:
                raise DataError([f"{chunk}: {wrong}"]) from None
            yield from ((who, number, raw) for number, raw in lines(chunk, faults))


def _fields(line: str, columns: Sequence[str]) -> list[str]:
    values = cells(line)
    if len(values) != len(columns):
        raise Wrong(f"has {len(values)} fields: expected {', '.join(columns)}")
    return values


MOST = {"timestamp_s": 1e10, "rate_rps": 1e6, "cv": 1e6, "shape": 1e6}


def _number_of(client: str) -> int:
    if client.isdigit() and client.isascii() and len(client) <= 9:
        return int(client)
    raise Wrong(f"client: expected a whole number, got {shown(client)}")


def _read(stamp: str, rate: str, cv: str, pattern: str, shape: str, _scale: str) -> tuple[float, _Row]:
    """The stamp of a window; its rate, pattern and shape."""
    complaints = []
    numbers = []
    for name, value in (("timestamp_s", stamp), ("rate_rps", rate), ("cv", cv), ("shape", shape)):
        try:
            numbers.append(float(value or "nan"))
        except ValueError:
            numbers.append(-1)
        if numbers[-1] < 0 or numbers[-1] > MOST[name] or (name == "timestamp_s" and isnan(numbers[-1])):
            complaints.append(f"{name}: expected a number from 0 to {MOST[name]:g}, got {shown(value)}")
    at, requests, variation, k = numbers
    kind = PATTERNS.get(pattern.lower())
    if kind is None:
        complaints.append(f"pattern: expected Gamma, Weibull or nothing, got {shown(pattern)}")
    elif kind == "exponential":
        k = 1.0
    elif not complaints and requests > 0 and not k > 0:
        k = variation**-2 if kind == "gamma" and variation >= 1e-3 else nan
        if isnan(k):
            or_cv = " or a cv of at least 0.001" if kind == "gamma" else ""
            complaints.append(f"shape: a {pattern} needs one above 0{or_cv}, got {shown(shape)}")
    if complaints or kind is None:
        raise Wrong(*complaints)
    return at, (requests, kind, k)


def _select(table: dict[float, _Row], width: float, start: float, stop: float) -> list[Window]:
    """What lies between start and stop, counted from start."""
    return [
        Window(max(at - start, 0.0), min(at + width, stop) - start, rate, pattern, shape)
        for at, (rate, pattern, shape) in table.items()
        if rate > 0 and at + width > start and at < stop
    ]
