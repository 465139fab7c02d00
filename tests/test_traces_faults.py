"""What is wrong with a file is said with its line, all at once, and never as a traceback."""

import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.traces import DataError, read_clients, read_jsonl, read_sharegpt, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
GOOD = "2023-11-16 18:15:46.5,10,20\n"


def moon(**changed: Any) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]} | changed) + "\n"


def faults(path: Path, content: str | bytes, **options: Any) -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        read_trace(path, **options)
    told = error.value.faults
    assert all(fault.startswith(str(path)) for fault in told)
    assert str(error.value) == "\n".join(told)
    return [fault.removeprefix(str(path)) for fault in told]


CASES = {
    "nothing": (b"", ": is empty"),
    "blank lines": ("\n \n", ": holds only blank lines"),
    "a header": (AZURE, ": has no rows: expected at least one request"),
    "gzip": (gzip.compress(AZURE.encode()), ": is packed with gzip: gunzip it first"),
    "Parquet": (b"PAR1....", ": is Parquet: expected text"),
    "UTF-16": (AZURE.encode("utf-16"), ": is UTF-16: expected UTF-8"),
    "binary": (b"\x7fELF\0\0", ": is binary: expected text"),
    "Latin-1": (AZURE.encode() + b"2023-11-16 18:15:46.5,10,2\xe9\n", ":2: byte 27 is 0xe9: expected UTF-8"),
    "a missing column": (
        "TIMESTAMP,ContextTokens\n",
        ":1: is of no known format: azure without GeneratedTokens; it has",
    ),
    "another CSV": (
        "a,b\n1,2\n",
        ":1: is of no known format; it has 'a, b'; expected one of azure (TIMESTAMP, Context",
    ),
    "other JSON lines": ('{"a": 1}\n', ":1: is of no known format; it has 'a'; expected one of azure"),
    "a JSON array": ("[1]\n", ":1: begins a JSON array: expected CSV with a header, or one JSON object a line"),
    "a field too many": (AZURE + "2023-11-16 18:15:46.5,10,20,1\n", ":2: has 4 fields: expected 3, as in the header"),
    "an open quote": (AZURE + '"2023,1,2\n', ":2: is not CSV: unexpected end of data"),
    "a cut line": (
        AZURE + GOOD + "2023-11-16 18:1",
        ":3: has 1 fields: expected 3, as in the header (the last line, w",
    ),
    "no stamp": (
        AZURE + "16/11/2023,1,1\n",
        ":2: TIMESTAMP: expected a stamp such as 2023-11-16 18:15:46.6805900, got",
    ),
    "month 13": (AZURE + "2023-13-16 18:15:46.5,1,1\n", ":2: TIMESTAMP: expected a stamp such as"),
    "a mix of offsets": (
        AZURE + GOOD + "2023-11-16 18:15:47+00:00,1,1\n",
        ":3: TIMESTAMP: expected stamps all with an offset from UTC or all without, got '2023-11-16 18:15:47+00:00'",
    ),
    "unsorted stamps": (
        AZURE + GOOD + "2023-11-16 18:15:46.4,1,1\n",
        ":3: TIMESTAMP 2023-11-16 18:15:46.4 comes after 2023-11-16 18:15:46.5 of line 2: expected stamps that never",
    ),
    "a length of 1.5": (
        AZURE + "2023-11-16 18:15:46.5,1.5,1\n",
        ":2: ContextTokens: expected a whole number of tokens",
    ),
    "a length of -1": (
        AZURE + "2023-11-16 18:15:46.5,1,-1\n",
        ":2: GeneratedTokens: expected a whole number of tokens",
    ),
    "no length": (AZURE + "2023-11-16 18:15:46.5,,1\n", ":2: ContextTokens: expected a whole number of tokens from 0"),
    "other digits": (AZURE + "2023-11-16 18:15:46.5,٣,1\n", ":2: ContextTokens: expected a whole number of tokens"),
    "a huge length": (AZURE + f"2023-11-16 18:15:46.5,{'9' * 5000},1\n", ":2: ContextTokens: expected a whole number"),
    "a negative second": (BURST + "-5,m,1,1,2,l\n", ":2: Timestamp: expected a number from 0 to 1e+15, got '-5'"),
    "second nan": (BURST + "nan,m,1,1,2,l\n", ":2: Timestamp: expected a number from 0 to 1e+15, got 'nan'"),
    "second 1e999": (BURST + "1e999,m,1,1,2,l\n", ":2: Timestamp: expected a number from 0 to 1e+15, got '1e999'"),
    "a JSON NaN": (moon() + moon().replace("600", "NaN"), ":2: has NaN: expected finite numbers"),
    "a JSON Infinity": (moon() + moon().replace("600", "-Infinity"), ":2: has -Infinity: expected finite numbers"),
    "a JSON 1e999": (
        moon() + moon().replace(": 0", ": 1e999"),
        ":2: timestamp: expected a number from 0 to 1e+15, got inf",
    ),
    "true": (moon() + moon(output_length=True), ":2: output_length: expected a whole number of tokens from 0 to"),
    "text for a number": (moon() + moon(timestamp="5"), ":2: timestamp: expected a number from 0 to 1e+15, got '5'"),
    "a negative stamp": (moon() + moon(timestamp=-1), ":2: timestamp: expected a number from 0 to 1e+15, got -1"),
    "JSON cut": (moon() + moon()[:40], ":2: is not JSON: "),
    "JSON and more": (moon() + "{} {}\n", ":2: is not JSON: Extra data at column 4: expected one object"),
    "JSON, no object": (moon() + "5\n", ":2: expected a JSON object, got 5"),
    "JSON without end": (moon() + '{"a":' + "[" * 100_000 + "\n", ":2: is not JSON that can be read: "),
    "a missing key": (moon() + '{"timestamp": 1}\n', ":2: no input_length, output_length; it has 'timestamp'"),
    "a block too few": (moon(hash_ids=[1]), ":1: hash_ids: 1 for an input length of 600: expected 2, one for each 512"),
    "a missing hash_ids": (moon() + moon(hash_ids=None), ":2: no hash_ids here: expected them in every row or in none"),
    "an id of true": (moon(hash_ids=[1, True]), ":1: hash_ids: expected a list of whole numbers, got [1, True]"),
    "an id too long": (moon(hash_ids=[1, 2**63]), ":1: hash_ids: expected whole numbers of at most 64 bits, signed"),
    "a line too long": (moon() + " " * (1 << 24) + moon(), ":2: is longer than 16 MiB: expected one request a line"),
}


@pytest.mark.parametrize(("content", "expected"), CASES.values(), ids=CASES)
def test_a_trace_with(content: str | bytes, expected: str, tmp_path: Path) -> None:
    (told,) = faults(tmp_path / "trace", content)
    assert told.startswith(expected)


def test_every_fault_of_a_row_and_of_a_file_is_told(tmp_path: Path) -> None:
    told = faults(tmp_path / "t", AZURE + "x,-1,1\n" + GOOD + "1\n")
    assert [fault[:16] for fault in told] == [":2: TIMESTAMP: e", ":2: ContextToken", ":4: has 1 fields"]


def test_after_twenty_faults_reading_stops_and_says_where(tmp_path: Path) -> None:
    assert len(faults(tmp_path / "t", AZURE + "x\n" * 20)) == 20
    told = faults(tmp_path / "t", AZURE + GOOD + "x\n" * 5000)
    assert (len(told), told[19][:4], told[20]) == (21, ":22:", ": … and more: reading stopped at line 23")


def test_an_empty_window_says_what_the_file_spans(tmp_path: Path) -> None:
    rows = AZURE + GOOD + "2023-11-16 18:15:56.5,10,0\n"
    assert faults(tmp_path / "t", rows, start=30) == [": no request from 30 s on: 2 rows read, of 0 to 10 s"]
    assert faults(tmp_path / "t", rows, start=5, stop=20) == [
        ": no request from 5 s to 20 s: 2 rows read, of 0 to 10 s; 1 skipped for an output of 0 tokens"
    ]
    due = {"index": 0, "due": 1.5, "input_tokens": 1, "output_tokens": 1, "outcome": "ok"}
    assert faults(tmp_path / "t", json.dumps(due) + "\n", stop=1) == [
        ": no request from 0 s to 1 s: 1 rows read, of 0 to 1.5 s"
    ]


def test_options_that_cannot_be(tmp_path: Path) -> None:
    assert faults(tmp_path / "t", AZURE + GOOD, format="csv") == [
        ": format 'csv': expected one of azure, burstgpt, bailian, mooncake, record"
    ]
    assert faults(tmp_path / "t", AZURE + GOOD, limit=0) == [": limit 0: expected at least 1 request"]
    (told,) = faults(tmp_path / "t", "TIMESTAMP,Context\n" + GOOD, format="azure")
    assert told == ":1: no ContextTokens, GeneratedTokens; it has 'TIMESTAMP, Context'"


def test_what_is_no_file(tmp_path: Path) -> None:
    for read in (read_trace, read_clients, lambda path: list(read_jsonl(path)), lambda path: list(read_sharegpt(path))):
        with pytest.raises(DataError, match="cannot be read: No such file or directory"):
            read(tmp_path / "none")
        with pytest.raises(DataError, match=r"is a folder without|Is a directory"):
            read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.touch(mode=0)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read_trace(path)


@given(st.binary(max_size=200), st.sampled_from([AZURE + GOOD, BURST, moon(), ""]))
def test_whatever_bytes_come_there_are_columns_or_faults(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, head: str
) -> None:
    path = tmp_path_factory.mktemp("junk") / "t"
    path.write_bytes(head.encode() + junk)
    for read in (read_trace, read_clients, lambda path: list(read_jsonl(path)), lambda path: list(read_sharegpt(path))):
        with suppress(DataError):
            read(path)
