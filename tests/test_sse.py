"""Event streams, against a second implementation written straight from the standard's line rules."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.wire.sse import Decoder


def by_the_standard(stream: bytes) -> list[bytes]:
    """The whole stream at once: section 9.2.6 of the WHATWG HTML standard, without event names and ids."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    events, data = [], b""
    for line in lines[:-1]:  # what follows the last line end is not a line
        if line == b"":
            if data:
                events.append(data.removesuffix(b"\n"))
            data = b""
        elif not line.startswith(b":"):
            field, colon, value = line.partition(b":")
            if colon and value.startswith(b" "):
                value = value[1:]
            if field == b"data":
                data += value + b"\n"
    return events


def feed(stream: bytes, cuts: list[int]) -> list[bytes]:
    decoder, events, last = Decoder(), [], 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        events += decoder.feed(stream[last:cut])
        last = cut
    return events


pieces = st.sampled_from(
    [b"data: ", b"data:", b"data", b":", b": comment", b"event: x", b"id: 3", b"retry: 9", b"\r", b"\n", b"\r\n",
     b"\n\n", b"\r\r", b"{}", b"[DONE]", b" ", b"\xc3\xa9", b"\xc3", b"\xef\xbb\xbf", b"a:b"]
)  # fmt: skip
streams = st.lists(pieces, max_size=40).map(b"".join)


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"data: a\r\ndata: b\n\n", [8, 8])  # an empty read between CR and LF
def test_any_split_of_the_bytes_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    assert feed(stream, cuts) == by_the_standard(stream)


@given(streams)
@example(b"data: a\r\ndata: b\r\n\r\n")  # a read that ends between CR and LF
@example(b"data: a\r\n\n")  # of two LF after a CR, only the first belongs to it
def test_byte_by_byte_gives_the_events_of_the_standard(stream: bytes) -> None:
    assert feed(stream, list(range(len(stream)))) == by_the_standard(stream)


def loose_after_last_event(stream: bytes) -> bool:
    """Whether a line, finished or not, that is neither blank nor a comment follows the last event."""
    loose = data = False
    for line in re.split(rb"\r\n|\n|\r", stream):
        if line == b"":
            loose, data = loose and not data, False
        else:
            loose = loose or not line.startswith(b":")
            data = data or line.partition(b":")[0] == b"data"
    return loose


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_what_follows_the_last_event_is_pending_however_the_bytes_are_split(stream: bytes, cuts: list[int]) -> None:
    stream = b"data: a\n\n" + stream + b":"  # the colon ends no line, so that a last blank line is a whole one
    decoder, last = Decoder(), 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        decoder.feed(stream[last:cut])
        last = cut
    assert decoder.pending == loose_after_last_event(stream)


@pytest.mark.parametrize(
    ("why", "stream", "events"),
    [
        ("one event", b"data: a\n\n", [b"a"]),
        ("no space is needed after the colon", b"data:a\n\n", [b"a"]),
        ("one space is dropped, not two", b"data:  a\n\n", [b" a"]),
        ("carriage returns end lines", b"data: a\r\rdata: b\r\n\r\n", [b"a", b"b"]),
        ("several data lines are one event", b"data: a\ndata: b\n\n", [b"a\nb"]),
        ("data may hold colons", b'data: {"a":1}\n\n', [b'{"a":1}']),
        ("a byte order mark may come first", b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        ("and only first", b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        ("comments and other fields say nothing", b": ping\nevent: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        ("an event without data is none", b"event: x\n\ndata: a\n\n", [b"a"]),
        ("empty data is an event", b"data:\n\n", [b""]),
        ("an unfinished event is dropped", b"data: a\n\ndata: b\n", [b"a"]),
        ("another field's name may begin with data", b"database: a\n\n", []),
    ],
)
def test_event_streams(why: str, stream: bytes, events: list[bytes]) -> None:
    assert feed(stream, []) == by_the_standard(stream) == events, why


def test_a_two_megabyte_event_in_small_reads_is_one_event() -> None:
    payload = b"x" * 2_000_000
    stream = b"data: " + payload + b"\n\n"
    assert feed(stream, list(range(0, len(stream), 500))) == [payload]
