"""Event streams as the WHATWG HTML standard has them (section 9.2.6, "Interpreting an event stream").

Lines end in LF, CRLF or CR; a byte order mark may come first; a line that starts with a colon is a comment; `data`
lines of one event are joined with LF; a blank line ends the event; an event that the stream leaves unfinished is
dropped. Only `data` is kept: no LLM API says anything in `event`, `id` or `retry`.
"""

import re

_END_OF_LINE = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"


class Decoder:
    """Takes the bytes of one stream as they come; how they are split makes no difference."""

    def __init__(self) -> None:
        self._line = bytearray()  # the line that is not finished yet
        self._data: list[bytes] = []  # the data lines of the event that is not finished yet
        self._loose = False  # a line that is neither blank nor a comment came after the last event
        self._after_cr = False  # an LF that comes next belongs to the CR before it
        self._at_start = True

    @property
    def pending(self) -> bool:
        """Whether anything but blank lines and comments came after the last event."""
        return self._loose or (len(self._line) > 0 and not self._line.startswith(b":"))

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that these bytes finish."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        # Servers end lines in LF, and splitting at a byte is several times as fast as at a pattern.
        head, *rest = _END_OF_LINE.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        self._line += head
        if not rest:
            return []
        events: list[bytes] = []
        self._end_line(bytes(self._line), events)
        for line in rest[:-1]:
            self._end_line(line, events)
        self._line = bytearray(rest[-1])
        return events

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            line = line.removeprefix(_BOM)
            self._at_start = False
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._loose = False
            return
        name, _, value = line.partition(b":")
        self._loose = self._loose or name != b""
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
