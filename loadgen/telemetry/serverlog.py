"""An SGLang server's log, read as it grows: the scheduler's steps, what the server is, and what went wrong.

Stamps are local time without a zone (configure_logger in SGLang's common.py); the server's zone is taken to be ours,
and the hour that the end of summer time repeats to be its first. With SGLANG_LOG_MS=1 they have milliseconds.
Without, a stamp says only in which second; then, where it is known when the text was read, the event is dated to that,
but never out of the stamp's second: good to the second always, and to the reading's interval where that is short.
"""

import ast
import re
from datetime import datetime
from functools import lru_cache
from typing import Any

from loadgen.telemetry.events import Decode, Event, Prefill, Retraction, read, reports

__all__ = ["Decode", "Event", "Prefill", "Retraction", "ServerLog"]

_ENDS = re.compile(r"[\r\n]")  # progress bars go back with \r
# Ranks stand behind the time: " DP1 TP0". A progress bar without an end of its own may stand before.
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?)((?: [^\]\s]+)*)\] ")
_STARTUP = re.compile(r"(\w+)=(-?\d+|None)(?=,|$)")
_CAPTURED = re.compile(r"Capture (?:target (?:decode|verify) \w+ graph end\. bs=|\w+ graph bs )\[([\d, ]*)\]")
_HYBRID = re.compile(r"Using hybrid attention backend.*?decode_backend=([^,\s]+), prefill_backend=([^,\s]+?)\.?$")
_OF_ARGUMENTS = (
    "attention_backend",
    "decode_attention_backend",
    "prefill_attention_backend",
    "decode_log_interval",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "speculative_algorithm",
)
# The arguments are printed as a dict that has objects in it, so they are picked out and the whole is not evaluated.
_ARGUMENT = re.compile(rf"'({'|'.join(_OF_ARGUMENTS)})': ('[^']*'|None|True|False|-?\d+(?:\.\d+)?)[,}}]")
_WRONG = re.compile(r"Scheduler hit an exception|out of memory|OutOfMemoryError", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last)"
_STAND_IN = "stand-in of sgl_kernel"
_ERRORS = 20  # kept
_WIDTH = 500  # characters kept of a line


class ServerLog:
    """Takes the log's text in pieces of any size.

    `facts` has of the server what its log told: the pool and the limits, attention_backend, decode_backend and
    prefill_backend where they differ, graph_batch_sizes, decode_log_interval, and `stand_in` where a part of the server
    is not the real one. `errors` are the last exceptions and shortages of memory, not all of them fatal. `ignored`
    counts lines that say nothing of these, `timed` the ReqTimeStats lines, `unreadable` those that begin as a step's do
    and cannot be read, of which `unreadable_example` is the first.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.errors: list[str] = []
        self.ignored = self.timed = self.unreadable = 0
        self.unreadable_example: str | None = None
        self._rest = ""
        self._seen: float | None = None
        self._in_traceback = False

    def feed(self, text: str, seen: float | None = None) -> list[Event]:
        """The events of the lines that this text completes; `seen` is when it was read, in epoch seconds."""
        *whole, self._rest = _ENDS.split(self._rest + text)
        self._seen = seen
        return [event for line in whole if (event := self._line(line, seen)) is not None]

    def close(self) -> list[Event]:
        """The event of a last line that has no end. A server that was killed may have been cut short in a number."""
        return self.feed("\n", self._seen) if self._rest else []

    def _line(self, line: str, seen: float | None) -> Event | None:
        stamp = _STAMP.search(line)
        if stamp is None:
            self._unstamped(line)
            return None
        message = line[stamp.end() :]
        if reports(message):
            try:
                return read(message, _at(stamp[1], seen, whole=not stamp[2]), stamp[3].strip())
            except ValueError:
                self.unreadable += 1
                self.unreadable_example = self.unreadable_example or line[:_WIDTH]
        elif message.startswith("ReqTimeStats("):
            self.timed += 1
        elif message.startswith(("Receive: ", "Finish: ")):  # a logged request: a prompt may say anything
            self.ignored += 1
        elif facts := _facts(message):
            self.facts |= facts
        else:
            self._other(message)
        return None

    def _unstamped(self, line: str) -> None:
        """Standard error as Python and the libraries write it. A traceback ends with its exception, the first line
        that is not indented."""
        if self._in_traceback and line.strip() and not line.startswith((" ", _TRACEBACK)):
            self._in_traceback = False
            self._note(line)
        elif line:
            self._other(line)

    def _other(self, message: str) -> None:
        if _STAND_IN in message:
            self.facts["stand_in"] = message[:_WIDTH]
        elif _TRACEBACK in message or _WRONG.search(message):
            self._in_traceback = self._in_traceback or _TRACEBACK in message
            if not message.startswith(_TRACEBACK):
                self._note(message)
        else:
            self.ignored += 1

    def _note(self, error: str) -> None:
        self.errors = [*self.errors, error[:_WIDTH]][-_ERRORS:]


def _facts(message: str) -> dict[str, Any]:
    """What a message of the start tells of the server; empty where it tells nothing."""
    if message.startswith("max_total_num_tokens="):
        return {key: ast.literal_eval(value) for key, value in _STARTUP.findall(message)}
    if message.startswith("server_args="):
        found: dict[str, Any] = {}
        for key, value in _ARGUMENT.findall(message):
            found.setdefault(key, ast.literal_eval(value))  # an inner dict's key of the same name comes later
        return found
    if captured := _CAPTURED.match(message):
        return {"graph_batch_sizes": [int(size) for size in captured[1].split(",") if size.strip()]}
    if hybrid := _HYBRID.match(message):
        return {"decode_backend": hybrid[1], "prefill_backend": hybrid[2]}
    return {}


def _at(stamp: str, seen: float | None, *, whole: bool) -> float:
    """Epoch seconds; raises ValueError where it is no date."""
    second = _epoch(stamp)
    return min(max(seen, second), second + 1) if whole and seen is not None else second


@lru_cache(maxsize=64)
def _epoch(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
