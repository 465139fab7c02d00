"""What a line of each known trace holds, and what is wrong with it."""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.traces.lines import LARGEST, Wrong, cells, json_object, number, shown

LONGEST = 10**9 - 1  # tokens in a prompt or an answer
TIES = 0.05  # share of equal neighbours above which stamps are quantised


@dataclass(frozen=True)
class Format:
    """The columns or keys that are read, how many of its stamps' units are a second, and the tokens of a hash block."""

    stamp: str
    input_len: str
    output_len: str
    csv: bool = False
    per_second: int = 1
    block_size: int | None = None
    also: tuple[str, ...] = ()  # what else sets it apart
    bin: "Callable[[NDArray[np.float64]], float | None] | None" = None  # of its first stamps: what one stands for

    @property
    def names(self) -> tuple[str, ...]:
        return (self.stamp, self.input_len, self.output_len, *self.also)


def _of_whole_seconds(stamps: NDArray[np.float64]) -> float | None:
    return 1.0 if (stamps == np.floor(stamps)).all() else None


def _of_ties(stamps: NDArray[np.float64]) -> float | None:
    """The median distance between distinct stamps, where more than TIES of the neighbours are equal."""
    distances = np.diff(np.unique(stamps))
    if len(stamps) < 2 or not len(distances) or 1 - len(distances) / (len(stamps) - 1) <= TIES:
        return None
    return float(np.median(distances))


# A format that asks for more names stands before one that asks for fewer of them.
FORMATS = {
    "azure": Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", csv=True, per_second=10**9),
    "burstgpt": Format("Timestamp", "Request tokens", "Response tokens", csv=True, bin=_of_whole_seconds),
    "bailian": Format("timestamp", "input_length", "output_length", block_size=16, also=("chat_id",)),
    "mooncake": Format("timestamp", "input_length", "output_length", per_second=1000, block_size=512, bin=_of_ties),
    "record": Format("due", "input_tokens", "output_tokens", also=("index", "outcome")),
}


def recognise(line: str) -> str:
    """The name of the format that has such a first line."""
    if line.startswith("["):
        raise Wrong("begins a JSON array: expected CSV with a header, or one JSON object a line")
    csv = not line.startswith("{")
    seen = cells(line) if csv else list(json_object(line))
    for name, known in FORMATS.items():
        if known.csv is csv and set(known.names) <= set(seen):
            return name
    formats = "; ".join(f"{name} ({', '.join(known.names)})" for name, known in FORMATS.items())
    near, known = max(FORMATS.items(), key=lambda item: len({*item[1].names} & {*seen}) * (item[1].csv is csv))
    missing = [name for name in known.names if name not in seen]
    hint = f": {near} without {', '.join(missing)}" if len(missing) < len(known.names) and known.csv is csv else ""
    raise Wrong(f"is of no known format{hint}; it has {_list(seen)}; expected one of {formats}")


class Parser:
    """Reads the lines of one file: `parser(line)` is its stamp, input length, output length and what else it has.

    A stamp is in the format's own units. Raises Wrong with everything that is wrong with the line. `header` is the
    first line of a CSV.
    """

    def __init__(self, known: Format, header: str) -> None:
        self._width = 0
        names = [known.stamp, known.input_len, known.output_len]
        keys: Sequence[Any] = names
        readers: list[Callable[[Any], Any]] = [number, _length, _length]
        if known.csv:
            columns = cells(header)
            _demand(names, columns)
            keys, self._width = [columns.index(name) for name in names], len(columns)
            readers = [_Instants() if known.per_second == 10**9 else _number_text, _length_text, _length_text]
        if "index" in known.also:
            keys, names, readers = [*keys, "index"], [*names, "index"], [*readers, _length]
        self._fields = list(zip(names, keys, readers, strict=True))
        self._record = known is FORMATS["record"]
        self._block_size = known.block_size
        self._blocks: bool | None = None

    def __call__(self, line: str) -> list[Any]:
        values = self._values(line)
        try:
            row = [read(values[key]) for _, key, read in self._fields]
        except (Wrong, KeyError):
            raise Wrong(*self._complaints(values)) from None
        if self._block_size is not None:
            row.append(self._hashes(values, row[1]))
        return row

    def stamp(self, line: str) -> str:
        """The stamp as it is written."""
        return str(self._values(line)[self._fields[0][1]])

    def _values(self, line: str) -> Any:
        if not self._width:
            keys = json_object(line)
            return _asked(keys) if self._record else keys
        values = cells(line)
        if len(values) != self._width:
            raise Wrong(f"has {len(values)} fields: expected {self._width}, as in the header")
        return values

    def _complaints(self, values: Any) -> list[str]:
        """Of every field, what is wrong with it."""
        if isinstance(values, dict):
            _demand([name for name, _, _ in self._fields], values)
        complaints = []
        for name, key, read in self._fields:
            try:
                read(values[key])
            except Wrong as wrong:
                complaints.append(f"{name}: {wrong}")
        return complaints

    def _hashes(self, values: Mapping[str, Any], input_len: int) -> "array[int] | None":
        """The ids of the prompt's blocks, of which a file has all or none."""
        assert self._block_size is not None
        ids = values.get("hash_ids")
        if (ids is not None) is not self._blocks:
            if self._blocks is not None:
                raise Wrong(f"{'no ' if ids is None else ''}hash_ids here: expected them in every row or in none")
            self._blocks = ids is not None
        if ids is None:
            return None
        if type(ids) is not list or not set(map(type, ids)) <= {int}:
            raise Wrong(f"hash_ids: expected a list of whole numbers, got {shown(ids)}")
        if len(ids) != (blocks := -(-input_len // self._block_size)):
            raise Wrong(
                f"hash_ids: {len(ids)} for an input length of {input_len}: expected {blocks}, one for each "
                f"{self._block_size} tokens"
            )
        with suppress(OverflowError):
            return array("q", ids)
        raise Wrong("hash_ids: expected whole numbers of at most 64 bits, signed")


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """A record's line with the lengths that were asked for in place of those that came, where it has them; 0 where
    nobody knows. Records of before they were written have the server's counts alone."""
    counts = {"input_tokens": request.get("input_tokens"), "output_tokens": request.get("output_tokens")}
    asked = {"input_tokens": request.get("input_len"), "output_tokens": request.get("output_len")}
    return request | {key: (counts[key] if asked[key] is None else asked[key]) or 0 for key in counts if key in request}


def _demand(names: Sequence[str], seen: Sequence[str] | Mapping[str, Any]) -> None:
    if missing := [name for name in names if name not in seen]:
        raise Wrong(f"no {', '.join(missing)}; it has {_list(list(seen))}")


def _list(names: Sequence[str]) -> str:
    return shown(", ".join(names))


def _length(value: object) -> int:
    if type(value) is int and 0 <= value <= LONGEST:
        return value
    raise Wrong(f"expected a whole number of tokens from 0 to {LONGEST:,}, got {shown(value)}")


def _length_text(text: str) -> int:
    if text.isdigit() and text.isascii() and len(text) <= 9:
        return int(text)
    raise Wrong(f"expected a whole number of tokens from 0 to {LONGEST:,}, got {shown(text)}")


_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def _number_text(text: str) -> float:
    if _NUMBER.fullmatch(text) and (value := float(text)) <= LARGEST:
        return value
    raise Wrong(f"expected a number from 0 to {LARGEST:g}, got {shown(text)}")


_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


class _Instants:
    """`2023-11-16 18:15:46.6805900` or `2024-05-10 00:00:00+00:00` in whole nanoseconds since 1970.

    Stamps without an offset count as UTC; a file has them all with one or all without.
    """

    aware: bool | None = None

    def __call__(self, text: str) -> int:
        match = _INSTANT.fullmatch(text)
        if not match:
            raise _no_instant(text)
        second, fraction, zone = match.groups()
        if (zone is not None) is not self.aware:
            if self.aware is not None:
                raise Wrong(f"expected stamps all with an offset from UTC or all without, got {shown(text)}")
            self.aware = zone is not None
        return _second(second, zone) + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(1024)  # neighbours share it
def _second(stamp: str, zone: str | None) -> int:
    try:
        return int(datetime.fromisoformat(stamp + (zone or "Z")).timestamp()) * 10**9
    except ValueError:  # a thirteenth month
        raise _no_instant(stamp) from None


def _no_instant(text: str) -> Wrong:
    return Wrong(f"expected a stamp such as 2023-11-16 18:15:46.6805900, got {shown(text)}")
