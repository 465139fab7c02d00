"""Data sets of prompts: JSON lines of one's own, and ShareGPT's conversations."""

import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

from loadgen.traces.formats import LONGEST
from loadgen.traces.lines import DataError, Faults, Wrong, json_object, lines, number, opened, shown, text


@dataclass(frozen=True, slots=True)
class Row:
    """One request: exactly one of prompt, messages and input_ids."""

    line: int
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None  # role and content
    input_ids: "array[int] | None" = None
    input_len: int | None = None  # tokens, as the file says
    output_len: int | None = None  # tokens to ask for
    timestamp: float | None = None  # seconds


def read_jsonl(path: Path) -> Iterator[Row]:
    """The requests of a file with one JSON object a line; blank lines are skipped, unknown keys ignored.

    Each has one of `prompt` (or `text`), `messages` (role and content, both text) and `input_ids`; and may have
    `output_len` (or `max_tokens`), `input_len`, and a `timestamp` in seconds, which all have or none, never decreasing.

    Raises DataError with every fault once the file is read through; no row comes after the first fault.
    """
    faults = Faults(path)
    before: Row | None = None
    for at, raw in lines(path, faults):
        try:
            row = _row(at, json_object(text(raw)))
            if before is not None:
                _follows(row, before)
        except Wrong as wrong:
            faults.add(at, *wrong.args, cut=not raw.endswith(b"\n"))
            continue
        before = row
        if not faults:
            yield row
    faults.settle()
    if before is None:
        raise DataError([f"{path}: holds only blank lines"])


def _row(line: int, given: dict[str, Any]) -> Row:
    given = {key: value for key, value in given.items() if key in _READERS and value is not None}
    complaints = []
    taken: dict[str, Any] = {}
    for key, value in given.items():
        name = _ALSO.get(key, key)
        if name in taken:
            complaints.append(f"{name} and its other name at once: expected one")
        taken[name] = None
        try:
            taken[name] = _READERS[key](value)
        except Wrong as wrong:
            complaints.append(f"{key}: {wrong}")
    contents = [name for name in ("prompt", "messages", "input_ids") if name in taken]
    if len(contents) != 1:
        complaints.append(f"has {' and '.join(contents) or 'none'}: expected one of prompt, messages and input_ids")
    if not complaints and "input_ids" in taken and taken.get("input_len", n := len(taken["input_ids"])) != n:
        complaints.append(f"input_len {taken['input_len']} with {n} input_ids: expected the same")
    if complaints:
        raise Wrong(*complaints)
    return Row(line, **taken)


def _follows(row: Row, before: Row) -> None:
    """Stamps are in every row or in none, and never decrease."""
    if (row.timestamp is None) is not (before.timestamp is None):
        raise Wrong(f"{'no ' if row.timestamp is None else ''}timestamp here: expected one in every row or in none")
    if row.timestamp is not None and before.timestamp is not None and row.timestamp < before.timestamp:
        that = f"{before.timestamp} of line {before.line}"
        raise Wrong(f"timestamp {row.timestamp} comes after {that}: expected stamps that never decrease")


def _text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise Wrong(f"expected text, got {shown(value)}")


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise Wrong(f"expected a list of messages, got {shown(value)}")
    for message in value:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise Wrong(f"expected role and content, both text, got {shown(message)}")
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _ids(value: object) -> "array[int]":
    if isinstance(value, list) and value and set(map(type, value)) == {int} and min(value) >= 0:
        with suppress(OverflowError):
            return array("i", value)
    raise Wrong(f"expected a list of token ids, whole numbers from 0 to 2,147,483,647, got {shown(value)}")


def _tokens(value: object) -> int:
    if type(value) is int and 1 <= value <= LONGEST:
        return value
    raise Wrong(f"expected a whole number of tokens from 1 to {LONGEST:,}, got {shown(value)}")


def _stamp(value: object) -> float:
    return float(number(value))


_ALSO = {"text": "prompt", "max_tokens": "output_len"}
_READERS: dict[str, Callable[[object], Any]] = {
    "prompt": _text,
    "text": _text,
    "messages": _messages,
    "input_ids": _ids,
    "input_len": _tokens,
    "output_len": _tokens,
    "max_tokens": _tokens,
    "timestamp": _stamp,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The texts of user and assistant in turn, the user's first; at least two."""

    ordinal: int  # in the file, from 1
    turns: tuple[str, ...]


_USER = {"human", "user"}
_ASSISTANT = {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}


def read_sharegpt(path: Path, limit: int | None = None) -> Iterator[Conversation]:
    """The first `limit` conversations of ShareGPT's JSON, which begin with a human and have an answer.

    The file is one array of {"conversations" or "conversation": [{"from", "value"}, ...]} and is read piece by piece. A
    conversation goes up to its first turn that is empty or out of turn; what is left with less than two turns is passed
    over.

    Raises DataError with every fault once the file is read through; no conversation comes after the first fault.
    """
    import ijson  # noqa: PLC0415 - for this data set alone

    faults = Faults(path)
    ordinal = kept = 0
    with opened(path) as file, _numbers_of_any_length():
        if not file.peek(4096).lstrip().startswith(b"["):
            raise DataError([f"{path}:1: expected a JSON array of conversations"])
        try:
            for ordinal, item in enumerate(ijson.items(file, "item"), start=1):
                try:
                    turns = _turns(item)
                except Wrong as wrong:
                    faults.add(f"conversation {ordinal}", *wrong.args)
                    continue
                if len(turns) >= 2 and not faults:
                    yield Conversation(ordinal, turns)
                    kept += 1
                    if kept == limit:
                        return
        except ijson.JSONError as error:
            reason = str(error).splitlines()[0]
            faults.add(f"after conversation {ordinal}", f"is not JSON that can be read: {reason}: was the file cut?")
    faults.settle()
    if not kept:
        raise DataError([f"{path}: no conversation begins with a human and has an answer, of {ordinal:,}"])


@contextmanager
def _numbers_of_any_length() -> Iterator[None]:
    """ijson 3.6 falls over, the process with it, where Python refuses a number of more than 4,300 digits."""
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(most)


def _turns(item: object) -> tuple[str, ...]:
    """The turns that can be replayed."""
    said = item.get("conversations", item.get("conversation")) if isinstance(item, dict) else None
    if not isinstance(said, list):
        raise Wrong(f"expected an object with conversations, a list, got {shown(item)}")
    for turn in said:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("from", "value")):
            raise Wrong(f"expected turns with from and value, both text, got {shown(turn)}")
    turns = takewhile(
        lambda turn: turn[0]["from"] in turn[1] and turn[0]["value"],
        zip(said, cycle((_USER, _ASSISTANT)), strict=False),
    )
    return tuple(turn["value"] for turn, _ in turns)
