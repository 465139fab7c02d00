"""Traces into columns: small made-up rows, and the public files where LOADGEN_TRACES names their folder."""

import csv
import itertools
import json
import os
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.traces import DataError, Trace, implied_block_hits, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(path: Path, *rows: str, end: str = "\n") -> Path:
    path.write_bytes("".join(row + end for row in rows).encode())
    return path


def objects(path: Path, *rows: dict[str, Any]) -> Path:
    return write(path, *(json.dumps(row) for row in rows))


def mooncake(ms: float, input_len: int, ids: list[int] | None = None, output_len: int = 5) -> dict[str, Any]:
    row = {"timestamp": ms, "input_length": input_len, "output_length": output_len}
    return row if ids is None else row | {"hash_ids": ids}


def ended(index: int, due: float, output_tokens: int = 3, outcome: str = "ok") -> dict[str, Any]:
    return {
        "index": index,
        "due": due,
        "sent": due,
        "input_tokens": 7,
        "output_tokens": output_tokens,
        "outcome": outcome,
    }


def columns(trace: Trace) -> list[tuple[float, int, int]]:
    return list(zip(trace.at.tolist(), trace.input_len.tolist(), trace.output_len.tolist(), strict=True))


def test_azure_2023_has_seven_digits_carriage_returns_and_no_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"{AZURE}\r\n2023-11-16 18:15:46.6805900,10,20\r\n2023-11-16 18:15:50.9951691,30,40".encode())
    trace = read_trace(path)
    assert columns(trace) == [(0.0, 10, 20), (4.3145791, 30, 40)]
    assert (trace.format, trace.blocks, trace.block_size, trace.bin, trace.skipped) == ("azure", None, None, None, {})


def test_azure_2024_has_offsets_from_utc_and_stamps_without_a_fraction(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        AZURE,
        "2024-05-10 00:00:00.009930+00:00,1,1",
        "2024-05-10 00:00:01+00:00,2,2",
        "2024-05-10 02:00:02+02:00,3,3",
        "2024-05-10T00:00:03Z,4,4",
    )
    assert read_trace(path).at.tolist() == [0.0, 0.99007, 1.99007, 2.99007]


@given(st.lists(st.tuples(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.integers(0, 9)), min_size=1))  # noqa: DTZ001
def test_azure_stamps_are_exact_to_100_ns(
    tmp_path_factory: pytest.TempPathFactory, stamps: list[tuple[datetime, int]]
) -> None:
    """Against datetime to the microsecond, Decimal below it, and one rounding at the end."""
    stamps.sort()
    rows = [f"{stamp:%Y-%m-%d %H:%M:%S.%f}{digit},1,1" for stamp, digit in stamps]
    trace = read_trace(write(tmp_path_factory.mktemp("azure") / "a.csv", AZURE, *rows))

    def exact(stamp: datetime, digit: int) -> Decimal:
        since = stamp - stamps[0][0]
        micro = (since.days * 86400 + since.seconds) * 10**6 + since.microseconds
        return Decimal(micro) / 10**6 + Decimal(digit - stamps[0][1]) / 10**7

    assert trace.at.tolist() == [float(exact(*stamp)) for stamp in stamps]


def test_a_byte_order_mark_blank_lines_quotes_and_other_columns_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f'\ufeff\n"n",{AZURE}\n\n"a, b",2023-11-16 18:15:46.5,10,20\n'.encode())
    assert columns(read_trace(path)) == [(0.0, 10, 20)]


def test_mooncake_stamps_are_milliseconds_and_blocks_hold_512_tokens(tmp_path: Path) -> None:
    path = objects(tmp_path / "m.jsonl", mooncake(27, 512, [1]), mooncake(3027, 513, [1, 2]), mooncake(3028, 1, [9]))
    trace = read_trace(path)
    assert columns(trace) == [(0.0, 512, 5), (3.0, 513, 5), (3.001, 1, 5)]
    assert trace.blocks is not None
    assert [list(ids) for ids in trace.blocks] == [[1], [1, 2], [9]]
    assert (trace.format, trace.block_size, trace.bin) == ("mooncake", 512, None)


def test_mooncake_without_hash_ids_has_no_blocks(tmp_path: Path) -> None:
    trace = read_trace(objects(tmp_path / "m.jsonl", mooncake(0, 512), mooncake(1, 5)))
    assert (trace.blocks, trace.block_size, len(trace.at)) == (None, None, 2)


def test_the_bin_is_measured_at_the_top_of_the_file_whatever_the_window(tmp_path: Path) -> None:
    rows = [mooncake(t, 5) for t in (0, 0, 0, 3000, 3000, 5990, 5990, 9001, 12001)]
    path = objects(tmp_path / "m.jsonl", *rows)
    for window in ({}, {"limit": 2}, {"start": 9.0}, {"stop": 1.0}):
        assert read_trace(path, **window).bin == 3.0
    write(path, *map(json.dumps, rows), "cut")
    assert read_trace(path, limit=2).bin == 3.0


def test_burstgpt_leaves_out_failures_and_says_how_many(tmp_path: Path) -> None:
    path = write(
        tmp_path / "b.csv",
        BURST,
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,0,1087,Conversation log",
        "45,GPT-4,0,9,9,API log",
        "118,GPT-4,417,276,693,Conversation log",
    )
    trace = read_trace(path)
    assert columns(trace) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert trace.skipped == {"output of 0 tokens": 1, "input of 0 tokens": 1}
    assert trace.bin == 1.0


def test_burstgpt_with_sessions_and_fractions_has_no_bin(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = write(tmp_path / "b.csv", header, "0.25,s,1,GPT-4,2,3,5,API log", "1.5,s,1,GPT-4,2,3,5,API log")
    trace = read_trace(path)
    assert (trace.at.tolist(), trace.bin, trace.format) == ([0.0, 1.25], None, "burstgpt")


def test_bailian_stamps_are_seconds_and_blocks_hold_16_tokens(tmp_path: Path) -> None:
    rest = {"parent_chat_id": -1, "type": "text", "turn": 1}
    row = {"chat_id": 1, "timestamp": 61.25, "input_length": 33, "output_length": 2, "hash_ids": [4, 5, 6]} | rest
    trace = read_trace(objects(tmp_path / "q.jsonl", row, row | {"timestamp": 62.5}))
    assert (columns(trace), trace.format) == ([(0.0, 33, 2), (1.25, 33, 2)], "bailian")
    assert (trace.block_size, trace.bin) == (16, None)


def test_a_record_is_sorted_by_due_and_keeps_every_stamp_as_written(tmp_path: Path) -> None:
    rows = [ended(2, 0.300001, 0, "dropped"), ended(1, 0.1, 4), ended(3, 0.300001, 6), ended(0, 0.1, 5)]
    objects(tmp_path / "requests.jsonl", *rows)
    (tmp_path / "record.json").write_text("{}")
    for path in (tmp_path, tmp_path / "record.json", tmp_path / "requests.jsonl"):
        trace = read_trace(path)
        assert columns(trace) == [(0.1, 7, 5), (0.1, 7, 4), (0.300001, 7, 0), (0.300001, 7, 6)]
        assert trace.format == "record"
    assert columns(read_trace(tmp_path, limit=1)) == [(0.1, 7, 5)]
    assert columns(read_trace(tmp_path, start=0.25)) == [(0.300001 - 0.25, 7, 0), (0.300001 - 0.25, 7, 6)]
    assert columns(read_trace(tmp_path, stop=0.3)) == [(0.1, 7, 5), (0.1, 7, 4)]


def test_a_record_gives_the_lengths_that_were_asked_for_where_it_has_them(tmp_path: Path) -> None:
    asked = ended(0, 0.0, 3, "truncated") | {"input_len": 5, "output_len": 9}
    text = ended(1, 0.5, 4) | {"input_len": None, "output_len": 4}
    unknown = ended(2, 0.6, 0, "connect") | {"input_len": None, "output_len": 4, "input_tokens": None}
    objects(tmp_path / "requests.jsonl", asked, text, unknown)
    assert columns(read_trace(tmp_path)) == [(0.0, 5, 9), (0.5, 7, 4), (0.6, 0, 4)]


def test_a_records_last_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(ended(0, 0.5)) + "\n" + json.dumps(ended(1, 0.6))[:30])
    assert read_trace(tmp_path).at.tolist() == [0.5]


gaps = st.lists(st.integers(0, 5000), min_size=1, max_size=30)


@given(gaps, st.integers(0, 60_000), st.integers(1, 60_000), st.integers(1, 40))
def test_a_window_is_what_lies_in_it(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], start: int, length: int, limit: int
) -> None:
    stamps = list(itertools.accumulate(gaps))
    path = objects(tmp_path_factory.mktemp("m") / "m.jsonl", *(mooncake(t, 1 + i) for i, t in enumerate(stamps)))
    inside = [(t - stamps[0], 1 + i) for i, t in enumerate(stamps) if start <= t - stamps[0] < start + length][:limit]
    window = {"start": start / 1000, "stop": (start + length) / 1000, "limit": limit}
    if not inside:
        with pytest.raises(DataError, match="no request from"):
            read_trace(path, **window)  # type: ignore[arg-type]
        return
    trace = read_trace(path, **window)  # type: ignore[arg-type]
    assert trace.at == pytest.approx([float(Fraction(t - start, 1000)) for t, _ in inside], abs=1e-9)
    assert trace.input_len.tolist() == [length for _, length in inside]


def test_nothing_is_read_beyond_the_window(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{second},1,1" for second in (10, 11, 12)]
    path = write(tmp_path / "a.csv", AZURE, *rows, "rubbish")
    assert read_trace(path, stop=2).at.tolist() == [0, 1]
    assert read_trace(path, limit=3).at.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"a\.csv:5: has 1 fields"):
        read_trace(path)


def test_block_hits_count_shared_prefixes_and_nothing_else() -> None:
    assert implied_block_hits([]) == (0, 0)
    assert implied_block_hits([[1, 2, 3], [1, 2, 4], [1, 2, 3, 5]]) == (5, 10)
    assert implied_block_hits([[1, 2], [2, 1], [3, 1, 2]]) == (0, 7)  # seen, but never as such a prefix


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12))
def test_block_hits_are_those_of_a_tree_of_prefixes(blocks: list[list[int]]) -> None:
    prefixes = set[tuple[int, ...]]()
    hits = 0
    for ids in blocks:
        for n in range(1, len(ids) + 1):
            hits += tuple(ids[:n]) in prefixes
            prefixes.add(tuple(ids[:n]))
    assert implied_block_hits(blocks) == (hits, sum(map(len, blocks)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc; ru_maxrss begins with the parent's")
@pytest.mark.parametrize(("window", "bytes_a_row"), [("", 28), (", start=100, stop=101", 0), (", limit=1000", 0)])
def test_memory_grows_with_what_is_kept_alone(window: str, bytes_a_row: int, tmp_path: Path) -> None:
    """24 bytes a row in columns that grow by an eighth; 4 MB for all else. Two million rows come to 60 MB so."""
    path = tmp_path / "a.csv"
    rows = 200_000
    with path.open("w") as file:
        file.write(AZURE + "\n")
        for i in range(rows):
            second, k = divmod(i, 1000)
            file.write(f"2024-05-10 00:{second // 60:02}:{second % 60:02}.{k:03}0000+00:00,{k + 1},{second + 1}\n")
    program = f"""
import sys
from pathlib import Path
from loadgen.traces import read_trace
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
before = peak()
trace = read_trace(Path(sys.argv[1]){window})
print(len(trace.at), trace.at[-1], peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True).stdout
    kept, last, grown = out.split()
    assert int(kept) == (1000 if window else rows)
    assert float(last) == pytest.approx(0.999 if window else 199.999)
    assert int(grown) < bytes_a_row * rows + 4e6


PUBLIC = os.environ.get("LOADGEN_TRACES")
public = pytest.mark.skipif(PUBLIC is None, reason="LOADGEN_TRACES does not name the folder of the public traces")


@public
def test_azures_own_file_against_csv_and_decimal() -> None:
    path = Path(PUBLIC or "") / "azure2023_conv.csv"
    trace = read_trace(path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))

    def seconds(stamp: str) -> Decimal:
        whole, fraction = stamp.split(".")
        return Decimal(datetime.fromisoformat(whole + "+00:00").timestamp()) + Decimal(f"0.{fraction}")

    stamps = [seconds(row["TIMESTAMP"]) for row in rows]
    assert trace.at.tolist() == [float(stamp - stamps[0]) for stamp in stamps]
    assert trace.input_len.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert trace.output_len.tolist() == [int(row["GeneratedTokens"]) for row in rows]
    between = np.diff(trace.at)
    assert (len(trace.at), round(trace.at[-1], 2), trace.skipped) == (19_366, 3501.72, {})
    assert between.std() / between.mean() == pytest.approx(1.09, abs=0.005)


@public
def test_mooncakes_own_file_has_bins_of_three_seconds_and_the_hits_that_its_ids_imply() -> None:
    path = Path(PUBLIC or "") / "mooncake_fast25_conversation.head.jsonl"
    trace = read_trace(path)
    assert (len(trace.at), trace.block_size, trace.skipped) == (7_933, 512, {})
    assert trace.bin == pytest.approx(3.0, abs=0.01)
    assert read_trace(path, limit=3).bin == trace.bin
    assert trace.blocks is not None
    seen: set[int] = set()
    hits = 0
    for ids in trace.blocks:
        hits += sum(block in seen for block in ids)
        seen.update(ids)
    assert implied_block_hits(trace.blocks) == (hits, 196_269)
    minute = read_trace(path, stop=60.0)
    assert minute.blocks is not None
    assert implied_block_hits(minute.blocks) == (203, 4400)
