"""The lines of a file that somebody brought, and what is wrong with them, told all at once."""

import csv
import io
import itertools
import json
import reprlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

MOST = 20  # faults told of one file
LARGEST = 1e15  # of a stamp: beyond it a float does not tell tenths from each other
LONGEST = 1 << 24  # bytes in a line: a million token ids fit
PACKED = {
    b"\x1f\x8b": "is packed with gzip: gunzip it first",
    b"\x28\xb5\x2f\xfd": "is packed with zstd: unpack it first",
    b"\xfd7zXZ": "is packed with xz: unpack it first",
    b"BZh": "is packed with bzip2: unpack it first",
    b"PK\x03\x04": "is packed with zip: unpack it first",
    b"PAR1": "is Parquet: expected text, as CSV or one JSON object a line",
    b"\xff\xfe": "is UTF-16: expected UTF-8",
    b"\xfe\xff": "is UTF-16: expected UTF-8",
}


class DataError(Exception):
    """A file that cannot be used: `faults` has a line for each thing wrong, `path:line: what: what is expected`.

    Lines count from 1, a header among them. After twenty faults the file is read no further, and a last line says so.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


class Wrong(Exception):
    """What is wrong with one line; a text for each thing."""


class Faults:
    """What is wrong so far, with the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, place: int | str, *what: str, cut: bool = False) -> None:
        """Note what is wrong at this place; raises DataError when it is one too many.

        `cut` for a last line that has no line end, which may be why.
        """
        for each in what:
            if len(self._told) == MOST:
                where = f"line {place}" if isinstance(place, int) else place
                raise DataError([*self._told, f"{self.path}: … and more: reading stopped at {where}"])
            hint = " (the last line, without a line end: was the file cut?)" if cut else ""
            self._told.append(f"{self.path}:{place}: {each}{hint}")

    def settle(self) -> None:
        """Raise what was found, if anything."""
        if self._told:
            raise DataError(self._told)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The file, past a byte order mark; raises DataError where there is none, it may not be read, or it is no text."""
    try:
        with path.open("rb") as file:
            head = file.peek(4096)
            for magic, what in PACKED.items():
                if head.startswith(magic):
                    raise DataError([f"{path}: {what}"])
            if b"\0" in head:
                raise DataError([f"{path}: is binary: expected text, as CSV or JSON"])
            if not head:
                raise DataError([f"{path}: is empty"])
            if head.startswith(b"\xef\xbb\xbf"):
                file.read(3)
            yield file
    except OSError as error:
        raise DataError([f"{path}: cannot be read: {error.strerror}"]) from None


def lines(path: Path, faults: Faults) -> Generator[tuple[int, bytes], None, None]:
    """The lines that are not blank, each with its number and its end. One that is too long is a fault, and the last."""
    with opened(path) as file:
        for number in itertools.count(1):
            raw = file.readline(LONGEST + 1)
            if len(raw) > LONGEST:
                faults.add(number, f"is longer than {LONGEST >> 20} MiB: expected one request a line")
                return
            if not raw:
                return
            if not raw.isspace():
                yield number, raw


def text(raw: bytes) -> str:
    """The line without its end."""
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise Wrong(f"byte {error.start + 1} is 0x{raw[error.start]:02x}: expected UTF-8") from None


def cells(line: str) -> list[str]:
    """The fields of a line of CSV; a quoted field ends on the line it begins on."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise Wrong(f"is not CSV: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise Wrong(f"has {name}: expected finite numbers")


_decode = json.JSONDecoder(parse_constant=_refuse).decode


def json_object(line: str) -> dict[str, Any]:
    """The one JSON object of this line."""
    try:
        value = _decode(line)
    except json.JSONDecodeError as error:
        raise Wrong(f"is not JSON: {error.msg} at column {error.colno}: expected one object") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
        raise Wrong(f"is not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise Wrong(f"expected a JSON object, got {shown(value)}")
    return value


def number(value: object) -> int | float:
    """A number of JSON from 0 to LARGEST."""
    if type(value) not in (int, float) or not (0 <= value <= LARGEST):  # type: ignore[operator]
        raise Wrong(f"expected a number from 0 to {LARGEST:g}, got {shown(value)}")
    return value  # type: ignore[return-value]


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def shown(value: object) -> str:
    """The value as a message shows it: short."""
    return _REPR.repr(value)
